"""The plugin's memory view: which operator allocated and freed how much, on which device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._forest import ROOT
from stepscope.exports.tensorboard._numbers import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]

_KB = 1 / 1024
_COLUMNS = (
    ("Calls", "# of calls of the operator."),
    ("Size Increase (KB)", "The memory increase size include all children operators."),
    ("Self Size Increase (KB)", "The memory increase size associated with the operator itself."),
    ("Allocation Count", "The allocation count including all chidren operators."),
    ("Self Allocation Count", "The allocation count belonging to the operator itself."),
    ("Allocation Size (KB)", "The allocation size including all children operators."),
    (
        "Self Allocation Size (KB)",
        (
            "The allocation size belonging to the operator itself.\n"
            "It will sum up all allocation bytes without considering the memory free."
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Records:
    """Allocations and frees by time. `ts` is in µs of the recorder's clock, `first_ts` that of the trace's first event.

    `device` indexes `devices`, the names of devices. `node` is the innermost node of the forest open then on the
    record's thread, −1 if none; `in_op` says whether that is an operator. A record without an address is not part of
    curves and events.
    """

    ts: Times
    device: Ints
    devices: list[str]
    bytes: Ints
    node: Ints
    in_op: Bools
    address: NDArray[np.uint64]
    has_address: Bools
    first_ts: float


def read_records(events: Events, forest: Forest) -> Records:
    """The memory records of a trace. The plugin names no devices but CPU and CUDA (MLU) ones and fails on others'.

    Here they are called as the device is in all other views.
    """
    table = events.trace.table("allocations")
    ts = events.us(table["ts_ns"].to_numpy())
    known = {
        device_id: "CPU" if kind == "cpu" else f"{events.dialect.noun}{'' if index is None else index}"
        for device_id, kind, index in events.trace.devices.select("device_id", "type", "index").iter_rows()
    }
    ids = table["device_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    used = np.unique(ids)
    node = _innermost(forest, _threads(events, table["track_id"]), ts)
    starts = [a[0].item() for a in (ts, events.ts[events.order]) if a.size]
    return Records(
        ts=ts,
        device=np.searchsorted(used, ids),
        devices=[known.get(i, events.dialect.noun) for i in used.tolist()],
        bytes=table["bytes"].to_numpy(),
        node=node,
        in_op=np.append(forest.is_op, [False])[node],
        address=table["address"].fill_null(0).to_numpy(),
        has_address=table["address"].is_not_null().to_numpy(),
        first_ts=min(starts, default=0),
    )


def _threads(events: Events, track_id: pl.Series) -> Ints:
    """Threads of tracks, as the spans' are numbered: by recorded id alone."""
    number = {thread: i for i, thread in enumerate(events.threads)}
    tracks = events.trace.tracks
    place = np.full(tracks["track_id"].to_numpy().max(initial=0) + 1, -1, np.int64)
    place[tracks["track_id"].to_numpy()] = [
        number[tid if tid is not None else label or ""] for tid, label in tracks.select("tid", "label").iter_rows()
    ]
    threads: Ints = place[track_id.to_numpy()]
    return threads


def _innermost(forest: Forest, thread: Ints, ts: Times) -> Ints:
    """For each point the innermost node of its thread's tree that is open (start <= ts < end), −1 if none is."""
    found = np.full(ts.size, -1, np.int64)
    roots = np.flatnonzero(forest.role == ROOT)
    for low, high in zip(roots.tolist(), np.append(roots, forest.row.size)[1:].tolist(), strict=True):
        points = np.flatnonzero(thread == forest.thread[low])
        found[points] = np.searchsorted(forest.start[low:high], ts[points], side="right") - 1 + low
        found[points[ts[points] < forest.start[low]]] = -1
    # The last node to begin may have ended: then one around it is open.
    pending = np.flatnonzero(found >= 0)
    while (pending := pending[forest.end[found[pending]] <= ts[pending]]).size:
        found[pending] = forest.parent[found[pending]]
        pending = pending[found[pending] >= 0]
    return found


def memory_stats(
    events: Events, forest: Forest, records: Records, start_us: float | None = None, end_us: float | None = None
) -> dict[str, Any]:
    """What each operator allocated and freed per device, in KB, of records from start to end, both included.

    Operators inside one during which no record falls are not counted as calls. Those that changed nothing are not
    shown.
    """
    low, high = (-np.inf if start_us is None else start_us), (np.inf if end_us is None else end_us)
    last = _order.last_descendant(forest.parent)
    op_calls = _calls(forest, records, last, low, high)
    own = np.flatnonzero(records.in_op & (records.ts >= low) & (records.ts <= high))
    rows = {}
    for device in _devices(records, own):
        some = own[records.device[own] == device]
        found = _rows(forest, records, some, last, op_calls)
        if found:
            rows[records.devices[device]] = found
    columns: list[dict[str, str]] = [{"name": "Operator Name", "type": "string"}]
    columns += [{"name": name, "type": "number", "tooltip": tooltip} for name, tooltip in _COLUMNS]
    metadata = {
        "title": "Memory View",
        "default_device": default_device(events, rows),
        "search": "Operator Name",
        "sort": "Self Size Increase (KB)",
    }
    return {"metadata": metadata, "columns": columns, "rows": rows}


def default_device(events: Events, names: Any) -> str:
    """The device that is shown first: the first accelerator by name, the host if there is none."""
    return min((name for name in names if name.startswith(events.dialect.noun)), default="CPU")


def _calls(forest: Forest, records: Records, last: Ints, low: float, high: float) -> Ints:
    """Calls per name of the operators within nodes that records fall into, and within the window."""
    n = forest.row.size
    reached = _order.below(np.bincount(records.node[records.node >= 0], minlength=n), last) > 0
    is_top = (forest.parent >= 0) & (forest.role[forest.parent] == ROOT)
    counted = forest.is_op & (is_top | reached[forest.parent]) & (forest.end >= low) & (forest.start <= high)
    return np.bincount(forest.name[counted], minlength=len(forest.names))


def _devices(records: Records, own: Ints) -> list[int]:
    """Devices of these records in the plugin's order: by their first node, in it by time."""
    first = {}
    for device in range(len(records.devices)):
        some = own[records.device[own] == device]
        if some.size:
            node = records.node[some]
            first[device] = (int(node.min()), int(some[node.argmin()]))
    return sorted(first, key=first.__getitem__)


def _rows(forest: Forest, records: Records, some: Ints, last: Ints, op_calls: Ints) -> list[list[Any]]:
    """The rows of one device, by name."""
    node, size = records.node[some], records.bytes[some]
    taken = np.maximum(size, 0)
    sums = []
    for weights in (size, taken > 0, taken):
        own = np.bincount(node, weights=weights, minlength=forest.row.size).astype(np.int64)
        for values in (_order.below(own, last), own):
            per_name = np.bincount(forest.name[forest.is_op], weights=values[forest.is_op], minlength=len(forest.names))
            sums.append(per_name.astype(np.int64))
    some_change = np.flatnonzero(np.any(sums, axis=0))
    rows = []
    for i in sorted(some_change.tolist(), key=forest.names.__getitem__):
        inside, self_, count, self_count, total, self_total = (int(values[i]) for values in sums)
        rows.append([
            forest.names[i], int(op_calls[i]), shown(_KB * inside), shown(_KB * self_), count, self_count,
            shown(_KB * total), shown(_KB * self_total),
        ])  # fmt: skip
    return rows
