from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.tensorboard import _order


def ints(*values):
    return np.array(values, np.int64)


def nested(ranges, dtype=np.int64):
    """Parents and kept flags of (tree, begin, end) rows, sorted as asked for."""
    rows = sorted(ranges, key=lambda r: (r[0], r[1], -r[2]))
    tree, begin, end = (np.array([r[i] for r in rows]) for i in range(3))
    parent, kept = _order.nest(begin.astype(dtype), end.astype(dtype), tree.astype(np.int64))
    return rows, parent.tolist(), kept.tolist()


def by_stack(rows):
    """The same, one range after the other, with a stack."""
    parent, kept, stack = [], [], []
    for i, (tree, begin, end) in enumerate(rows):
        while stack and (rows[stack[-1]][0] != tree or rows[stack[-1]][2] <= begin):
            stack.pop()
        fits = not stack or end <= rows[stack[-1]][2]
        parent.append(stack[-1] if stack and fits else -1)
        kept.append(fits)
        if fits:
            stack.append(i)
    return parent, kept


def test_a_range_is_inside_the_innermost_one_that_is_open():
    assert nested([(0, 0, 10), (0, 1, 4), (0, 2, 3), (0, 5, 9), (1, 5, 6)])[1:] == ([-1, 0, 1, 0, -1], [True] * 5)


def test_a_range_that_outlasts_the_one_it_begins_in_is_dropped_and_nobodys_parent():
    rows, parent, kept = nested([(0, 0, 10), (0, 5, 15), (0, 6, 9), (0, 6, 12)])
    assert rows[2] == (0, 6, 12)
    assert kept == [True, False, False, True]
    assert parent[3] == 0


def test_empty_ranges_hold_nothing():
    assert nested([(0, 0, 0), (0, 0, 0), (0, 0, 5)])[1] == [-1, 0, 0]


spans = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=40)


@given(spans, st.sampled_from([np.int64, np.float64]))
def test_nesting_equals_that_with_a_stack(ranges, dtype):
    rows, parent, kept = nested([(t, b, b + n) for t, b, n in ranges], dtype)
    expected, fits = by_stack(rows)
    assert kept == fits
    assert [p for p, k in zip(parent, kept, strict=True) if k] == [p for p, k in zip(expected, fits, strict=True) if k]


def test_long_chains_of_overlaps_are_settled_one_by_one():
    ranges = [(tree, 2 * i, 2 * i + 3) for tree in (0, 1) for i in range(300)]
    rows, parent, kept = nested(ranges)
    expected, fits = by_stack(rows)
    assert kept == fits
    assert [p for p, k in zip(parent, kept, strict=True) if k] == [p for p, k in zip(expected, fits, strict=True) if k]


def test_doubles_that_differ_in_the_last_digit_are_told_apart():
    end = 1.4e12 + 3.0
    more = np.nextafter(end, np.inf)
    parent, kept = _order.nest(np.array([1.4e12, 1.4e12 + 1]), np.array([end, more]), ints(0, 0))
    assert kept.tolist() == [True, False]
    assert parent.tolist()[0] == -1


trees = st.lists(st.integers(0, 10), max_size=30)


def tree_of(choices):
    """Parents in pre-order: each node hangs on some node of the last one's chain, or is a root."""
    parent: list[int] = []
    for choice in choices:
        chain = [-1]
        at = len(parent) - 1
        while at >= 0:
            chain.append(at)
            at = parent[at]
        parent.append(chain[choice % len(chain)])
    return parent


@given(trees)
def test_last_descendants_and_sums_below_equal_those_by_walking(choices):
    parent = tree_of(choices)
    values = np.arange(1, len(parent) + 1)
    last = _order.last_descendant(ints(*parent))
    below = _order.below(values, last)
    for node in range(len(parent)):
        inside = [node]
        for other in range(node + 1, len(parent)):
            if parent[other] in inside:
                inside.append(other)
        assert last[node] == inside[-1]
        assert below[node] == sum(values[i] for i in inside)


@given(trees)
def test_post_order_puts_children_before_their_parent(choices):
    parent = tree_of(choices)

    def walk(node):
        for other in range(len(parent)):
            if parent[other] == node:
                yield from walk(other)
        if node >= 0:
            yield node

    last = _order.last_descendant(ints(*parent))
    assert _order.post_order(ints(*parent), last).tolist() == list(walk(-1))


def test_a_flag_rises_only_through_those_that_may_have_it():
    parent = ints(-1, 0, 1, 2, 0)
    may = np.array([True, False, True, True, True])
    flags = np.array([False, False, False, True, False])
    assert _order.inherited(flags, may, parent).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("values", [[], [5], [7, 3, 7, 3, 9]])
def test_groups_are_numbered_by_first_appearance(values):
    number, first = _order.first_in_groups(ints(*values))
    seen = list(dict.fromkeys(values))
    assert number.tolist() == [seen.index(v) for v in values]
    assert first.tolist() == [values.index(v) for v in seen]


def test_no_nodes_have_no_levels():
    assert _order.levels(ints()) == []


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_integers_of_doubles_sort_as_the_doubles_do(values):
    found = _order._integers(np.array(values)).tolist()
    order = sorted(range(len(values)), key=found.__getitem__)
    ordered = [values[i] for i in order]
    assert ordered == sorted(values)
    assert all((found[i] == found[j]) == (values[i] == values[j]) for i in range(len(values)) for j in range(i))


@given(trees, st.lists(st.integers(0, 29), max_size=20))
def test_sums_of_several_values_a_node_equal_those_by_walking(choices, places):
    parent = tree_of(choices)
    node = ints(*(p % len(parent) for p in places)) if parent else ints()
    values = np.arange(1, node.size + 1)
    (found,) = _order.sums_below(ints(*parent), node, (values,))
    own = np.zeros(len(parent), np.int64)
    np.add.at(own, node, values)
    assert found.tolist() == _order.below(own, _order.last_descendant(ints(*parent))).tolist()
