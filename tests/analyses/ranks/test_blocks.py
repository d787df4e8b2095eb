from __future__ import annotations

import numpy as np
from jobs import part

from stepscope.analyses.ranks.blocks import blocks_of
from stepscope.analyses.ranks.comms import Comm
from stepscope.analyses.ranks.matching import job_of


def job(n: int, steps: list[int | None]):
    rows = [(10 * i, 10 * i + 5) for i in range(n)]
    return job_of([part(r, *rows, step=steps) for r in (0, 1)])


def test_steps_are_blocks_where_there_are_enough():
    blocks = blocks_of(job(20, [i // 2 for i in range(20)]))
    assert (blocks.n, blocks.of_exchange.tolist()) == (10, [i // 2 for i in range(20)])
    assert blocks.steps.tolist() == list(range(10))


def test_many_steps_are_put_together():
    blocks = blocks_of(job(512, list(range(512))))
    assert blocks.n == 128
    assert np.bincount(blocks.of_exchange).tolist() == [4] * 128
    assert blocks.steps is None


def test_without_steps_each_group_is_cut_into_equal_parts():
    blocks = blocks_of(job(80, [None] * 80))
    assert np.bincount(blocks.of_exchange).tolist() == [2] * 40
    few = Comm("x", None, 2, (0, 1))
    rows = [(10 * i, 10 * i + 5) for i in range(12)]
    both = job_of([part(r, *rows, comms=(few, Comm("y", None, 2, (0, 1))), comm=[0] * 10 + [1] * 2) for r in (0, 1)])
    assert blocks_of(both).of_exchange.tolist() == [*range(10), 0, 5]


def test_sums_are_unknown_where_nothing_is():
    blocks = blocks_of(job(2, [None] * 2))
    found = blocks.sums(np.array([0, 0, 1]), np.array([1.0, 2.0, np.nan]), np.array([0, 0, 1]), 2)
    np.testing.assert_array_equal(found, [[3.0, np.nan], [np.nan, np.nan]])
