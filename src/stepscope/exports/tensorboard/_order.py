"""Order in trees that are kept as arrays: nodes in pre-order with their parents' indices, −1 for roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]

#: Rounds that search for overlapping ranges all at once, before the remaining ones are decided one by one.
_ROUNDS = 32


def nest(begin: Times, end: Times, tree: Ints) -> tuple[Ints, Bools]:
    """Parent of each range within its tree, and which ranges stay. A range that ends after its parent is dropped.

    Rows are sorted by (tree, begin, −end). A dropped range is no parent; −1 is the tree's root.
    """
    starts, ends = _integers(begin), _integers(end)
    parent = intervals.enclosing(starts, ends, tree)
    stays = np.ones(tree.size, bool)
    suspects = _outlasting(ends, parent, np.arange(tree.size))
    for _ in range(_ROUNDS):
        if not suspects.size:
            return parent, stays
        suspected = np.zeros(tree.size, bool)
        suspected[suspects] = True
        above = np.append(intervals.nearest(parent, suspected), -1)
        certain = suspects[above[parent[suspects]] < 0]  # the range in which they begin certainly stays
        stays[certain] = False
        moved = np.flatnonzero((parent >= 0) & ~stays[parent])
        _climb(parent, moved, starts, ends, stays)
        rest = np.union1d(suspects[stays[suspects]], moved[stays[moved]])
        suspects = _outlasting(ends, parent, rest)
    return _one_by_one(starts, ends, tree)


def _outlasting(ends: Ints, parent: Ints, rows: Ints) -> Ints:
    rows = rows[parent[rows] >= 0]
    return rows[ends[rows] > ends[parent[rows]]]


def _climb(parent: Ints, rows: Ints, starts: Ints, ends: Ints, stays: Bools) -> None:
    """Point the rows at the nearest ancestor that stays and is still open at their start. Writes into `parent`."""
    while rows.size:
        parent[rows] = parent[parent[rows]]
        rows = rows[parent[rows] >= 0]
        rows = rows[~stays[parent[rows]] | (ends[parent[rows]] <= starts[rows])]


def _one_by_one(starts: Ints, ends: Ints, tree: Ints) -> tuple[Ints, Bools]:
    """The same for ranges that overlap in long chains, where each decision depends on the one before."""
    parent = np.full(starts.size, -1, np.int64)
    stays = np.ones(starts.size, bool)
    stack: list[tuple[int, int, int]] = []
    for i, (start, end, group) in enumerate(zip(starts.tolist(), ends.tolist(), tree.tolist(), strict=True)):
        while stack and (stack[-1][2] != group or stack[-1][0] <= start):
            stack.pop()
        if stack and end > stack[-1][0]:
            stays[i] = False
            continue
        parent[i] = stack[-1][1] if stack else -1
        stack.append((end, i, group))
    return parent, stays


def _integers(values: Times) -> Ints:
    """Integers with the order and the equality of the times; for doubles their bits, which sort as they do."""
    if values.dtype == np.int64:
        return values
    bits = (values + 0.0).view(np.int64)  # adding makes −0 a 0
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def levels(parent: Ints) -> list[Ints]:
    """Nodes by depth, roots first."""
    depth = (parent >= 0).astype(np.int64)
    up = parent.copy()
    far = np.flatnonzero(up >= 0)
    while far.size:  # strides double
        depth[far] += depth[up[far]]
        up[far] = up[up[far]]
        far = far[up[far] >= 0]
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if order.size else []


def last_descendant(parent: Ints) -> Ints:
    """For each node in pre-order the last node below it, itself if none is."""
    last = np.arange(parent.size)
    for nodes in reversed(levels(parent)[1:]):
        np.maximum.at(last, parent[nodes], last[nodes])
    return last


def below(values: Times, last: Ints) -> Times:
    """Sum of a value over each node and all below it."""
    up_to = np.concatenate((np.zeros(1, values.dtype), np.cumsum(values)))
    total: Times = up_to[last + 1] - up_to[np.arange(last.size)]
    return total


def sums_below(parent: Ints, node: Ints, values: tuple[Times, ...]) -> tuple[Times, ...]:
    """Sums of values over each node and all below it. Value i belongs to `node[i]`; a node may have many values.

    They are added one by one: first the sums of the children in their order, then the node's own values in theirs.
    """
    depth = np.zeros(parent.size, np.int64)
    by_depth = levels(parent)
    for level, nodes in enumerate(by_depth):
        depth[nodes] = level
    order = np.argsort(depth[node], kind="stable")
    bounds = np.searchsorted(depth[node][order], np.arange(len(by_depth) + 1))
    totals = tuple(np.zeros(parent.size, v.dtype) for v in values)
    for level in reversed(range(len(by_depth))):
        nodes, own = by_depth[level], order[bounds[level] : bounds[level + 1]]
        for total, value in zip(totals, values, strict=True):
            np.add.at(total, node[own], value[own])
            if level:
                np.add.at(total, parent[nodes], total[nodes])
    return totals


def inherited(flags: Bools, may: Bools, parent: Ints) -> Bools:
    """The flags, set also for nodes that may inherit one from a child, from the bottom up."""
    flags = flags.copy()
    for nodes in reversed(levels(parent)[1:]):
        giving = nodes[flags[nodes]]
        heirs = parent[giving]
        flags[heirs[may[heirs]]] = True
    return flags


def post_order(parent: Ints, last: Ints) -> Ints:
    """Nodes in post-order, children before their parent, given nodes in pre-order."""
    depth = np.zeros(parent.size, np.int64)
    for level, nodes in enumerate(levels(parent)):
        depth[nodes] = level
    # Before a node come all that precede it in pre-order, except its ancestors, and all below it.
    return np.argsort(last - depth, kind="stable")


def first_in_groups(group: Ints) -> tuple[Ints, Ints]:
    """Groups numbered by first appearance: the number of each row, and the first row of each number."""
    order = np.argsort(group, kind="stable")
    is_first = np.ones(group.size, bool)
    is_first[1:] = group[order][1:] != group[order][:-1]
    firsts = order[is_first]
    rank = np.empty(firsts.size, np.int64)
    by_appearance = np.argsort(firsts, kind="stable")
    rank[by_appearance] = np.arange(firsts.size)
    number = np.empty(group.size, np.int64)
    number[order] = rank[np.cumsum(is_first) - 1]
    return number, firsts[by_appearance]
