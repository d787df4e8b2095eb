"""The plugin's memory curve, thinned to what a screen can show, and its list of blocks with their lifetimes."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard._memory import default_device
from stepscope.exports.tensorboard._numbers import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._forest import Forest
    from stepscope.exports.tensorboard._memory import Records

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_MS, _KB, _MB = 1 / 1e3, 1 / 1024, 1 / 1024**2
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

    Each point is preceded by one at its time with the values before, so that lines between points show steps. More
    than 10,240 points are thinned to that number.
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
        "totals": {},  # the plugin looks for them where they never are
        "first_ts": records.first_ts,
        "time_metric": "ms",
        "memory_metric": "MB",
        "time_factor": _MS,
        "memory_factor": _MB,
    }
    return {"metadata": metadata, "columns": [dict(c) for c in _CURVE_COLUMNS], "rows": rows}


def _by_appearance(values: Ints) -> list[int]:
    found, first = np.unique(values, return_index=True)
    order: list[int] = found[np.argsort(first)].tolist()
    return order


def _thinned(points: Floats) -> Floats:
    """First point, last point, and of each of 10,238 equal parts between the one that stands out most.

    That is the corner of the greatest triangle with the point taken before and the mean of the part behind. Source:
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


def memory_events(
    events: Events, forest: Forest, records: Records, start_us: float | None = None, end_us: float | None = None
) -> dict[str, Any]:
    """Blocks of memory per device: [operator, KB, allocated, released, duration], times in ms since the first event.

    First those allocated and released, by release; then those never released; then those only released. Only records
    from start to end, both included, make blocks.
    """
    known = np.flatnonzero(records.has_address)
    taking = records.bytes > 0
    op = np.where(taking & records.in_op, records.node, -1)
    blocks = _blocks(records, known, taking)
    op[blocks.freed] = op[blocks.taken]  # also of blocks that the window cuts off from their allocation
    if start_us is not None or end_us is not None:
        low, high = (-np.inf if start_us is None else start_us), (np.inf if end_us is None else end_us)
        blocks = _blocks(records, known[(records.ts[known] >= low) & (records.ts[known] <= high)], taking)
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
    gc.disable()  # rows hold no cycles; a million of them would have it look through everything over and over
    try:
        return list(map(list, zip(*cells, strict=True)))
    finally:
        if had_gc:
            gc.enable()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Records of blocks: allocation and release of each, by release; allocations without and releases without."""

    taken: Ints
    freed: Ints
    held: Ints
    lost: Ints


def _blocks(records: Records, rows: Ints, taking: Bools) -> _Blocks:
    """Each release with the allocation of its address just before it.

    A block is known by its address alone: one that is allocated again before its release is forgotten, and of several
    releases without an allocation the last counts. Both stand where the first of them would.
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
    """Operators' names. `aten::empty…` allocates for others: its caller comes first."""
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
    found, which = np.unique(sizes, return_inverse=True)
    texts = [shown(_KB * size) for size in found.tolist()]
    return [texts[i] for i in which.tolist()]


def _shown(values: Floats) -> list[float]:
    """`shown` of values >= 0, all at once.

    Where a value is so near the middle between two results that its last bits decide, it is asked one by one.
    """
    digits = np.where((values >= 0.01) | (values == 0), 2.0, -np.floor(np.log10(np.maximum(values, 1e-12))))
    scale = 10.0**digits
    scaled = values * scale
    found = np.rint(scaled) / scale
    # The middle, or a power of ten, where the number of digits changes.
    unsure = np.abs(scaled % 1 - 0.5) < 1e-9 + 1e-14 * scaled
    unsure |= (values < 0.01) & ((scaled < 1 + 1e-9) | (scaled > 10 - 1e-9) | (values < 1e-11)) & (values != 0)
    for i in np.flatnonzero(unsure).tolist():
        found[i] = shown(float(values[i]))
    texts: list[float] = found.tolist()
    return texts
