"""Backward operators as the plugin shows them: below the module whose forward caused them, not where they ran.

A trace with modules and with arrows from forward to backward operators loses its backward roots (the ranges that the
autograd engine evaluates). Those whose forward lies in a module come back below a made-up node `<module>.backward`,
put into the main thread's tree by its time. All others are gone from every view that reads the trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import intervals
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import MODULE
from stepscope.exports.tensorboard._forest import ROOT, STEP_NODE, Costs
from stepscope.exports.tensorboard._grafts import Grafts, grafted, ranges
from stepscope.exports.tensorboard._names import ACCUMULATE_GRAD, BACKWARD_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]


def rehung(events: Events, forest: Forest, costs: Costs) -> tuple[Forest, Costs]:
    """The trees with backward operators below their modules, and all times in µs.

    Without arrows, modules or backward operators nothing changes. The times of nodes that stay are those of the first
    trees: a step keeps the device time of backward operators that have left it. Roots with nothing below vanish.
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


@dataclass(frozen=True, slots=True)
class _Roots:
    """Backward roots in the plugin's order; those of one group are hung together. Group i begins at `first[i]`."""

    node: Ints
    first: Ints

    def members(self, groups: Ints) -> tuple[Ints, Ints]:
        """All pairs of the groups (repeats allowed) with their roots: places in `groups`, and nodes."""
        counts = np.diff(np.append(self.first, self.node.size))[groups]
        return np.repeat(np.arange(groups.size), counts), self.node[ranges(self.first[groups], counts)]


@dataclass(frozen=True, slots=True)
class _Hung:
    """Backward roots to hang, repeats allowed: node of the root, of the forward operator behind it, of its module.

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
    """Starts and ends of the arrows. Of several from one time the last counts, in the place of the first."""
    known = ["fwdbwd", "forward_backward"] if events.dialect.is_mlu else ["fwdbwd"]
    table = events.trace.arrows
    table = table.filter(table["recorded_category"].cast(str).is_in(known))
    starts, ends = (events.us(table[key].to_numpy()) for key in ("from_ts_ns", "to_ts_ns"))
    number, first = _order.first_in_groups(starts)
    latest = np.empty(first.size, ends.dtype)
    latest[number] = ends
    return starts[first], latest


def _outermost(forest: Forest) -> tuple[Ints, _Roots]:
    """Modules and backward roots that nothing but steps encloses."""
    is_module = forest.kind == MODULE
    closed = (forest.role != ROOT) & (forest.role != STEP_NODE)
    free = closed & (intervals.nearest(forest.parent, closed)[forest.parent] < 0)
    node = np.flatnonzero(free & ~is_module & _named(forest, _is_root))
    # The roots of one parent come together, whatever lies between them.
    number, _ = _order.first_in_groups(forest.parent[node])
    node = node[np.argsort(number, kind="stable")]
    # Gradients are accumulated right after the operator that made them, and hung with it. Where that comes first of
    # all, the plugin fails; here it is a group of its own.
    opens = ~_named(forest, lambda name: name == ACCUMULATE_GRAD)[node]
    opens[:1] = True
    return np.flatnonzero(free & is_module), _Roots(node, np.flatnonzero(opens))


def _is_root(name: str) -> bool:
    return name.startswith(BACKWARD_PREFIX)


def _named(forest: Forest, holds: Callable[[str], bool]) -> Bools:
    """For each node whether its name is such."""
    flags: Bools = np.array([holds(name) for name in forest.names], bool)[forest.name]
    return flags


def _causes(forest: Forest, last: Ints, roots: _Roots, starts: Times, ends: Times) -> tuple[Times, Ints]:
    """Starts of forward operators, ascending, and the group of backward roots that each causes.

    An arrow ends at some operator below a root; from there the way up leads by times of start, as in the plugin.
    """
    below = ranges(roots.node + 1, last[roots.node] - roots.node)
    times, at = np.unique(forest.start[below], return_index=True)
    above = forest.parent[below[at]]  # of the first node that starts then
    is_root = _named(forest, _is_root)
    found = looked_up(times, above, ends)
    far = np.flatnonzero((found >= 0) & ~is_root[found])
    while far.size:
        found[far] = looked_up(times, above, forest.start[found[far]])
        far = far[(found[far] >= 0) & ~is_root[found[far]]]
    group = np.full(forest.row.size + 1, -1, np.int64)
    group[roots.node[roots.first]] = np.arange(roots.first.size)
    group = group[found]
    # A root that two forwards claim, and one within another (re-entrant autograd), make the plugin fail. Here the
    # first forward has it, and the inner one stays where it is.
    known = np.flatnonzero(group >= 0)
    _, first = _order.first_in_groups(group[known])
    known = known[first]
    known = known[np.argsort(starts[known], kind="stable")]
    return starts[known], group[known]


def _hung(forest: Forest, roots: _Roots, inside: Bools, times: Times, groups: Ints) -> _Hung:
    """Every operator below a module brings the roots caused at its start: where two start together, both do."""
    is_module = inside & (forest.kind == MODULE)
    ops = np.flatnonzero(inside & forest.is_op)
    group = looked_up(times, groups, forest.start[ops])
    ops, group = ops[group >= 0], group[group >= 0]
    place, root = roots.members(group)
    cause = ops[place]
    return _Hung(is_module, root, cause, intervals.nearest(forest.parent, is_module)[cause])


def _grafts(forest: Forest, costs: Costs, last: Ints, hung: _Hung) -> Grafts:
    """The backward nodes to make, with times and sums from what hangs below, the innermost first."""
    # A module without any backward makes the plugin fail; here nothing is made for it.
    modules = np.flatnonzero(hung.is_module)
    modules = modules[np.searchsorted(hung.cause, modules) < np.searchsorted(hung.cause, last[modules] + 1)]
    number = np.full(forest.row.size + 1, -1, np.int64)
    number[modules] = np.arange(modules.size)
    up = number[intervals.nearest(forest.parent, hung.is_module)[forest.parent[modules]]]
    # What hangs: backward roots, then backward nodes below others, whose values follow.
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
    """How far behind its owner each thing comes in pre-order; `order` has the things of each owner in their order."""
    offset = np.empty(order.size, np.int64)
    before = np.cumsum(size[order]) - size[order]
    first = np.flatnonzero(np.diff(owner[order], prepend=-1))
    offset[order] = 1 + before - np.repeat(before[first], np.diff(np.append(first, order.size)))
    return offset
