"""The plugin's operator view: pies and tables of operators by name, by name and input shapes, and by call stack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._json import rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Costs, Forest

    Ints = NDArray[np.int64]

_PIES = (
    ("device_total_time", "Device Total Time (us)", "device_total"),
    ("device_self_time", "Device Self Time (us)", "device_self"),
    ("host_total_time", "Host Total Time (us)", "host_total"),
    ("host_self_time", "Host Self Time (us)", "host_self"),
)
_TOOLTIPS = {
    "tc_eligible": "Whether this operator is eligible to use Tensor Cores.",
    "tc_self_ratio": "Time of self-kernels with Tensor Cores / Time of self-kernels.",
    "tc_total_ratio": "Time of kernels with Tensor Cores / Time of kernels.",
}


class Calls(msgspec.Struct, frozen=True):
    """Calls of operators in the plugin's order: name, input shapes, call stack (text or null) and node of each."""

    node: Ints
    name: Ints
    shape: Ints
    stack: Ints
    names: list[str]
    shapes: list[str]
    stacks: list[str | None]


class Groups(msgspec.Struct, frozen=True):
    """Calls put together, in order of the first: per group its first call, how many, and sums in µs."""

    first: Ints
    calls: Ints
    sums: dict[str, NDArray[Any]]
    eligible: NDArray[np.bool_]


def calls_of(events: Events, forest: Forest) -> Calls:
    """All calls of operators, children before their parents."""
    order = _order.post_order(forest.parent, _order.last_descendant(forest.parent))
    node = order[forest.is_op[order]]
    rows = forest.row[node]
    ops = events.trace.ops
    at = np.full(events.kind.size, -1, np.int64)
    at[ops["span_id"].to_numpy()] = np.arange(ops.height)
    shape, texts = _numbered(ops["input_shapes"], at[rows])
    stacks = events.trace.stacks
    recorded = dict(zip(stacks["stack_id"].to_list(), stacks["text"].to_list(), strict=True))
    stack_id = np.append(ops["stack_id"].cast(pl.Int64).fill_null(-1).to_numpy(), -1)[at[rows]]
    used = distinct_values(stack_id)
    stack_texts = [recorded.get(i) for i in used.tolist()]
    shapes = [_as_python(text) for text in texts]
    return Calls(node, forest.name[node], shape, np.searchsorted(used, stack_id), forest.names, shapes, stack_texts)


def _numbered(series: pl.Series, at: Ints) -> tuple[Ints, list[str]]:
    """Number of the value at each place (−1: none), and the distinct values."""
    if not series.len():
        return np.zeros(at.size, np.int64), [""]
    taken = series.gather(pl.Series(at).replace(-1, None).cast(pl.UInt32))
    physical = taken.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    number, first = _order.first_in_groups(physical)
    return number, taken.gather(first).cast(pl.String).fill_null("").to_list()


def _as_python(text: str) -> str:
    """JSON text of shapes as Python prints the value; without any, an empty list."""
    if not text:
        return "[]"
    try:
        return str(json.loads(text))
    except (ValueError, RecursionError):
        return text


def grouped(calls: Calls, costs: Costs, *, by_shape: bool = False, by_stack: bool = False) -> Groups:
    """Calls of the same name (and shapes, and stack)."""
    key = calls.name
    if by_shape:
        key = key * len(calls.shapes) + calls.shape
    if by_stack:
        key = key * len(calls.stacks) + calls.stack
    number, first = _order.first_in_groups(key)
    sums = {}
    for name in ("host_self", "host_total", "device_self", "device_total", "tc_self", "tc_total"):
        values = getattr(costs, name)[calls.node]
        sums[name] = np.zeros(first.size, values.dtype)
        np.add.at(sums[name], number, values)
    return Groups(first, np.bincount(number, minlength=first.size), sums, costs.eligible[calls.node[first]])


def pies(calls: Calls, groups: Groups) -> dict[str, Any]:
    """Four lists of names and times above 0, longest first."""
    charts: dict[str, Any] = {}
    names = [calls.names[i] for i in calls.name[groups.first].tolist()]
    for key, title, which in _PIES:
        values = groups.sums[which]
        order = np.argsort(-values, kind="stable")
        order = order[values[order] > 0]
        rows = [[names[i], v] for i, v in zip(order.tolist(), values[order].tolist(), strict=True)]
        columns = [{"type": "string", "name": "name"}, {"type": "number", "name": "value"}]
        charts[key] = {"title": title, "columns": columns, "rows": rows} if rows else None
    return charts


def table(
    calls: Calls, groups: Groups, stacked: set[tuple[int, int]], *, by_shape: bool, with_device: bool
) -> dict[str, Any]:
    """The table of operators. `stacked` holds the name and shape (0 if shapes do not matter) of calls with a stack."""
    rows = []
    for i, row in _rows(calls, groups, by_shape=by_shape, with_device=with_device):
        first = groups.first[i]
        key = (int(calls.name[first]), int(calls.shape[first]) if by_shape else 0)
        rows.append(row | {"has_call_stack": key in stacked})
    return _framed(rows, with_device=with_device)


def stack_tables(calls: Calls, groups: Groups, *, by_shape: bool, with_device: bool) -> dict[str, Any]:
    """For each operator (and shapes) that was called from known stacks, a table with a row for each stack."""
    tables: dict[str, list[dict[str, Any]]] = {}
    rows = dict(_rows(calls, groups, by_shape=by_shape, with_device=with_device))
    keys: dict[str, None] = {}
    for i, first in enumerate(groups.first.tolist()):  # tables in order of the first call
        if calls.stacks[calls.stack[first]]:
            keys[_key(rows[i], by_shape=by_shape)] = None
    for i, row in rows.items():  # rows in their own order
        stack = calls.stacks[calls.stack[groups.first[i]]]
        if stack:
            tables.setdefault(_key(row, by_shape=by_shape), []).append(row | {"call_stack": stack})
    return {key: _framed(tables[key], with_device=with_device) for key in keys}


def _key(row: dict[str, Any], *, by_shape: bool) -> str:
    return f"{row['name']}###{row['input_shape']}" if by_shape else str(row["name"])


def with_stack(calls: Calls, *, by_shape: bool) -> set[tuple[int, int]]:
    """Name and shape (0 if shapes do not matter) of all calls that have a stack."""
    known = np.array([bool(s) for s in calls.stacks] or [False])[calls.stack]
    shape = calls.shape[known] if by_shape else np.zeros(int(known.sum()), np.int64)
    return set(zip(calls.name[known].tolist(), shape.tolist(), strict=True))


def _rows(calls: Calls, groups: Groups, *, by_shape: bool, with_device: bool) -> list[tuple[int, dict[str, Any]]]:
    """Number and cells of each group, the one with the most own time first."""
    sums = groups.sums
    order = np.argsort(-sums["device_self" if with_device else "host_self"], kind="stable")
    cells = {key: rounded(values) for key, values in sums.items()}
    ratios = {
        key: [_percent(t, d) for t, d in zip(sums[f"tc_{key}"].tolist(), sums[f"device_{key}"].tolist(), strict=True)]
        for key in ("self", "total")
    }
    numbered = []
    for i in order.tolist():
        first = groups.first[i]
        row: dict[str, Any] = {"name": calls.names[calls.name[first]]}
        if by_shape:
            row["input_shape"] = calls.shapes[calls.shape[first]]
        row["calls"] = int(groups.calls[i])
        if with_device:
            row["device_self_duration"] = cells["device_self"][i]
            row["device_total_duration"] = cells["device_total"][i]
        row["host_self_duration"] = cells["host_self"][i]
        row["host_total_duration"] = cells["host_total"][i]
        row["tc_eligible"] = "Yes" if groups.eligible[i] else "No"
        row["tc_self_ratio"], row["tc_total_ratio"] = ratios["self"][i], ratios["total"][i]
        numbered.append((i, row))
    return numbered


def _percent(part: float, whole: float) -> float:
    return round(100 * (part / whole if whole > 0 else 0), 2)


def _framed(rows: list[dict[str, Any]], *, with_device: bool) -> dict[str, Any]:
    sort = "device_self_duration" if with_device else "host_self_duration"
    return {"metadata": {"sort": sort, "tooltips": dict(_TOOLTIPS)}, "data": rows}
