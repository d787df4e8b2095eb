"""The plugin's Module view: the tree of a model's modules and the times of their calls; for Lightning by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core import intervals
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._backward import looked_up
from stepscope.exports.tensorboard._events import FRAME, MODULE, NONE, PL_MODULE
from stepscope.exports.tensorboard._forest import BACKWARD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Costs, Forest

    Ints = NDArray[np.int64]

_COLUMNS = (
    ("Module Name", "string", "name"),
    ("Occurences", "number", "occurences"),
    ("Operators", "number", "operators"),
    ("Host Total Time", "number", "host_duration"),
    ("Host Self Time", "number", "self_host_duration"),
    ("Device Total Time", "number", "device_duration"),
    ("Device Self Time", "number", "self_device_duration"),
)
_FIGURES = ("occurences", "operators", "host_duration", "self_host_duration", "device_duration", "self_device_duration")


class _Hierarchy(msgspec.Struct, frozen=True):
    """Distinct modules with all below them: (name, id, children), children before their parents; and the outermost."""

    modules: list[tuple[str, int, tuple[int, ...]]]
    roots: list[int]


def module_view(events: Events, forest: Forest, costs: Costs) -> tuple[str, dict[str, Any]] | None:
    """The name of the view, Lightning or Module, and the view; None if the trace has no modules.

    `forest` and `costs` are those after backward operators have been hung below modules. Times in µs, summed over all
    calls of a name and id, wherever in the hierarchy they are. Outermost modules of one name come in the order of
    their first calls; in the plugin that order is arbitrary.
    """
    if not (events.kind == (PL_MODULE if events.lightning else MODULE)).any():
        return None
    if events.lightning:
        title, hierarchy, ids = "Lightning", _by_dotted_names(events), None
    else:
        ids = _Ids.of(events)
        title, hierarchy = "Module", _by_ids(events, ids)
    if not hierarchy.roots:
        return None
    figures = _figures(forest, costs, ids)
    # The plugin fails at modules without a node in the trees (it overlapped another one). Here they have zeros.
    nothing = dict.fromkeys(_FIGURES, 0)
    rows: list[dict[str, Any]] = []
    for name, ident, children in hierarchy.modules:
        mine = figures.get((name, ident), nothing)
        spent = mine["device_duration"] if mine["device_duration"] > 0 else mine["host_duration"]
        rows.append({
            "name": name.replace("nn.Module: ", ""), "id": ident, **mine,
            "avg_duration": spent / max(mine["occurences"], 1), "children": [rows[i] for i in children],
        })  # fmt: skip
    data = sorted((rows[i] for i in hierarchy.roots), key=lambda row: str(row["name"]))
    return title, {"columns": [{"name": n, "type": t, "key": k} for n, t, k in _COLUMNS], "data": data}


class _Ids(msgspec.Struct, frozen=True):
    """The recorder's ids of Python calls; `at` is the place of each span in the columns, whose last value is NONE."""

    at: Ints
    call: Ints
    around: Ints
    module: Ints

    @classmethod
    def of(cls, events: Events) -> _Ids:
        """The ids of a trace."""
        frames = events.trace.frames
        at = np.full(events.kind.size, frames.height, np.int64)
        at[frames["span_id"].to_numpy()] = np.arange(frames.height)
        keys = ("python_id", "python_parent_id", "module_id")
        return cls(at, *(np.append(frames[key].fill_null(NONE).to_numpy(), NONE) for key in keys))


def _by_ids(events: Events, ids: _Ids) -> _Hierarchy:
    """Modules by the ids of Python calls. A module is below the nearest module that encloses it."""
    rows = events.rows(FRAME, MODULE)
    # Of calls with the same id the last counts, in the place of the first.
    call, around = ids.call[ids.at[rows]], ids.around[ids.at[rows]]
    number, first = _order.first_in_groups(call)
    latest = np.empty(first.size, np.int64)
    latest[number] = np.arange(rows.size)
    known, place = np.unique(call[first], return_index=True)
    parent = _without_cycles(looked_up(known, place, around[latest]))
    is_leaf = np.ones(first.size + 1, bool)
    is_leaf[looked_up(known, place, around)] = False
    is_module = events.kind[rows[latest]] == MODULE
    nearest = intervals.nearest(parent, is_module)
    modules = np.flatnonzero(is_module)
    index = np.full(first.size + 1, -1, np.int64)
    index[modules] = np.arange(modules.size)
    up = index[np.append(nearest, -1)[parent[modules]]]
    # Siblings come in the order of the first innermost call below each.
    leaves = np.flatnonzero(is_leaf[:-1])
    leaves = leaves[nearest[leaves] >= 0]
    turn = np.full(modules.size, first.size, np.int64)
    np.minimum.at(turn, index[nearest[leaves]], leaves)
    depth = np.zeros(modules.size, np.int64)
    for level, nodes in reversed(list(enumerate(_order.levels(up)))):
        depth[nodes] = level
        inner = nodes[up[nodes] >= 0]
        np.minimum.at(turn, up[inner], turn[inner])
    order = np.lexsort((turn, -depth))
    order = order[turn[order] < first.size]  # all but those that a later call with the same id has replaced
    span = rows[latest[modules[order]]]
    names = [events.names[i] for i in events.name[span].tolist()]
    above = [int(i) for i in up[order]]
    return _distinct(order.tolist(), names, ids.module[ids.at[span]].tolist(), above)


def _without_cycles(parent: Ints) -> Ints:
    """The parents. Calls that enclose each other, because ids are broken, have none."""
    if (parent < np.arange(parent.size)).all():
        return parent
    far = np.flatnonzero(parent >= 0)
    up = parent.copy()
    for _ in range(parent.size.bit_length()):  # strides double; after as many steps as calls all are in cycles
        up[far] = up[up[far]]
        far = far[up[far] >= 0]
    parent = parent.copy()
    parent[up[far]] = -1
    return parent


def _distinct(modules: list[int], names: list[str], idents: list[int], above: list[int]) -> _Hierarchy:
    """The hierarchy of module calls, the deepest first; those of one name, id and children are one."""
    numbers: dict[tuple[str, int, tuple[int, ...]], int] = {}
    below: dict[int, list[int]] = {}
    roots: dict[int, None] = {}
    for module, name, ident, up in zip(modules, names, idents, above, strict=True):
        number = numbers.setdefault((name, ident, tuple(below.pop(module, ()))), len(numbers))
        if up < 0:
            roots[number] = None
        else:
            below.setdefault(up, []).append(number)
    return _Hierarchy(list(numbers), list(roots))


def _by_dotted_names(events: Events) -> _Hierarchy:
    """Modules of Lightning: `net.0` is below `net` if that was called, else outermost. They have no ids, shown as 0."""
    rows = events.rows(PL_MODULE)
    _, first = _order.first_in_groups(events.name[rows].astype(np.int64))
    below: dict[str, list[int]] = {_lightning_name(events.names[i]): [] for i in events.name[rows[first]].tolist()}
    modules: list[tuple[str, int, tuple[int, ...]]] = []
    roots: list[int] = []
    for name in sorted(below, key=lambda n: -n.count(".")):  # children first, among them by first call
        outer, dot, _ = name.rpartition(".")
        siblings = below[outer] if dot and outer in below else roots
        siblings.append(len(modules))
        modules.append((name, 0, tuple(below[name])))
    return _Hierarchy(modules, roots)


def _lightning_name(name: str) -> str:
    """The module's path, without its class: `Linear: net.0` is `net.0`."""
    return name.partition(": ")[2] or name


def _figures(forest: Forest, costs: Costs, ids: _Ids | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Sums over the nodes of each module (name and id), except those that ran within a backward operator."""
    node = np.flatnonzero(forest.kind == (MODULE if ids is not None else PL_MODULE))
    node = node[intervals.nearest(forest.parent, forest.role == BACKWARD)[node] < 0]
    name = forest.name[node]
    ident = ids.module[ids.at[forest.row[node]]] if ids is not None else np.zeros(node.size, np.int64)
    number, _ = _order.first_in_groups(ident)
    number, first = _order.first_in_groups(name * max(node.size, 1) + number)
    operators = np.bincount(forest.parent[forest.is_op], minlength=forest.row.size)
    values = (np.ones_like(node), *(v[node] for v in (
        operators, costs.host_total, costs.host_self, costs.device_total, costs.device_self,
    )))  # fmt: skip
    sums = [np.zeros(first.size, v.dtype) for v in values]
    for total, value in zip(sums, values, strict=True):
        np.add.at(total, number, value)
    per_module: dict[tuple[str, int], dict[str, Any]] = {}
    columns = (name[first].tolist(), ident[first].tolist(), *(total.tolist() for total in sums))
    for code, key, *row in zip(*columns, strict=True):
        text = forest.names[code] if ids is not None else _lightning_name(forest.names[code])
        known = per_module.get((text, key), dict.fromkeys(_FIGURES, 0))  # classes of one path may differ
        per_module[text, key] = {k: known[k] + v for k, v in zip(_FIGURES, row, strict=True)}
    return per_module
