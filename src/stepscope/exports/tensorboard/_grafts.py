"""Putting made-up backward nodes into the plugin's trees, with the backward operators that they hold."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import IGNORED
from stepscope.exports.tensorboard._forest import BACKWARD, ROOT, Costs, taken
from stepscope.exports.tensorboard._names import BACKWARD_PREFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Grafts:
    """Backward nodes to be made, one per module, and the things that hang below them.

    Per backward node: `module` is its module's node, `up` the backward node around it (−1: none), `size` how many
    nodes it has with all below, `at` the thing that it is (−1: none, as nothing is around it). `costs` are its times.
    Per thing: `owner` is the backward node above it, `node` the backward root that it is (or −1), `made` the backward
    node that it is (or −1), `offset` how far behind its owner it comes in pre-order.
    """

    module: Ints
    up: Ints
    start: Times
    end: Times
    size: Ints
    costs: Costs
    at: Ints
    owner: Ints
    node: Ints
    made: Ints
    offset: Ints


def ranges(first: Ints, counts: Ints) -> Ints:
    """The numbers from each `first` on, `counts` of them.

    >>> ranges(np.array([7, 2]), np.array([2, 3]))
    array([7, 8, 2, 3, 4])
    """
    stop = np.cumsum(counts)
    total = int(stop[-1]) if stop.size else 0
    return np.repeat(first - (stop - counts), counts) + np.arange(total)


def grafted(forest: Forest, costs: Costs, last: Ints, gone: Bools, grafts: Grafts) -> tuple[Forest, Costs]:
    """The trees without the nodes that are gone, with the grafts; `last` is each node's last descendant."""
    tops = np.flatnonzero(grafts.up < 0)
    tops = tops[np.lexsort((-grafts.end[tops], grafts.start[tops]))]
    into, before = _places(forest, last, gone, grafts.start[tops], grafts.end[tops])
    tops, into, before = tops[into >= 0], into[into >= 0], before[into >= 0]
    kept = _kept(forest, last, gone, into)
    # New numbers: of nodes that stay, then of backward nodes, from the outermost inwards.
    rank = np.append(0, np.cumsum(kept))
    size = grafts.size[tops]
    added = np.zeros(kept.size + 1, np.int64)
    np.add.at(added, before, size)
    place = np.where(kept, rank[:-1] + np.cumsum(added)[:-1], -1)
    spot = np.full(grafts.module.size, -1, np.int64)
    spot[tops] = rank[before] + np.cumsum(size) - size
    for level in _order.levels(grafts.up)[1:]:
        around = spot[grafts.up[level]]
        spot[level] = np.where(around >= 0, around + grafts.offset[grafts.at[level]], -1)
    source = np.full(int(rank[-1] + size.sum()), -1, np.int64)  # the old node; −1 for backward nodes
    parent = source.copy()
    source[place[kept]] = np.flatnonzero(kept)
    parent[place[kept]] = np.append(place, -1)[forest.parent[kept]]
    made = np.flatnonzero(spot >= 0)
    parent[spot[made]] = np.append(spot, -1)[grafts.up[made]]
    parent[spot[tops]] = place[into]
    hung = np.flatnonzero((grafts.node >= 0) & (spot[grafts.owner] >= 0))
    node, owner = grafts.node[hung], spot[grafts.owner[hung]]
    length = last[node] - node + 1
    copy, old = ranges(owner + grafts.offset[hung], length), ranges(node, length)
    source[copy] = old
    parent[copy] = np.where(old == np.repeat(node, length), np.repeat(owner, length), forest.parent[old] + copy - old)
    trees = _renumbered(forest, source, parent, place)
    _fill(trees, source, grafts, made, spot[made])
    name, code = np.unique(forest.name[grafts.module[made]], return_inverse=True)
    trees.name[spot[made]] = len(forest.names) + code
    names = [*forest.names, *(f"{forest.names[i]}.backward" for i in name.tolist())]
    return replace(trees, names=names), _times(costs, source, grafts, made, spot[made])


def _places(forest: Forest, last: Ints, gone: Bools, starts: Times, ends: Times) -> tuple[Ints, Ints]:
    """For ranges by start: the node of the main tree that takes each, and the node before which it comes.

    A range goes down into what it overlaps as far as there is any, and the next one goes on from there. −1 for ranges
    that lie outside the tree's own range, which vanish.
    """
    into, before = np.full(starts.size, -1, np.int64), np.full(starts.size, -1, np.int64)
    node = _main_root(forest)
    (children, reach), at = _children(forest, last, gone, node), 0
    around: list[tuple[int, Ints, Times, int]] = []
    i = 0
    while i < starts.size:
        if ends[i] < forest.start[node]:
            i += 1
            continue
        if starts[i] > forest.end[node]:
            if not around:
                break
            node, children, reach, at = around.pop()
            at += 1
            continue
        while at < children.size:
            at += int(np.searchsorted(reach[at:], starts[i], side="right"))
            if at == children.size or ends[i] < forest.start[children[at]]:
                break
            around.append((node, children, reach, at))
            node = int(children[at])
            (children, reach), at = _children(forest, last, gone, node), 0
        into[i] = node
        before[i] = children[at] if at < children.size else last[node] + 1
        i += 1
    return into, before


def _children(forest: Forest, last: Ints, gone: Bools, node: int) -> tuple[Ints, Times]:
    """A node's children that stay, and their ends."""
    below = slice(node + 1, int(last[node]) + 1)
    found = node + 1 + np.flatnonzero((forest.parent[below] == node) & ~gone[below])
    return found, forest.end[found]


def _main_root(forest: Forest) -> int:
    """The root of the main thread: the last one with steps; without any the longest one.

    The thread on which backward operators ran is then left out, unless it is the only one.
    """
    if forest.loose.size:
        return int(forest.loose[-1])
    roots = np.flatnonzero(forest.parent < 0)
    is_top = (forest.parent >= 0) & (forest.role[forest.parent] == ROOT)
    is_backward = np.array([name.startswith(BACKWARD_PREFIX) for name in forest.names])[forest.name]
    backward = forest.thread[np.flatnonzero(is_top & is_backward)[0]]  # without steps there is nothing else above them
    others = roots[forest.thread[roots] != backward]
    others = others if others.size else roots
    return int(others[np.argmax(forest.end[others] - forest.start[others])])


def _kept(forest: Forest, last: Ints, gone: Bools, into: Ints) -> Bools:
    """What stays: all that is not gone, but for roots with nothing below."""
    kept = ~gone
    count = np.append(0, np.cumsum(kept))
    roots = np.flatnonzero(forest.parent < 0)
    kept[roots] = (count[last[roots] + 1] - count[roots] > 1) | np.isin(roots, into)
    return kept


def _renumbered(forest: Forest, source: Ints, parent: Ints, place: Ints) -> Forest:
    """The nodes in their new order. Claims follow every copy of their node."""
    by_node = np.argsort(forest.claim_node, kind="stable")
    counts = np.bincount(forest.claim_node, minlength=forest.row.size)
    old = np.flatnonzero(source >= 0)
    counts, first = counts[source[old]], (np.cumsum(counts) - counts)[source[old]]
    loose = place[forest.loose]
    return replace(
        taken(forest, source), parent=parent, claim_call=forest.claim_call[by_node[ranges(first, counts)]],
        claim_node=np.repeat(old, counts), loose=loose[loose >= 0],
    )  # fmt: skip


def _fill(trees: Forest, source: Ints, grafts: Grafts, made: Ints, spot: Ints) -> None:
    """Put the values of backward nodes into the trees' arrays. Writes into `trees`."""
    trees.row[spot], trees.role[spot], trees.kind[spot], trees.is_op[spot] = -1, BACKWARD, IGNORED, False
    trees.start[spot], trees.end[spot] = grafts.start[made], grafts.end[made]
    # The thread is that of the first operator below.
    real = np.where(source >= 0, np.arange(source.size), source.size)
    trees.thread[spot] = trees.thread[np.minimum.accumulate(real[::-1])[::-1][spot]]


def _times(costs: Costs, source: Ints, grafts: Grafts, made: Ints, spot: Ints) -> Costs:
    """The times of all nodes, in their new order."""
    found = {}
    for column in fields(Costs):
        found[column.name] = getattr(costs, column.name)[source]
        found[column.name][spot] = getattr(grafts.costs, column.name)[made]
    return Costs(**found)
