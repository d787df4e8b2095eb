"""Backward operators as the plugin shows them: below the module whose forward caused them, not where they ran.

A trace with modules and with arrows from forward to backward operators loses its backward roots (the ranges that the
autograd engine evaluates). Those whose forward lies in a module come back below a made-up node `<module>.backward`,
put into the main thread's tree by its time. All others are gone from every view that reads the trees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope import intervals
from stepscope.reports.tensorboard import _order
from stepscope.reports.tensorboard._events import IGNORED, MODULE
from stepscope.reports.tensorboard._forest import BACKWARD, ROOT, STEP_NODE, Costs, taken
from stepscope.reports.tensorboard._names import ACCUMULATE_GRAD, BACKWARD_PREFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.reports.tensorboard._events import Events
    from stepscope.reports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Roots:
    """Backward roots in the plugin's order; those of one group are hung together. Group i begins at `first[i]`."""

    node: Ints
    first: Ints

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """All pairs of the groups (repeats allowed) with their roots: places in `groups`, and nodes."""
        counts = np.diff(np.append(self.first, self.node.size))[groups]
        return np.repeat(np.arange(groups.size), counts), self.node[_ranges(self.first[groups], counts)]


@dataclass(frozen=True, slots=True)
class _Hangings:
    """Backward nodes to be made, one per module, and what hangs below each.

    `module` has their modules, `up` the backward node above each (−1: none), `begin` and `end` their times, `size` how
    many nodes each has in all. Things that hang: `owner` is the backward node above, `node` a backward root (or −1)
    and `made` a backward node (or −1), `offset` how far behind their owner they come in pre-order.
    """

    module: Ints
    up: Ints
    begin: Times
    end: Times
    size: Ints
    owner: Ints
    node: Ints
    made: Ints
    offset: Ints
    device: Times
    tc: Times
    inner: Times
    eligible: Bools


def rehung(events: Events, forest: Forest, costs: Costs) -> tuple[Forest, Costs]:
    """The trees with backward operators below their modules, and all times.

    Without arrows, modules or backward operators nothing changes. The times of nodes that stay are those of the first
    trees: a step keeps the device time of backward operators that have left it. Roots without children vanish.
    """
    begin, end = _arrows(events)
    if not begin.size:
        return forest, costs
    modules, roots = _outermost(forest)
    if not modules.size or not roots.node.size:
        return forest, costs
    last = _order.last_descendant(forest.parent)
    causes = _causes(forest, last, roots, begin, end)
    hangings = _hangings(forest, costs, last, _hung(forest, last, modules, roots, *causes))
    gone = _covered(forest.row.size, roots.node, last[roots.node])
    return _joined(forest, costs, last, gone, hangings)


def _ranges(first: Ints, counts: Ints) -> Ints:
    """The numbers from each `first` on, `counts` of them."""
    stop = np.cumsum(counts)
    total = int(stop[-1]) if stop.size else 0
    return np.repeat(first - (stop - counts), counts) + np.arange(total)


def _covered(n: int, first: Ints, last: Ints) -> Bools:
    """Which of n nodes lie in one of the ranges, ends included. The ranges do not overlap."""
    edges = np.zeros(n + 1, np.int8)
    edges[first] += 1
    np.subtract.at(edges, last + 1, 1)
    return np.cumsum(edges[:-1], dtype=np.int8) > 0


def _looked_up(keys: Times, values: Ints, wanted: Times) -> Ints:
    """The value of each wanted key, −1 for unknown ones. Keys ascend."""
    if not keys.size:
        return np.full(wanted.size, -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, values[at], -1)


def _arrows(events: Events) -> tuple[Times, Times]:
    """Starts and ends of the arrows. Of several from one time the last counts, in the place of the first."""
    known = ["fwdbwd", "forward_backward"] if events.dialect.is_mlu else ["fwdbwd"]
    table = events.trace.arrows
    table = table.filter(table["recorded_category"].cast(str).is_in(known))
    begin, end = (events.us(table[key].to_numpy()) for key in ("from_ts_ns", "to_ts_ns"))
    number, first = _order.first_in_groups(begin)
    latest = np.empty(first.size, end.dtype)
    latest[number] = end
    return begin[first], latest


def _outermost(forest: Forest) -> tuple[Ints, _Roots]:
    """Modules and backward roots that only steps enclose."""
    is_module = forest.kind == MODULE
    if not is_module.any():
        return np.empty(0, np.int64), _Roots(np.empty(0, np.int64), np.empty(0, np.int64))
    closed = (forest.role != ROOT) & (forest.role != STEP_NODE)
    around = intervals.nearest(forest.parent, closed)[forest.parent]
    free = closed & (around < 0)
    node = np.flatnonzero(free & ~is_module & _named(forest, BACKWARD_PREFIX))
    # The roots of one parent come together, whatever lies between them.
    number, _ = _order.first_in_groups(forest.parent[node])
    node = node[np.argsort(number, kind="stable")]
    # Gradients are accumulated right after the operator that made them. Where that comes first of all, the plugin
    # fails; here it is a group of its own.
    starts = ~np.array([name == ACCUMULATE_GRAD for name in forest.names])[forest.name[node]]
    starts[:1] = True
    return np.flatnonzero(free & is_module), _Roots(node, np.flatnonzero(starts))


def _named(forest: Forest, prefix: str) -> Bools:
    flags: Bools = np.array([name.startswith(prefix) for name in forest.names])[forest.name]
    return flags


def _causes(forest: Forest, last: Ints, roots: _Roots, begin: Times, end: Times) -> tuple[Times, Ints]:
    """Starts of forward operators, ascending, and the group of backward roots that each causes."""
    below = _ranges(roots.node + 1, last[roots.node] - roots.node)
    times, at = np.unique(forest.start[below], return_index=True)
    above = forest.parent[below[at]]  # of the first node that starts then
    is_root = _named(forest, BACKWARD_PREFIX)
    found = _looked_up(times, above, end)
    far = np.flatnonzero((found >= 0) & ~is_root[found])
    while far.size:
        found[far] = _looked_up(times, above, forest.start[found[far]])
        far = far[(found[far] >= 0) & ~is_root[found[far]]]
    group = np.full(forest.row.size + 1, -1, np.int64)
    group[roots.node[roots.first]] = np.arange(roots.first.size)
    caused = group[found]
    # A root that two forwards claim, and one within another (re-entrant autograd), make the plugin fail. Here the
    # first forward has it, and the inner one stays where it is.
    known = np.flatnonzero(caused >= 0)
    _, first = _order.first_in_groups(caused[known])
    known = known[first]
    known = known[np.argsort(begin[known], kind="stable")]
    return begin[known], caused[known]


@dataclass(frozen=True, slots=True)
class _Hung:
    """Backward roots to hang: the root's node, the module it goes below, and the forward operator that caused it."""

    is_module: Bools
    node: Ints
    module: Ints
    cause: Ints


def _hung(forest: Forest, last: Ints, modules: Ints, roots: _Roots, times: Times, groups: Ints) -> _Hung:
    """Every operator below a module brings the backward roots of its start, so nested ones bring them twice."""
    inside = _covered(forest.row.size, modules, last[modules])
    is_module = inside & (forest.kind == MODULE)
    ops = np.flatnonzero(inside & forest.is_op)
    group = _looked_up(times, groups, forest.start[ops])
    ops, group = ops[group >= 0], group[group >= 0]
    place, node = roots.members(group)
    return _Hung(is_module, node, intervals.nearest(forest.parent, is_module)[ops[place]], ops[place])


def _hangings(forest: Forest, costs: Costs, last: Ints, hung: _Hung) -> _Hangings:
    # A module without any backward makes the plugin fail; here nothing is made for it.
    modules = np.flatnonzero(hung.is_module)
    first, stop = (np.searchsorted(hung.cause, bound) for bound in (modules, last[modules] + 1))
    modules = modules[first < stop]
    n = modules.size
    number = np.full(forest.row.size + 1, -1, np.int64)
    number[modules] = np.arange(n)
    up = number[intervals.nearest(forest.parent, hung.is_module)[forest.parent[modules]]]
    inner = np.flatnonzero(up >= 0)
    owner = np.concatenate((number[hung.module], up[inner]))
    made = np.concatenate((np.full(hung.node.size, -1), inner))
    node = np.concatenate((hung.node, np.full(inner.size, -1)))
    turn = np.concatenate((hung.cause, modules[inner]))
    at = np.empty(n, np.int64)
    at[inner] = hung.node.size + np.arange(inner.size)  # where each backward node hangs
    start, finish = forest.start[node], forest.end[node]
    size = last[node] - node + 1
    device, tc, eligible = costs.device_total[node], costs.tc_total[node], costs.eligible[node]
    begin, end = np.zeros(n, start.dtype), np.zeros(n, start.dtype)
    sums = [np.zeros(n, values.dtype) for values in (size, device, tc, start)]
    any_eligible = np.zeros(n, bool)
    order = np.empty(0, np.int64)
    things = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[things], np.arange(n + 1))
    for owners in reversed(_order.levels(up)):  # the innermost first: their times make those of what is around them
        mine = things[_ranges(bounds[owners], bounds[owners + 1] - bounds[owners])]
        mine = mine[np.lexsort((turn[mine], -finish[mine], start[mine], owner[mine]))]
        of = owner[mine]
        begin[of[::-1]], end[of] = start[mine[::-1]], finish[mine]
        for total, values in zip(sums, (size, device, tc, finish - start), strict=True):
            np.add.at(total, of, values[mine])
        np.logical_or.at(any_eligible, of, eligible[mine])
        sums[0][owners] += 1
        nested = owners[up[owners] >= 0]
        start[at[nested]], finish[at[nested]], eligible[at[nested]] = begin[nested], end[nested], any_eligible[nested]
        for total, values in zip(sums, (size, device, tc), strict=False):
            values[at[nested]] = total[nested]
        order = np.concatenate((order, mine))
    offset = np.empty(order.size, np.int64)
    before = np.cumsum(size[order]) - size[order]
    is_first = np.flatnonzero(np.diff(owner[order], prepend=-1))
    offset[order] = 1 + before - np.repeat(before[is_first], np.diff(np.append(is_first, order.size)))
    return _Hangings(modules, up, begin, end, sums[0], owner, node, made, offset, *sums[1:], any_eligible)


def _places(forest: Forest, last: Ints, gone: Bools, root: int, begin: Times, end: Times) -> tuple[Ints, Ints]:
    """For ranges by start: the node of the main tree that takes each, and the node before which it comes; −1: none.

    A range goes down into whatever it overlaps, as long as that has children, and the next one goes on from there. One
    that lies outside the tree's range vanishes.
    """
    into, before = np.full(begin.size, -1, np.int64), np.full(begin.size, -1, np.int64)
    node, (children, ends), at = root, _children(forest, last, gone, root), 0
    around: list[tuple[int, tuple[Ints, Times], int]] = []
    i = 0
    while i < begin.size:
        if end[i] < forest.start[node]:
            i += 1
            continue
        if begin[i] > forest.end[node]:
            if not around:
                break
            node, (children, ends), at = around.pop()
            at += 1
            continue
        while at < children.size:
            at += int(np.searchsorted(ends[at:], begin[i], side="right"))
            if at == children.size or end[i] < forest.start[children[at]]:
                break
            around.append((node, (children, ends), at))
            node, at = int(children[at]), 0
            children, ends = _children(forest, last, gone, node)
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
    tops = np.flatnonzero(np.isin(forest.parent, roots) & _named(forest, BACKWARD_PREFIX))
    others = roots[forest.thread[roots] != forest.thread[tops[0]]] if tops.size else roots
    others = others if others.size else roots
    return int(others[np.argmax(forest.end[others] - forest.start[others])])


def _joined(forest: Forest, costs: Costs, last: Ints, gone: Bools, hangings: _Hangings) -> tuple[Forest, Costs]:
    """The trees without what is gone, with what hangs."""
    n = forest.row.size
    tops = np.flatnonzero(hangings.up < 0)
    tops = tops[np.lexsort((-hangings.end[tops], hangings.begin[tops]))]
    into, before = _places(forest, last, gone, _main_root(forest), hangings.begin[tops], hangings.end[tops])
    tops, into, before = tops[into >= 0], into[into >= 0], before[into >= 0]
    size = hangings.size[tops]
    kept = _with_children(forest, last, gone, into)
    rank = np.append(0, np.cumsum(kept))
    added = np.zeros(n + 1, np.int64)
    np.add.at(added, before, size)
    place = np.where(kept, rank[:-1] + np.cumsum(added)[:-1], -1)
    # Where each backward node goes, from the outermost inwards.
    spot = np.full(hangings.module.size, -1, np.int64)
    spot[tops] = rank[before] + np.cumsum(size) - size
    nested = np.flatnonzero(hangings.made >= 0)
    of_made = np.empty(spot.size, np.int64)
    of_made[hangings.made[nested]] = nested
    for level in _order.levels(hangings.up)[1:]:
        above = spot[hangings.up[level]]
        spot[level] = np.where(above >= 0, above + hangings.offset[of_made[level]], -1)
    made = np.flatnonzero(spot >= 0)
    source = np.full(int(rank[-1] + size.sum()), -1, np.int64)
    parent = source.copy()
    source[place[kept]] = np.flatnonzero(kept)
    above = forest.parent[kept]
    parent[place[kept]] = np.where(above >= 0, place[above], -1)
    above = hangings.up[made]
    parent[spot[made]] = np.where(above >= 0, spot[above], -1)
    parent[spot[tops]] = place[into]
    hung = np.flatnonzero((hangings.node >= 0) & (spot[hangings.owner] >= 0))
    node, owner = hangings.node[hung], spot[hangings.owner[hung]]
    length = last[node] - node + 1
    at, old = _ranges(owner + hangings.offset[hung], length), _ranges(node, length)
    source[at] = old
    parent[at] = np.where(old == np.repeat(node, length), np.repeat(owner, length), forest.parent[old] + at - old)
    return _renumbered(forest, source, parent, place, made, spot, hangings), _carried(costs, source, made, spot, hangings)


def _with_children(forest: Forest, last: Ints, gone: Bools, into: Ints) -> Bools:
    """What stays: all that is not gone, but for roots with nothing below."""
    count = np.append(0, np.cumsum(~gone))
    roots = np.flatnonzero(forest.parent < 0)
    filled = (count[last[roots] + 1] - count[roots] > 1) | np.isin(roots, into)
    kept = ~gone
    kept[roots[~filled]] = False
    return kept


def _renumbered(
    forest: Forest, source: Ints, parent: Ints, place: Ints, made: Ints, spot: Ints, hangings: _Hangings
) -> Forest:
    """The nodes in their new order with backward nodes filled in; claims follow every copy of their node."""
    new = replace(taken(forest, source), parent=parent)
    at, module = spot[made], hangings.module[made]
    named, code = np.unique(forest.name[module], return_inverse=True)
    new.row[at], new.role[at], new.kind[at], new.is_op[at] = -1, BACKWARD, IGNORED, False
    new.start[at], new.end[at] = hangings.begin[made], hangings.end[made]
    new.name[at] = len(forest.names) + code
    # A backward node's thread is that of the first operator below it.
    follower = np.where(source >= 0, np.arange(source.size), source.size)
    follower = np.minimum.accumulate(follower[::-1])[::-1]
    new.thread[at] = new.thread[follower[at]]
    by_node = np.argsort(forest.claim_node, kind="stable")
    counts = np.bincount(forest.claim_node, minlength=forest.row.size)
    real = np.flatnonzero(source >= 0)
    counts, first = counts[source[real]], (np.cumsum(counts) - counts)[source[real]]
    loose = place[forest.loose]
    return replace(
        new, names=[*forest.names, *(forest.names[i] + ".backward" for i in named.tolist())],
        claim_call=forest.claim_call[by_node[_ranges(first, counts)]], claim_node=np.repeat(real, counts),
        loose=loose[loose >= 0],
    )  # fmt: skip


def _carried(costs: Costs, source: Ints, made: Ints, spot: Ints, hangings: _Hangings) -> Costs:
    """The times of all nodes; a backward node has no device work of its own."""
    length = hangings.end - hangings.begin
    filled = {
        "host_self": length - hangings.inner, "host_total": length, "device_self": 0 * hangings.device,
        "device_total": hangings.device, "tc_self": 0 * hangings.tc, "tc_total": hangings.tc,
        "eligible": hangings.eligible,
    }  # fmt: skip
    found = {}
    for key, values in filled.items():
        found[key] = getattr(costs, key)[source]
        found[key][spot[made]] = values[made]
    return Costs(**found)
