from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from observations import observation

from stepscope.comparison.roles import distances, roles


def process(noise=0.0, seed=0, **times):
    """A process whose cycles of 1,000,000 ns spend these times in functions."""
    rng = np.random.default_rng(seed)
    rows = [
        (c, "host", name, "operator", 1, int(ns * (1 + noise * rng.normal())), None)
        for c in range(1, 21)
        for name, ns in times.items()
    ]
    return observation([10**6] * 20, functions=rows)


def test_processes_that_spend_their_time_alike_are_one_group():
    groups = roles([process(a=500_000, b=300_000), process(a=510_000, b=295_000)])
    assert [len(role.members) for role in groups] == [2]
    assert groups[0].apart.is_empty()
    assert groups[0].step_ns == 1e6


def test_what_sets_a_group_apart_is_found_against_the_largest():
    groups = roles([process(a=500_000), process(a=900_000), process(a=505_000)])
    assert [len(role.members) for role in groups] == [2, 1]
    row = groups[1].apart.filter(pl.col("measure") == "total_ns").row(0, named=True)
    assert (row["base"], row["other"], row["is_different"]) == (502_500, 900_000, True)


def test_noisy_processes_may_differ_more():
    quiet = [process(a=400_000), process(a=600_000)]
    noisy = [process(noise=0.9, seed=s, a=ns) for s, ns in ((1, 400_000), (2, 500_000))]
    assert len(roles(quiet)) == 2
    assert len(roles(noisy)) == 1


def test_one_process_is_one_group():
    assert [len(role.members) for role in roles([process(a=1)])] == [1]


def test_distance_is_the_share_of_the_cycle_spent_otherwise():
    apart, noise = distances([process(a=500_000), process(b=250_000)])
    assert apart.tolist() == [[0.0, 0.75], [0.75, 0.0]]
    assert noise.tolist() == pytest.approx([0.0, 0.0])
