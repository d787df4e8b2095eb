"""The plugin's diff of two runs: the first thread's trees, matched at steps, modules and other named ranges."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._events import MODULE
from stepscope.exports.tensorboard._forest import BACKWARD, LOADING, MODULE_NODE, OPTIMIZER, STEP_NODE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._forest import Costs, Forest

    Ints = NDArray[np.int64]

_ANCHORS = (STEP_NODE, MODULE_NODE, LOADING, OPTIMIZER, BACKWARD)
_COLUMNS = ("calls", "host_duration", "device_duration", "self_host_duration", "self_device_duration")

Sums = dict[str, list[Any]]


@dataclass(slots=True)
class _Pair:
    """Matched nodes of both runs and the pairs below them. Nodes that cannot be distinguished are matched together."""

    runs: tuple[Ints, Ints]
    below: list[int] = field(default_factory=list)


class _Side(msgspec.Struct, frozen=True):
    """The first tree of one run.

    The children of node i are `children[first[i] : first[i + 1]]`. `anchor` numbers the kind and name of nodes that can
    be matched. Both runs use the same numbers; all other nodes have −1.
    """

    forest: Forest
    costs: Costs
    last: Ints
    children: Ints
    first: Ints
    anchor: Ints

    def below(self, node: int) -> Ints:
        """A node's children."""
        return self.children[self.first[node] : self.first[node + 1]]


def diff(left: tuple[Forest, Costs], right: tuple[Forest, Costs]) -> dict[str, Any]:
    """The tree of differences of two runs, each given by its trees and times (backward operators below modules).

    Times are in µs. `duration` of a run sums its nodes' host times; `total_duration` sums each node's device time, or
    its host time if it has none. The aggregates hold all operators below, in order of first appearance.
    """
    numbers: dict[tuple[int, str], int] = {}
    runs = (_side(*left, numbers), _side(*right, numbers))
    pairs = _pairs(runs)
    shown = [_shown(side, [p.runs[i] for p in pairs], [p.below for p in pairs]) for i, side in enumerate(runs)]
    documents: list[dict[str, Any]] = []
    for pair, one, other in zip(pairs[::-1], *(s[::-1] for s in shown), strict=True):  # children before parents
        children = [documents[len(pairs) - 1 - i] for i in pair.below]
        documents.append({"left": one, "right": other, "children": children})
    return documents[-1]


def _side(forest: Forest, costs: Costs, numbers: dict[tuple[int, str], int]) -> _Side:
    """The first tree, with anchors numbered as in `numbers`, which grows."""
    size = int(np.searchsorted(np.cumsum(forest.parent < 0), 1, side="right"))
    parent = forest.parent[:size]
    children = np.argsort(parent, kind="stable")[1:]
    first = np.searchsorted(parent[children], np.arange(size + 1))
    role, name = forest.role[:size].astype(np.int64), forest.name[:size]
    is_anchor = np.isin(role, _ANCHORS) & ((role != MODULE_NODE) | (forest.kind[:size] == MODULE))
    key = np.where(is_anchor, role * len(forest.names) + name, -1)
    codes, inverse = np.unique(key, return_inverse=True)
    shared = [
        numbers.setdefault((code // len(forest.names), forest.names[code % len(forest.names)]), len(numbers))
        if code >= 0 else -1
        for code in codes.tolist()
    ]  # fmt: skip
    anchor = np.array(shared, np.int64)[inverse] if size else np.empty(0, np.int64)
    return _Side(forest, costs, _order.last_descendant(parent), children, first, anchor)


def _tops(side: _Side) -> Ints:
    """The nodes to compare: those in steps, or without steps those below the root."""
    if not side.anchor.size:
        return np.empty(0, np.int64)
    top = side.below(0)
    steps = top[side.forest.role[top] == STEP_NODE]
    return np.concatenate([side.below(step) for step in steps.tolist()]) if steps.size else top


def _pairs(runs: tuple[_Side, _Side]) -> list[_Pair]:
    """All pairs, parents before children."""
    pairs = [_Pair((_tops(runs[0]), _tops(runs[1])))]
    for pair in pairs:  # grows meanwhile
        lists = _compared(runs, *pair.runs)
        if lists is None:
            continue
        for part in _split(runs, *lists):
            pair.below.append(len(pairs))
            pairs.append(_Pair(part))
    return pairs


def _compared(runs: tuple[_Side, _Side], left: Ints, right: Ints) -> tuple[Ints, Ints] | None:
    """The nodes to match: the children of two nodes, or two lists of nodes."""
    if left.size == 1 and right.size == 1:
        return runs[0].below(int(left[0])), runs[1].below(int(right[0]))
    return (left, right) if left.size > 1 and right.size > 1 else None


def _split(runs: tuple[_Side, _Side], left: Ints, right: Ints) -> list[tuple[Ints, Ints]]:
    """Both lists split at their matches, which are parts themselves. Without matches there are no parts.

    Each anchor on the left matches the first of the same kind and name on the right after the previous match.
    """
    keys = runs[1].anchor[right]
    places: dict[int, list[int]] = {}
    for place in np.flatnonzero(keys >= 0).tolist():
        places.setdefault(int(keys[place]), []).append(place)
    keys = runs[0].anchor[left]
    parts: list[tuple[Ints, Ints]] = []
    l_done = r_done = 0
    for i in np.flatnonzero(keys >= 0).tolist():
        candidates = places.get(int(keys[i]), [])
        at = bisect_left(candidates, r_done)
        if at == len(candidates):
            continue
        j = candidates[at]
        parts += [(left[l_done:i], right[r_done:j]), (left[i : i + 1], right[j : j + 1])]
        l_done, r_done = i + 1, j + 1
    if parts:
        parts.append((left[l_done:], right[r_done:]))
    return [part for part in parts if part[0].size or part[1].size]


def _shown(side: _Side, nodes: list[Ints], below: list[list[int]]) -> list[dict[str, Any]]:
    """One side of each pair: its name, times and aggregates."""
    length = side.forest.end - side.forest.start
    device = side.costs.device_total
    leaves = [i for i, inner in enumerate(below) if not inner]
    sums: list[Sums] = [{} for _ in nodes]
    for leaf, by_name in zip(leaves, _summed(side, [nodes[i] for i in leaves]), strict=True):
        sums[leaf] = by_name
    for i in reversed(range(len(nodes))):  # parts come before their whole
        for part in below[i]:
            _add(sums[i], sums[part])
        if below[i] and nodes[i].size == 1 and side.forest.is_op[nodes[i][0]]:
            _add(sums[i], _own(side, int(nodes[i][0])))
    return [
        {
            "name": _title(side.forest, mine),
            "duration": length[mine].sum().item(),
            "device_duration": device[mine].sum().item(),
            "total_duration": np.where(device[mine] != 0, device[mine], length[mine]).sum().item(),
            "aggs": [{"name": name, **dict(zip(_COLUMNS, row, strict=True))} for name, row in total.items()],
        }
        for mine, total in zip(nodes, sums, strict=True)
    ]


def _title(forest: Forest, nodes: Ints) -> str:
    if nodes.size == 1:
        return forest.names[int(forest.name[nodes[0]])]
    return "CompositeNodes" if nodes.size else "Blank"


def _add(total: Sums, more: Sums) -> None:
    """Add rows to a total, new names at its end. Writes into `total`."""
    for name, row in more.items():
        known = total.get(name)
        total[name] = [a + b for a, b in zip(known, row, strict=True)] if known else row


def _own(side: _Side, node: int) -> Sums:
    values = (v[node].item() for v in _times(side.costs))
    return {side.forest.names[side.forest.name[node]]: [1, *values]}


def _times(costs: Costs) -> tuple[Any, ...]:
    return costs.host_total, costs.device_total, costs.host_self, costs.device_self


def _summed(side: _Side, lists: list[Ints]) -> list[Sums]:
    """For each list of nodes (disjoint) the operators at and below them by name, in order, children before parents."""
    nodes = np.concatenate([*lists, np.empty(0, np.int64)])
    owner = np.repeat(np.arange(len(lists)), [mine.size for mine in lists])
    order = np.argsort(nodes)
    nodes, owner = nodes[order], owner[order]
    op = _order.post_order(side.forest.parent[: side.last.size], side.last)
    op = op[side.forest.is_op[op]]
    at = np.searchsorted(nodes, op, side="right") - 1
    inside = at >= 0
    inside[inside] = op[inside] <= side.last[nodes[at[inside]]]
    op, at = op[inside], at[inside]
    key = owner[at] * len(side.forest.names) + side.forest.name[op]
    number, first = _order.first_in_groups(key)
    columns = [np.bincount(number, minlength=first.size)]
    for values in _times(side.costs):
        columns.append(np.zeros(first.size, values.dtype))
        np.add.at(columns[-1], number, values[op])
    sums: list[Sums] = [{} for _ in lists]
    names = side.forest.names
    for group, *row in zip(key[first].tolist(), *(c.tolist() for c in columns), strict=True):
        _add(sums[group // len(names)], {names[group % len(names)]: row})
    return sums
