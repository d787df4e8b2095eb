"""Backward operators as the plugin shows them: below the module whose forward pass caused them, not where they ran.

A trace with modules and with arrows from forward to backward operators loses its backward roots (the ranges that the
autograd engine evaluates). A root whose forward operator lies in a module returns below an added node
`<module>.backward`, whose time places it in the main thread's tree. Views that read the trees lack all other roots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.core import intervals
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import IGNORED, MODULE
from stepscope.exports.tensorboard._forest import BACKWARD, ROOT, STEP_NODE, Costs, taken
from stepscope.exports.tensorboard._names import ACCUMULATE_GRAD, BACKWARD_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]


class Grafts(msgspec.Struct, frozen=True):
    """Backward nodes to add, one per module, and the items (backward roots and backward nodes) below them.

    Per backward node: `module` is its module's node, `up` the backward node around it (−1: none), `size` how many
    nodes its subtree has, `at` its own item (−1 for an outermost one, which is no item). `costs` are its times.
    Per item: `owner` is the backward node above it, `node` its backward root (or −1), `made` its backward node (or −1),
    `offset` how far after its owner it comes in pre-order.
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
    """The trees without the removed nodes and with the grafts; `last` is each node's last descendant."""
    tops = np.flatnonzero(grafts.up < 0)
    tops = tops[np.lexsort((-grafts.end[tops], grafts.start[tops]))]
    into, before = _places(forest, last, gone, grafts.start[tops], grafts.end[tops])
    tops, into, before = tops[into >= 0], into[into >= 0], before[into >= 0]
    stays = _remaining(forest, last, gone, into)
    # New numbers: of nodes that stay, then of backward nodes, from the outermost inwards.
    rank = np.append(0, np.cumsum(stays))
    size = grafts.size[tops]
    added = np.zeros(stays.size + 1, np.int64)
    np.add.at(added, before, size)
    place = np.where(stays, rank[:-1] + np.cumsum(added)[:-1], -1)
    spot = np.full(grafts.module.size, -1, np.int64)
    spot[tops] = rank[before] + np.cumsum(size) - size
    for level in _order.levels(grafts.up)[1:]:
        around = spot[grafts.up[level]]
        spot[level] = np.where(around >= 0, around + grafts.offset[grafts.at[level]], -1)
    source = np.full(int(rank[-1] + size.sum()), -1, np.int64)  # the old node; −1 for backward nodes
    parent = source.copy()
    source[place[stays]] = np.flatnonzero(stays)
    parent[place[stays]] = np.append(place, -1)[forest.parent[stays]]
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

    A range descends into nodes that it overlaps until there are none, and the next range continues from there. Ranges
    outside the tree's own range get −1 and are dropped.
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
    children = node + 1 + np.flatnonzero((forest.parent[below] == node) & ~gone[below])
    return children, forest.end[children]


def _main_root(forest: Forest) -> int:
    """The root of the main thread: the last root with steps, or without steps the longest root.

    The thread on which backward operators ran is then left out, unless it is the only one.
    """
    if forest.loose.size:
        return int(forest.loose[-1])
    roots = np.flatnonzero(forest.parent < 0)
    is_top = (forest.parent >= 0) & (forest.role[forest.parent] == ROOT)
    is_backward = np.array([name.startswith(BACKWARD_PREFIX) for name in forest.names])[forest.name]
    backward = forest.thread[np.flatnonzero(is_top & is_backward)[0]]  # without steps there is nothing else above them
    forward_roots = roots[forest.thread[roots] != backward]
    forward_roots = forward_roots if forward_roots.size else roots
    return int(forward_roots[np.argmax(forest.end[forward_roots] - forest.start[forward_roots])])


def _remaining(forest: Forest, last: Ints, gone: Bools, into: Ints) -> Bools:
    """Which nodes stay: those that are not removed, except roots with nothing below."""
    stays = ~gone
    count = np.append(0, np.cumsum(stays))
    roots = np.flatnonzero(forest.parent < 0)
    stays[roots] = (count[last[roots] + 1] - count[roots] > 1) | np.isin(roots, into)
    return stays


def _renumbered(forest: Forest, source: Ints, parent: Ints, place: Ints) -> Forest:
    """The nodes in their new order. Every copy of a node has the node's claims."""
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
    columns = {}
    for column in Costs.__struct_fields__:
        columns[column] = getattr(costs, column)[source]
        columns[column][spot] = getattr(grafts.costs, column)[made]
    return Costs(**columns)


def rehung(events: Events, forest: Forest, costs: Costs) -> tuple[Forest, Costs]:
    """The trees with backward operators below their modules, and all times in µs.

    Without arrows, modules or backward operators nothing changes. Nodes that stay keep their times from the first
    trees, so a step keeps the device time of backward operators that were moved out of it. Roots with nothing below are
    dropped.
    """
    starts, ends = _arrows(events)
    if not starts.size or not (forest.kind == MODULE).any():
        return forest, costs
    modules, roots = _outermost(forest)
    if not modules.size or not roots.node.size:
        return forest, costs
    last = _order.last_descendant(forest.parent)
    inside = _covered(forest.row.size, modules, last[modules])
    hung = _hung(forest, roots, inside, *_causes(forest, last, roots, starts, ends))
    gone = _covered(forest.row.size, roots.node, last[roots.node])
    return grafted(forest, costs, last, gone, _grafts(forest, costs, last, hung))


class _Roots(msgspec.Struct, frozen=True):
    """Backward roots in the plugin's order. Roots of one group move together. Group i begins at `first[i]`."""

    node: Ints
    first: Ints

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """All pairs of the groups (repeats allowed) with their roots: places in `groups`, and nodes."""
        counts = np.diff(np.append(self.first, self.node.size))[groups]
        return np.repeat(np.arange(groups.size), counts), self.node[ranges(self.first[groups], counts)]


class _Hung(msgspec.Struct, frozen=True):
    """Backward roots to move, repeats allowed: nodes of the root, of its forward operator and of that one's module.

    `is_module` marks all modules that may get a backward node.
    """

    is_module: Bools
    root: Ints
    cause: Ints
    module: Ints


def _covered(n: int, first: Ints, last: Ints) -> Bools:
    """Which of n nodes lie in one of the ranges, ends included. The ranges do not overlap."""
    edges = np.zeros(n + 1, np.int8)
    edges[first] += 1
    edges[last + 1] -= 1
    return np.cumsum(edges[:-1], dtype=np.int8) > 0


def looked_up(keys: Times, values: Ints, wanted: Times) -> Ints:
    """The value of each wanted key, −1 for unknown ones. Keys ascend."""
    if not keys.size:
        return np.full(wanted.size, -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, values[at], -1)


def _arrows(events: Events) -> tuple[Times, Times]:
    """Starts and ends of the arrows. Of arrows with the same start the last counts, in the place of the first."""
    known = ["fwdbwd", "forward_backward"] if events.dialect.is_mlu else ["fwdbwd"]
    table = events.trace.arrows
    table = table.filter(table["recorded_category"].cast(str).is_in(known))
    starts, ends = (events.us(table[key].to_numpy()) for key in ("from_ts_ns", "to_ts_ns"))
    number, first = _order.first_in_groups(starts)
    latest = np.empty(first.size, ends.dtype)
    latest[number] = ends
    return starts[first], latest


def _outermost(forest: Forest) -> tuple[Ints, _Roots]:
    """Modules and backward roots that only steps enclose."""
    is_module = forest.kind == MODULE
    closed = (forest.role != ROOT) & (forest.role != STEP_NODE)
    free = closed & (intervals.nearest(forest.parent, closed)[forest.parent] < 0)
    node = np.flatnonzero(free & ~is_module & _named(forest, _is_root))
    # The roots of one parent are adjacent, even if other nodes lie between them.
    number, _ = _order.first_in_groups(forest.parent[node])
    node = node[np.argsort(number, kind="stable")]
    # Gradients are accumulated right after the operator that made them, and move with it. The plugin fails if the
    # accumulation comes first of all; here it is a group of its own.
    opens = ~_named(forest, lambda name: name == ACCUMULATE_GRAD)[node]
    opens[:1] = True
    return np.flatnonzero(free & is_module), _Roots(node, np.flatnonzero(opens))


def _is_root(name: str) -> bool:
    return name.startswith(BACKWARD_PREFIX)


def _named(forest: Forest, holds: Callable[[str], bool]) -> Bools:
    """Whether each node's name fulfils the condition."""
    flags: Bools = np.array([holds(name) for name in forest.names], bool)[forest.name]
    return flags


def _causes(forest: Forest, last: Ints, roots: _Roots, starts: Times, ends: Times) -> tuple[Times, Ints]:
    """Starts of forward operators, ascending, and the group of backward roots that each causes.

    An arrow ends at an operator below a root. The root is then looked up by start times, as in the plugin.
    """
    below = ranges(roots.node + 1, last[roots.node] - roots.node)
    times, at = np.unique(forest.start[below], return_index=True)
    above = forest.parent[below[at]]  # of the first node that starts then
    is_root = _named(forest, _is_root)
    cause = looked_up(times, above, ends)
    far = np.flatnonzero((cause >= 0) & ~is_root[cause])
    while far.size:
        cause[far] = looked_up(times, above, forest.start[cause[far]])
        far = far[(cause[far] >= 0) & ~is_root[cause[far]]]
    group = np.full(forest.row.size + 1, -1, np.int64)
    group[roots.node[roots.first]] = np.arange(roots.first.size)
    group = group[cause]
    # The plugin fails at a root that two forward operators claim, and at a root inside another (re-entrant autograd).
    # Here the first forward operator gets the root, and an inner root stays where it is.
    known = np.flatnonzero(group >= 0)
    _, first = _order.first_in_groups(group[known])
    known = known[first]
    known = known[np.argsort(starts[known], kind="stable")]
    return starts[known], group[known]


def _hung(forest: Forest, roots: _Roots, inside: Bools, times: Times, groups: Ints) -> _Hung:
    """Each operator below a module adds the roots caused at its start. Of operators that start together each does."""
    is_module = inside & (forest.kind == MODULE)
    ops = np.flatnonzero(inside & forest.is_op)
    group = looked_up(times, groups, forest.start[ops])
    ops, group = ops[group >= 0], group[group >= 0]
    place, root = roots.members(group)
    cause = ops[place]
    return _Hung(is_module, root, cause, intervals.nearest(forest.parent, is_module)[cause])


def _grafts(forest: Forest, costs: Costs, last: Ints, hung: _Hung) -> Grafts:
    """The backward nodes to add, with times and sums of what is below them, the innermost first."""
    # The plugin fails at a module without backward operators; here such a module gets no node.
    modules = np.flatnonzero(hung.is_module)
    modules = modules[np.searchsorted(hung.cause, modules) < np.searchsorted(hung.cause, last[modules] + 1)]
    number = np.full(forest.row.size + 1, -1, np.int64)
    number[modules] = np.arange(modules.size)
    up = number[intervals.nearest(forest.parent, hung.is_module)[forest.parent[modules]]]
    # The items: backward roots, then backward nodes below others, whose values follow.
    inner = np.flatnonzero(up >= 0)
    n_roots = hung.root.size
    owner = np.concatenate((number[hung.module], up[inner]))
    turn = np.concatenate((hung.cause, modules[inner]))
    node = np.concatenate((hung.root, np.full(inner.size, -1)))
    made = np.concatenate((np.full(n_roots, -1), inner))
    at = np.full(modules.size, -1, np.int64)
    at[inner] = n_roots + np.arange(inner.size)
    start, end, eligible = forest.start[node], forest.end[node], costs.eligible[node]
    parts = [last[node] - node + 1, costs.device_total[node], costs.tc_total[node], end - start]
    own_start, own_end = (np.zeros(modules.size, values.dtype) for values in (start, end))
    own_eligible = np.zeros(modules.size, bool)
    sums = [np.zeros(modules.size, values.dtype) for values in parts]
    by_owner = np.argsort(owner, kind="stable")
    first = np.searchsorted(owner[by_owner], np.arange(modules.size + 1))
    order = [np.empty(0, np.int64)]
    for level in reversed(_order.levels(up)):
        mine = by_owner[ranges(first[level], first[level + 1] - first[level])]
        mine = mine[np.lexsort((turn[mine], -end[mine], start[mine], owner[mine]))]
        order.append(mine)
        of = owner[mine]
        own_start[of[::-1]], own_end[of] = start[mine[::-1]], end[mine]  # of the first, of the last that starts
        for total, values in zip(sums, parts, strict=True):
            np.add.at(total, of, values[mine])
        np.logical_or.at(own_eligible, of, eligible[mine])
        sums[0][level] += 1
        done = level[up[level] >= 0]
        start[at[done]], end[at[done]], eligible[at[done]] = own_start[done], own_end[done], own_eligible[done]
        for total, values in zip((*sums[:3], own_end - own_start), parts, strict=True):
            values[at[done]] = total[done]
    size, device, tc, inside = sums
    length = own_end - own_start
    nothing = 0 * device
    return Grafts(
        module=modules, up=up, start=own_start, end=own_end, size=size,
        costs=Costs(length - inside, length, nothing, device, nothing, tc, own_eligible),
        at=at, owner=owner, node=node, made=made, offset=_offsets(owner, parts[0], np.concatenate(order)),
    )  # fmt: skip


def _offsets(owner: Ints, size: Ints, order: Ints) -> Ints:
    """How far after its owner each item comes in pre-order. `order` lists the items of each owner in their order."""
    offset = np.empty(order.size, np.int64)
    before = np.cumsum(size[order]) - size[order]
    first = np.flatnonzero(np.diff(owner[order], prepend=-1))
    offset[order] = 1 + before - np.repeat(before[first], np.diff(np.append(first, order.size)))
    return offset
