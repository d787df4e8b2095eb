from __future__ import annotations

import numpy as np
import paddle_profiles as made
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle_profiles import host, thread

from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Meta, Trace
from stepscope.exports.paddle_summary._tree import CodedTexts, _levels, _summed, _visits, tree_of


def names(tree):
    return [tree.host.name.texts[code] for code in tree.host.name.codes.tolist()]


def test_what_hangs_below_an_event_is_summed_up(tree):
    found = tree()
    sums = dict(zip(names(found), zip(found.kernels_ns.tolist(), found.device_ns.tolist(), strict=True), strict=True))
    assert sums["ProfileStep#3"] == (60_000, 64_000)
    assert sums["h2d_memcpy"] == (0, 4_000)
    assert found.steps_ns == 200_000
    assert found.device_of.tolist() == [0] * 4


def test_the_last_child_is_met_first_and_threads_by_their_ids(tree):
    second = thread((0, host("z", 0, 0, 9, tid=2)), tid=2)
    first = thread(
        (0, host("a", 0, 0, 50)), (0, host("b", 0, 50, 90)), (1, host("a1", 0, 1, 9)), (1, host("a2", 0, 9, 12)), tid=9
    )
    found = tree(first, second)
    order = np.argsort(found.visit)
    assert [names(found)[i] for i in order] == ["z", "b", "a", "a2", "a1"]


def visited(parents):
    """Rows in the order of a depth-first walk that puts the children on a stack."""
    stack, order = [i for i, up in enumerate(parents) if up < 0], []
    while stack:
        row = stack.pop()
        order.append(row)
        stack += [i for i, up in enumerate(parents) if up == row]
    return order


@given(st.lists(st.integers(0, 99), max_size=30))
def test_visits_and_sums_are_those_of_a_plain_walk(picks):
    parents = np.array([pick % (i + 1) - 1 for i, pick in enumerate(picks)], np.int64)
    levels = _levels(parents)

    class Host:
        thread, node = np.zeros(parents.size, np.int64), parents

        def __len__(self):
            return parents.size

    size = _summed(levels, parents, np.ones(parents.size, np.int64))
    order = visited(parents.tolist())
    assert np.argsort(_visits(levels, Host(), size)).tolist() == order
    below = [sum(j == i or i in chain(parents, j) for j in range(parents.size)) for i in range(parents.size)]
    assert size.tolist() == below


def chain(parents, row):
    while (row := parents[row]) >= 0:
        yield row


def test_only_the_outermost_phase_counts(tree):
    found = tree(
        thread((0, host("M", made.FORWARD, 0, 50)), (1, host("L", made.FORWARD, 1, 40)), (2, host("op", 0, 2, 9)))
    )
    assert found.outermost.tolist() == [True, False, False]


def test_words_are_numbered_and_searched():
    words = CodedTexts.of(pl.Series(["b", None, "AB", "b"], dtype=pl.Categorical))
    assert [words.texts[code] for code in words.codes] == ["b", "", "AB", "b"]
    assert words.where("b", "x").tolist() == [True, False, False, True]
    assert words.containing("b").tolist() == [True, False, True, True]
    assert CodedTexts.of(pl.Series([], dtype=pl.Categorical)).where("x").tolist() == []


def test_a_trace_of_another_framework_is_refused():
    with pytest.raises(StepscopeError, match="not recorded by Paddle") as caught:
        tree_of(Trace(Meta("x.json", "kineto", framework="PyTorch"), {}))
    assert caught.value.hint
