"""The plugin's trees of host work, one per thread, and the times of their nodes.

A tree holds operators, steps, modules, data loading and optimizer ranges. Calls and device work are not nodes: one
node claims them through the recorder's external id, whenever they ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import ANNOTATION, MODULE, NONE, OPERATOR, PL_MODULE, PYTHON, STEP
from stepscope.exports.tensorboard._names import EXCLUDED, is_collective, is_data_loading, is_eligible, is_optimizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events, Launches

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]

#: What a node is to the plugin. A plain node is an operator, a Python function or a collective's annotation.
ROOT, PLAIN, STEP_NODE, MODULE_NODE, LOADING, OPTIMIZER, BACKWARD = range(7)


class Forest(msgspec.Struct, frozen=True):
    """Nodes in pre-order, trees by first appearance of their thread. Node 0 of each tree is its root.

    `row` is the node's span, −1 for roots and for backward nodes, which have no span. `parent` indexes nodes, −1 for
    roots. `is_op` marks what counts in the table of operators. `claim_call` and `claim_node` pair calls (indices of
    `Launches.calls`) with nodes; a call of external id 0 may be paired twice. `loose` are roots that hold all kernels
    without a call. `name` is as in Events; numbers beyond its end are names of backward nodes.
    """

    row: Ints
    parent: Ints
    role: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    name: Ints
    names: list[str]
    thread: Ints
    start: Times
    end: Times
    is_op: Bools
    claim_call: Ints
    claim_node: Ints
    loose: Ints


def grow(events: Events, launches: Launches) -> Forest:
    """Trees of all threads without duplicates, before backward operators move: these are where they ran."""
    rows, role = _host_rows(events)
    order, starts = _by_thread(events, rows)
    rows, role = rows[order], role[order]  # threads by first appearance, within one by time
    claims = _claims(events, launches, rows)
    thread = events.thread[rows]
    begin, end = events.ts[rows], events.end[rows]
    tree = np.repeat(np.arange(starts.size), np.diff(np.append(starts, rows.size)))
    nested = np.lexsort((-end, begin, tree))
    parent, stays = _order.nest(begin[nested], end[nested], tree[nested])
    # Roots come first in their tree.
    n_roots = starts.size
    place = np.full(rows.size, -1, np.int64)
    place[nested[stays]] = np.arange(int(stays.sum())) + tree[nested[stays]] + 1
    root_at = np.searchsorted(tree[nested[stays]], np.arange(n_roots)) + np.arange(n_roots)
    n = int(stays.sum()) + n_roots
    source = np.full(n, -1, np.int64)
    source[place[nested[stays]]] = nested[stays]
    is_root = source < 0
    up = np.full(n, -1, np.int64)
    inner = parent[stays]
    up[place[nested[stays]]] = np.where(inner >= 0, place[nested[inner]], root_at[tree[nested[stays]]])
    begin, end = begin[source], end[source]
    # A root reaches from its first child to the end of its last.
    top = np.flatnonzero(np.isin(up, root_at))
    begin[up[top[::-1]]], end[up[top]] = begin[top[::-1]], end[top]
    forest = Forest(
        row=np.where(is_root, -1, rows[source]),
        parent=up,
        role=np.where(is_root, ROOT, role[source]).astype(np.uint8),
        kind=np.where(is_root, PYTHON, events.kind[rows[source]]).astype(np.uint8),
        name=np.where(is_root, len(events.names), events.name[rows[source]].astype(np.int64)),
        names=[*events.names, "CallTreeRoot"],
        thread=np.where(is_root, thread[starts][np.cumsum(is_root) - 1], thread[source]),
        start=begin,
        end=end,
        is_op=np.zeros(n, bool),
        claim_call=claims[0],
        claim_node=place[claims[1]],
        loose=np.empty(0, np.int64),
    )
    forest = _with_roots(events, launches, forest, root_at)
    forest = _without_duplicates(forest)
    return replace(forest, is_op=operators_among(forest))


def _host_rows(events: Events) -> tuple[Ints, NDArray[np.uint8]]:
    """Spans that become nodes, by time, and their roles."""
    rows = events.rows(OPERATOR, ANNOTATION, STEP, PYTHON, MODULE, PL_MODULE)
    loading, optimizer = events.where(is_data_loading, rows), events.where(is_optimizer, rows)
    role = np.full(rows.size, PLAIN, np.uint8)
    role[optimizer] = OPTIMIZER
    role[loading] = LOADING
    kind = events.kind[rows]
    role[kind == STEP] = STEP_NODE
    role[(kind == MODULE) | (kind == PL_MODULE)] = MODULE_NODE
    wanted = (kind != ANNOTATION) | loading | optimizer | events.where(is_collective, rows)
    return rows[wanted], role[wanted]


def _by_thread(events: Events, rows: Ints) -> tuple[Ints, Ints]:
    """Order of the rows by thread, in order of first appearance, and where each thread starts."""
    thread = events.thread[rows]
    first = np.full(len(events.threads), rows.size, np.int64)
    first[thread[::-1]] = np.arange(rows.size - 1, -1, -1)
    order = np.argsort(first[thread], kind="stable")
    ranked = first[thread][order]
    starts = np.flatnonzero(np.diff(ranked, prepend=-1) != 0) if rows.size else np.empty(0, np.int64)
    return order, starts


def _claims(events: Events, launches: Launches, rows: Ints) -> tuple[Ints, Ints]:
    """Pairs of call and host row (index into `rows`). The first node with an external id gets all its calls."""
    external = np.where(events.kind[rows] == MODULE, NONE, events.external[rows])
    order = np.argsort(external, kind="stable")
    ids = external[order]
    wanted = events.external[launches.calls]
    at = np.minimum(np.searchsorted(ids, wanted), max(ids.size - 1, 0))
    matches = np.flatnonzero(ids[at] == wanted) if ids.size else np.empty(0, np.int64)
    return matches, order[at[matches]]


def _with_roots(events: Events, launches: Launches, forest: Forest, roots: Ints) -> Forest:
    """Calls of id 0 also belong to the root of their thread; loose kernels belong to roots of threads with steps."""
    free = np.flatnonzero(events.external[launches.calls] == 0)
    root_of = np.full(len(events.threads), -1, np.int64)
    root_of[forest.thread[roots]] = roots
    root = root_of[events.thread[launches.calls[free]]]
    has_step = np.zeros(len(events.threads), bool)
    has_step[events.thread[events.rows(STEP)]] = True
    lost = forest.claim_node < 0  # of nodes that overlap others
    return replace(
        forest,
        claim_call=np.concatenate((forest.claim_call[~lost], free[root >= 0])),
        claim_node=np.concatenate((forest.claim_node[~lost], root[root >= 0])),
        loose=roots[has_step[forest.thread[roots]]],
    )


def _without_duplicates(forest: Forest) -> Forest:
    """An operator whose only child has the same name gets the child's children and calls instead of its own calls."""
    n = forest.row.size
    n_children = np.bincount(forest.parent[forest.parent >= 0], minlength=n)
    up = np.maximum(forest.parent, 0)
    both = (forest.kind == OPERATOR) & (forest.kind[up] == OPERATOR)
    swallowed = (forest.parent >= 0) & both & (n_children[up] == 1) & (forest.name == forest.name[up])
    if not swallowed.any():
        return forest
    top = np.arange(n)
    chain = np.flatnonzero(swallowed)
    top[chain] = forest.parent[chain]
    while swallowed[top[chain]].any():
        top[chain] = top[top[chain]]
    # In a chain of operators of one name, only the calls of the innermost one stay.
    innermost = np.ones(n, bool)
    innermost[forest.parent[chain]] = False
    keeps = innermost[forest.claim_node]
    remaining = np.flatnonzero(~swallowed)
    place = np.full(n, -1, np.int64)
    place[remaining] = np.arange(remaining.size)
    parent = forest.parent[remaining]
    parent = np.where(parent >= 0, place[top[parent]], -1)
    return replace(
        taken(forest, remaining), parent=parent, claim_call=forest.claim_call[keeps],
        claim_node=place[top[forest.claim_node[keeps]]], loose=place[forest.loose],
    )  # fmt: skip


def taken(forest: Forest, nodes: Ints) -> Forest:
    """The nodes at these places, in that order. References to nodes are not renumbered yet."""
    return replace(
        forest, row=forest.row[nodes], parent=forest.parent[nodes], role=forest.role[nodes], kind=forest.kind[nodes],
        name=forest.name[nodes], thread=forest.thread[nodes], start=forest.start[nodes], end=forest.end[nodes],
        is_op=forest.is_op[nodes],
    )  # fmt: skip


def operators_among(forest: Forest) -> Bools:
    """Which nodes are rows of the table of operators."""
    counted = np.array([n not in EXCLUDED and not n.startswith("Optimizer.") for n in forest.names], bool)
    is_operator: Bools = (forest.role == PLAIN) & (forest.kind == OPERATOR) & counted[forest.name]
    return is_operator


class Costs(msgspec.Struct, frozen=True):
    """Times of each node in µs. Device times are plain sums over kernels, copies and fills; `tc` are tensor cores'."""

    host_self: Times
    host_total: Times
    device_self: Times
    device_total: Times
    tc_self: Times
    tc_total: Times
    eligible: Bools


def costs_of(events: Events, launches: Launches, forest: Forest, uses_tc: Bools) -> Costs:
    """Times of all nodes. `uses_tc` says for each item of `launches.work` whether it uses tensor cores.

    Own host time may be negative, because calls that an operator claims may run outside it. Values are added one by one
    in the plugin's order, children before calls, because half a µs decides what is shown.
    """
    length = events.end[launches.work] - events.ts[launches.work]
    work = launches.summed(length), launches.summed(np.where(uses_tc, length, 0))
    claims = tuple(values[forest.claim_call] for values in work)
    own = tuple(_per_node(forest, values) for values in claims)
    host_total = np.where(forest.role == ROOT, 0, forest.end - forest.start)
    child = np.flatnonzero(forest.parent >= 0)
    host_self = host_total.copy()
    np.subtract.at(host_self, forest.parent[child], host_total[child])
    np.subtract.at(host_self, forest.claim_node, _claimed_lengths(events, launches, forest))
    device_total, tc_total = _order.sums_below(forest.parent, forest.claim_node, claims)
    names = np.array([is_eligible(name) for name in forest.names])[forest.name]
    eligible = names | ((forest.kind == OPERATOR) & (own[1] > 0))
    eligible = _order.inherited(eligible, forest.kind == OPERATOR, forest.parent)
    device_self = own[0]
    direct = child[forest.is_op[child] & (forest.role[forest.parent[child]] == MODULE_NODE)]
    np.add.at(device_self, forest.parent[direct], device_total[direct])
    return Costs(host_self, host_total, device_self, device_total, own[1], tc_total, eligible)


def _per_node(forest: Forest, values: Times) -> Times:
    """Per node the sum of a value of its claims."""
    sums = np.zeros(forest.row.size, values.dtype)
    np.add.at(sums, forest.claim_node, values)
    return sums


def _claimed_lengths(events: Events, launches: Launches, forest: Forest) -> Times:
    """How much each claimed call reduces its node's own time."""
    rows = launches.calls[forest.claim_call]
    length: Times = events.end[rows] - events.ts[rows]
    if not events.dialect.is_mlu:
        return length
    # Cambricon's calls nest (cnnl… around cn…). Inner calls count only as a part of the call around them.
    order = np.lexsort((-events.end[rows], events.ts[rows], forest.claim_node))
    end, node = events.end[rows][order], forest.claim_node[order]
    # The values are ranks, so that one running maximum works for all nodes.
    reach = np.searchsorted(np.sort(end), end) + node * (end.size + 1)
    inner = order[1:][(node[1:] == node[:-1]) & (reach[1:] <= np.maximum.accumulate(reach)[:-1])]
    length[inner] = 0
    return length
