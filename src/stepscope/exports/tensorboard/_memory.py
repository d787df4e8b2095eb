"""The plugin's memory views: what each operator allocated and freed on each device, the curve, and each allocation."""

from __future__ import annotations

import gc
from itertools import compress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._forest import ROOT
from stepscope.exports.tensorboard._json import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Forest

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Times = NDArray[Any]
    Floats = NDArray[np.float64]


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


class Records(msgspec.Struct, frozen=True):
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
    """The memory records of a trace. The plugin only names CPU and CUDA (MLU) devices and fails on all others.

    Here they have the same names as in all other views.
    """
    table = events.trace.table("allocations")
    ts = events.us(table["ts_ns"].to_numpy())
    known = {
        device_id: "CPU" if kind == "cpu" else f"{events.dialect.noun}{'' if index is None else index}"
        for device_id, kind, index in events.trace.devices.select("device_id", "type", "index").iter_rows()
    }
    ids = table["device_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    used = distinct_values(ids)
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
    """Threads of tracks, numbered as those of spans, by recorded id alone."""
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
    innermost = np.full(ts.size, -1, np.int64)
    roots = np.flatnonzero(forest.role == ROOT)
    for low, high in zip(roots.tolist(), np.append(roots, forest.row.size)[1:].tolist(), strict=True):
        points = np.flatnonzero(thread == forest.thread[low])
        innermost[points] = np.searchsorted(forest.start[low:high], ts[points], side="right") - 1 + low
        innermost[points[ts[points] < forest.start[low]]] = -1
    # The last node to begin may have ended. Then a node around it is open.
    pending = np.flatnonzero(innermost >= 0)
    while (pending := pending[forest.end[innermost[pending]] <= ts[pending]]).size:
        innermost[pending] = forest.parent[innermost[pending]]
        pending = pending[innermost[pending] >= 0]
    return innermost


def memory_stats(events: Events, forest: Forest, records: Records) -> dict[str, Any]:
    """What each operator allocated and freed per device, in KB.

    Operators inside an operator without any record are not counted as calls. Operators that changed nothing are not
    shown.
    """
    last = _order.last_descendant(forest.parent)
    op_calls = _calls(forest, records, last)
    own = np.flatnonzero(records.in_op)
    rows = {}
    for device in _devices(records, own):
        some = own[records.device[own] == device]
        table = _rows(forest, records, some, last, op_calls)
        if table:
            rows[records.devices[device]] = table
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


def _calls(forest: Forest, records: Records, last: Ints) -> Ints:
    """Calls per name of the operators within nodes that records fall into."""
    n = forest.row.size
    reached = _order.below(np.bincount(records.node[records.node >= 0], minlength=n), last) > 0
    is_top = (forest.parent >= 0) & (forest.role[forest.parent] == ROOT)
    counted = forest.is_op & (is_top | reached[forest.parent])
    return np.bincount(forest.name[counted], minlength=len(forest.names))


def _devices(records: Records, own: Ints) -> list[int]:
    """Devices of these records in the plugin's order: by their first node, and within a node by time."""
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


_MS, _MB = 1 / 1e3, 1 / 1024**2
_POINTS = 10_240
_CURVE_COLUMNS = [
    {"name": "Time (ms)", "type": "number", "tooltip": "Time since profiler starts."},
    {"name": "Allocated (MB)", "type": "number", "tooltip": "Total memory in use."},
    {
        "name": "Reserved (MB)",
        "type": "number",
        "tooltip": "Total reserved memory by allocator, both used and unused.",
    },
]
_EVENT_COLUMNS = ("Size (KB)", "Allocation Time (ms)", "Release Time (ms)", "Duration (ms)")


def memory_curve(events: Events, records: Records) -> dict[str, Any]:
    """Memory in use and reserved over time, per device: [ms since the first event, MB, MB].

    Before each point there is one at the same time with the previous values, so that lines between points show steps.
    More than 10,240 points are thinned to that number.
    """
    table = events.trace.table("allocations")
    totals = [table["total_allocated_bytes"], table["total_reserved_bytes"]]
    usable = np.flatnonzero(records.has_address & (totals[0].is_not_null() & totals[1].is_not_null()).to_numpy())
    held, reserved = (column.fill_null(0).to_numpy() for column in totals)
    rows, peaks = {}, {}
    for device in _by_appearance(records.device[usable]):
        some = usable[records.device[usable] == device]
        name = records.devices[device]
        at = np.arange(2 * some.size - 1)
        times = _MS * (records.ts[some] - records.first_ts)
        points = np.stack((times[(at + 1) // 2], (_MB * held[some])[at // 2], (_MB * reserved[some])[at // 2]), axis=1)
        rows[name] = _thinned(points).tolist()
        peaks[name] = f"Peak Memory Usage: {_MB * max(held[some].max(), 0):.1f}MB"
    metadata = {
        "default_device": default_device(events, rows),
        "devices": sorted(rows),
        "peaks": peaks,
        "totals": {},  # the plugin looks for them in the wrong place
        "first_ts": records.first_ts,
        "time_metric": "ms",
        "memory_metric": "MB",
        "time_factor": _MS,
        "memory_factor": _MB,
    }
    return {"metadata": metadata, "columns": [dict(c) for c in _CURVE_COLUMNS], "rows": rows}


def _by_appearance(values: Ints) -> list[int]:
    unique, first = np.unique(values, return_index=True)
    order: list[int] = unique[np.argsort(first)].tolist()
    return order


def _thinned(points: Floats) -> Floats:
    """First point, last point, and the most prominent point of each of 10,238 equal parts between them.

    It makes the largest triangle with the previous chosen point and the mean of the next part. Source:
    S. Steinarsson, Downsampling Time Series for Visual Representation, 2013 ("largest triangle three buckets").
    """
    if len(points) <= _POINTS:
        return points
    size, longer = divmod(len(points) - 2, _POINTS - 2)
    cuts = np.cumsum(np.where(np.arange(_POINTS - 2) < longer, size + 1, size)) + 1
    starts = np.concatenate(([1], cuts[:-1]))
    x, y = points[:, 0], points[:, 1]
    # Means of the parts, and of the last point alone.
    middle = np.add.reduceat(points[:, :2], np.append(starts, len(points) - 1)) / np.append(cuts - starts, 1)[:, None]
    taken = np.zeros(_POINTS, np.int64)
    taken[-1] = len(points) - 1
    bounds = zip(starts.tolist(), cuts.tolist(), middle[1:].tolist(), strict=True)
    for i, (low, high, (far_x, far_y)) in enumerate(bounds):
        near_x, near_y = x[taken[i]], y[taken[i]]
        areas = np.abs((near_x - far_x) * (y[low:high] - near_y) - (near_x - x[low:high]) * (far_y - near_y))
        taken[i + 1] = low + areas.argmax()
    return points[taken]


def memory_events(events: Events, forest: Forest, records: Records) -> dict[str, Any]:
    """Blocks of memory per device: [operator, KB, allocated, released, duration], times in ms since the first event.

    First those allocated and released, by release; then those never released; then those only released.
    """
    known = np.flatnonzero(records.has_address)
    taking = records.bytes > 0
    op = np.where(taking & records.in_op, records.node, -1)
    blocks = _blocks(records, known, taking)
    op[blocks.freed] = op[blocks.taken]
    taken, freed, held, lost = blocks.taken, blocks.freed, blocks.held, blocks.lost
    since = _MS * (records.ts - records.first_ts)
    row = np.concatenate((taken, held, lost))
    cells = (
        _labels(forest, op[row]),
        _sizes(np.concatenate((-records.bytes[freed], records.bytes[held], -records.bytes[lost]))),
        [*_shown(since[taken]), *_shown(since[held]), *[None] * lost.size],
        [*_shown(since[freed]), *[None] * held.size, *_shown(since[lost])],
        [*_shown(_MS * (records.ts[freed] - records.ts[taken])), *[None] * (held.size + lost.size)],
    )
    device = records.device[row]
    every = _as_rows(cells)
    rows = {
        records.devices[i]: every if (device == i).all() else list(compress(every, (device == i).tolist()))
        for i in _by_appearance(device)
    }
    column_names = [{"name": "Operator", "type": "string", "tooltip": ""}]
    column_names += [{"name": name, "type": "number", "tooltip": ""} for name in _EVENT_COLUMNS]
    metadata = {"title": "Memory Events", "default_device": default_device(events, rows)}
    return {"metadata": metadata, "columns": column_names, "rows": rows}


def _as_rows(cells: tuple[list[Any], ...]) -> list[list[Any]]:
    """Columns turned into rows."""
    had_gc = gc.isenabled()
    gc.disable()  # Rows hold no cycles. With a million of them the collector would search everything again and again.
    try:
        return list(map(list, zip(*cells, strict=True)))
    finally:
        if had_gc:
            gc.enable()


class _Blocks(msgspec.Struct, frozen=True):
    """Records of blocks: allocation and release of each, by release; allocations without and releases without."""

    taken: Ints
    freed: Ints
    held: Ints
    lost: Ints


def _blocks(records: Records, rows: Ints, taking: Bools) -> _Blocks:
    """Each release with the allocation of its address just before it.

    A block is identified by its address alone. A block that is allocated again before its release is forgotten, and of
    several releases without an allocation the last counts. Either result is in the place of the first one.
    """
    order = rows[np.argsort(records.address[rows], kind="stable")]
    begins = np.ones(order.size, bool)
    begins[1:] = records.address[order[1:]] != records.address[order[:-1]]
    ends = np.append(begins[1:], True)
    takes = taking[order]
    after_take = np.zeros(order.size, bool)
    after_take[1:] = takes[:-1] & ~begins[1:]
    at = np.flatnonzero(~takes & after_take)
    by_release = at[np.argsort(order[at])]
    first_take = np.maximum.accumulate(np.where(takes & ~after_take, np.arange(order.size), 0))
    at = np.flatnonzero(takes & ends)
    held = order[at][np.argsort(order[first_take[at]])]
    at = np.flatnonzero(~takes & ~after_take)
    address = np.cumsum(begins)[at]
    is_first = np.diff(address, prepend=-1) != 0
    is_last = np.diff(address, append=-1) != 0
    lost = order[at[is_last]][np.argsort(order[at[is_first]])]
    return _Blocks(order[by_release - 1], order[by_release], held, lost)


def _labels(forest: Forest, node: Ints) -> list[str]:
    """Operators' names. `aten::empty…` allocates for other operators, so its caller's name comes first."""
    used = np.flatnonzero(np.bincount(node + 1, minlength=1))
    place = np.zeros(used.max(initial=0) + 1, np.int64)
    place[used] = np.arange(used.size)
    texts = []
    for i in (used - 1).tolist():
        name = forest.names[forest.name[i]] if i >= 0 else ""
        if name.startswith("aten::empty") and (caller := forest.names[forest.name[forest.parent[i]]]):
            name = f"{caller} ({name})"
        texts.append(name or "<unknown>")
    return [texts[i] for i in place[node + 1].tolist()]


def _sizes(sizes: Ints) -> list[float]:
    unique, which = np.unique(sizes, return_inverse=True)
    texts = [shown(_KB * size) for size in unique.tolist()]
    return [texts[i] for i in which.tolist()]


def _shown(values: Floats) -> list[float]:
    """`shown` of values >= 0, all at once.

    Values that are so near the middle between two results that their last bits decide are rounded one by one.
    """
    digits = np.where((values >= 0.01) | (values == 0), 2.0, -np.floor(np.log10(np.maximum(values, 1e-12))))
    scale = 10.0**digits
    scaled = values * scale
    rounded = np.rint(scaled) / scale
    # The middle, or a power of ten, where the number of digits changes.
    unsure = np.abs(scaled % 1 - 0.5) < 1e-9 + 1e-14 * scaled
    unsure |= (values < 0.01) & ((scaled < 1 + 1e-9) | (scaled > 10 - 1e-9) | (values < 1e-11)) & (values != 0)
    for i in np.flatnonzero(unsure).tolist():
        rounded[i] = shown(float(values[i]))
    texts: list[float] = rounded.tolist()
    return texts
