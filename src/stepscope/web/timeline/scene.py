"""A trace laid out for drawing: lanes with their spans, tracks in groups, sampled lines, steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.collective_calls import communicates
from stepscope.core.names import is_sync_call
from stepscope.core.report import printable
from stepscope.core.schema import CATEGORIES, DEVICE_LABEL, DEVICE_WORK
from stepscope.core.step_parts import COMMUNICATION, COMPUTATION, LOADING, MEMCPY, OPERATORS, OTHER
from stepscope.renderers.figures import COLOURS, PALETTE
from stepscope.web.timeline.level_of_detail import Lanes, lanes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace


_MOST_STEPS = 5_000
_MOST_LINES = 64
#: Categories as drawn: kernels that exchange data with other ranks are apart, and calls that wait count as `sync`.
DRAWN = (*CATEGORIES, "communication")
#: The legend: each kind's name, its colour, which is that of the bars and charts, and its categories.
LEGEND = (
    ("computation", COLOURS[COMPUTATION], ("kernel",)),
    ("communication", COLOURS[COMMUNICATION], ("communication",)),
    ("copies", COLOURS[MEMCPY], ("memcpy", "memset")),
    ("launches and runtime", COLOURS["launch and runtime calls"], ("runtime", "driver")),
    ("synchronisation", COLOURS["synchronisation"], ("sync",)),
    ("operators", COLOURS[OPERATORS], ("operator",)),
    ("Python", COLOURS[OTHER], ("python",)),
    ("data loading", COLOURS[LOADING], ("dataloader",)),
    ("steps and ranges", PALETTE[6], ("step", "user_range", "module", "device_range")),
    ("on CPU", PALETTE[5], ("sched_oncpu",)),
    ("waiting for a CPU", PALETTE[8], ("sched_runq",)),
    ("input and output", PALETTE[3], ("io",)),
    ("other", PALETTE[7], ("overhead", "other")),
)
KINDS = frozenset(name for name, _, _ in LEGEND)


class Line(msgspec.Struct, frozen=True, eq=False):
    """Samples of one resource over time, in order of time."""

    label: str
    unit: str | None
    times: NDArray[np.int64]
    values: NDArray[np.float64]


class Scene(msgspec.Struct, frozen=True, eq=False):
    """A trace with what every move of the timeline needs. Per span: code of its name, of its category."""

    trace: Trace
    lanes: Lanes
    codes: NDArray[np.uint32]
    names: list[str]
    categories: NDArray[np.uint8]
    lines: tuple[Line, ...]
    first_ns: int
    last_ns: int


def scene_of(trace: Trace) -> Scene:
    """Lay out a trace. Raises MissingTable (no spans, no start times)."""
    spans = trace.require("spans", needed_by="the timeline")
    trace.require_clock(needed_by="the timeline")
    if spans["ts_ns"].null_count() or spans["dur_ns"].null_count():
        spans = spans.filter(pl.col("ts_ns").is_not_null()).with_columns(pl.col("dur_ns").fill_null(0))
    lanes = _lanes(spans)
    # Polars numbers the names of all traces together. Number ours without gaps for the browser.
    known, numbers = np.unique(trace.spans["name"].to_physical().fill_null(0).to_numpy(), return_inverse=True)
    firsts = np.zeros(known.size, np.int64)
    firsts[numbers[::-1]] = np.arange(numbers.size)[::-1]
    names = trace.spans["name"].gather(firsts).cast(pl.String).fill_null("").to_list()
    low, high = int(lanes.start.min()), int(lanes.end.max())
    codes = numbers.astype(np.uint32)
    categories = _categories(trace, codes, names)
    return Scene(trace, lanes, codes, names, categories, _lines(trace), low, max(high, low + 1))


def without(scene: Scene, kinds: AbstractSet[str]) -> Scene:
    """The scene with lanes in which nothing of these kinds of the legend lies, so that what is left moves up."""
    hidden = [DRAWN.index(one) for name, _, categories in LEGEND if name in kinds for one in categories]
    rows = np.sort(scene.lanes.row)
    return replace(scene, lanes=_lanes(scene.trace.spans[rows[~np.isin(scene.categories[rows], hidden)]]))


def _lanes(spans: pl.DataFrame) -> Lanes:
    """Lanes of rows of the table `spans`, each with its `span_id` as the row that it came from."""
    lanes = lanes_of(spans["track_id"].to_numpy(), spans["ts_ns"].to_numpy(), spans["dur_ns"].fill_null(0).to_numpy())
    return replace(lanes, row=spans["span_id"].to_numpy()[lanes.row])


def _categories(trace: Trace, codes: NDArray[np.uint32], names: list[str]) -> NDArray[np.uint8]:
    """The number of each span's category in `DRAWN`."""
    recorded = trace.spans["category"].to_physical().fill_null(CATEGORIES.index("other")).cast(pl.UInt8).to_numpy()
    categories = recorded.copy()
    waits = np.array([is_sync_call(name) for name in names], bool)
    on_host = np.isin(recorded, [CATEGORIES.index(one) for one in ("runtime", "driver")])
    categories[waits[codes] & on_host] = CATEGORIES.index("sync")
    work = trace.spans.select("span_id", "name", "category", "recorded_category", "op_id").filter(category="kernel")
    if work.height:
        categories[work["span_id"].filter(communicates(work, trace.spans)).to_numpy()] = DRAWN.index("communication")
    return categories


def _lines(trace: Trace) -> tuple[Line, ...]:
    lines: list[Line] = []
    memory = trace.allocations
    if not memory.is_empty():
        devices = dict(trace.devices.select("device_id", DEVICE_LABEL).iter_rows())
        for (device,), part in (
            memory.sort("ts_ns", maintain_order=True)
            .partition_by("device_id", as_dict=True, maintain_order=True)
            .items()
        ):
            lines += [
                _line(part, column, f"memory {word}, {devices.get(device, 'unknown device')}", "bytes")
                for column, word in (("total_allocated_bytes", "allocated"), ("total_reserved_bytes", "reserved"))
                if part[column].max()
            ]
    counters = trace.counters
    if not counters.is_empty():
        keys = ["device", "metric", "unit"]
        parts = counters.sort("ts_ns", maintain_order=True).partition_by(keys, as_dict=True, maintain_order=True)
        for (device, metric, unit), part in parts.items():
            label = f"{metric}, {device}" if device is not None else str(metric)
            lines.append(_line(part, "value", label, None if unit is None else str(unit)))
    return tuple(line for line in lines if line.times.size)[:_MOST_LINES]


def _line(frame: pl.DataFrame, column: str, label: str, unit: str | None) -> Line:
    known = (
        frame.select("ts_ns", pl.col(column).cast(pl.Float64).alias("value"))
        .drop_nulls()
        .filter(pl.col("value").is_finite())
    )
    return Line(label, unit, known["ts_ns"].to_numpy(), known["value"].to_numpy())


def layout(scene: Scene) -> dict[str, Any]:
    """What the browser needs before it asks for windows: groups of tracks, lines, steps, bounds. Times in ns."""
    trace, lanes = scene.trace, scene.lanes
    n_lanes = dict(zip(*(a.tolist() for a in np.unique(lanes.tracks, return_counts=True)), strict=True))
    counted = trace.spans.group_by("track_id").agg(n=pl.len())
    n_spans = dict(counted.iter_rows())
    on_device = set(trace.spans.filter(pl.col("category").is_in(DEVICE_WORK))["track_id"].unique())
    devices = {row["device_id"]: row for row in trace.devices.with_columns(label=DEVICE_LABEL).iter_rows(named=True)}
    groups: dict[tuple[int, str], list[tuple[Any, dict[str, Any]]]] = {}
    for row in trace.tracks.iter_rows(named=True):
        track = row["track_id"]
        if track not in n_lanes:
            continue
        is_device = row["device_id"] is not None or track in on_device
        name = _group_name(row, devices.get(row["device_id"]))
        # Those with most in them first among threads; streams by number.
        stream = row["tid"] if row["stream"] is None else row["stream"]
        order = (stream or 0, track not in on_device, track) if is_device else (-n_spans[track], False, track)
        entry = {"id": track, "label": printable(_label(row)), "kind": str(row["kind"]), "lanes": n_lanes[track],
                 "spans": n_spans[track], "device": is_device}  # fmt: skip
        groups.setdefault((0 if is_device else 2 if row["kind"] == "annotation" else 1, name), []).append(
            (order, entry)
        )
    steps = trace.steps.drop_nulls(["ts_ns", "dur_ns"]).sort("ts_ns")
    listed = steps.head(_MOST_STEPS)
    return {
        "label": printable(trace.meta.path.replace("\\", "/").rsplit("/", 1)[-1]),
        "rank": trace.rank,
        "origin_unix_ns": None if trace.meta.origin_unix_ns is None else str(trace.meta.origin_unix_ns),
        "first_ns": scene.first_ns,
        "last_ns": scene.last_ns,
        "n_spans": trace.spans.height,
        "categories": list(DRAWN),
        "legend": _legend(scene),
        "groups": [
            {
                "label": printable(name),
                "tracks": _distinct([one for _, one in sorted(entries, key=lambda e: e[0])], on_device),
            }
            for (_, name), entries in sorted(groups.items(), key=lambda group: group[0][0])
        ],
        "lines": [
            {
                "label": printable(line.label),
                "unit": line.unit,
                "min": float(line.values.min()),
                "max": float(line.values.max()),
            }
            for line in scene.lines
        ],
        "steps": listed.select("step", "ts_ns", "dur_ns").rows(),
        "steps_left_out": steps.height - listed.height,
    }


def _legend(scene: Scene) -> list[dict[str, Any]]:
    """The kinds that the trace has, drawn or not."""
    counts = np.bincount(scene.categories, minlength=len(DRAWN))
    return [
        {"label": label, "colour": colour, "categories": categories}
        for label, colour, categories in LEGEND
        if any(counts[DRAWN.index(one)] for one in categories)
    ]


def _distinct(entries: list[dict[str, Any]], on_device: AbstractSet[int]) -> list[dict[str, Any]]:
    """Tracks of a group with labels of their own: without device work they are ranges, else their numbers help."""

    def renamed(entries: list[dict[str, Any]], ending: Callable[[dict[str, Any]], str]) -> list[dict[str, Any]]:
        often = Counter(entry["label"] for entry in entries)
        return [
            {**one, "label": one["label"] + ending(one) if often[one["label"]] > 1 else one["label"]} for one in entries
        ]

    entries = renamed(entries, lambda one: " · ranges" if one["device"] and one["id"] not in on_device else "")
    return renamed(entries, lambda one: f" · track {one['id']}")


def _group_name(row: dict[str, Any], device: dict[str, Any] | None) -> str:
    if device is not None and device["type"] != "cpu":
        name = device["name"]
        return str(device["label"]) + (f" · {name}" if name else "")
    parts = [row["process"] or "process"] + ([str(row["pid"])] if row["pid"] is not None else [])
    return " ".join(parts)


def _label(row: dict[str, Any]) -> str:
    if row["label"]:
        return str(row["label"]).strip()
    if row["stream"] is not None:
        return f"stream {row['stream']}"
    if row["kind"] == "annotation" and row["device_id"] is not None:
        return f"stream {row['tid']} · ranges"
    return f"{row['kind']} {row['tid']}" if row["tid"] is not None else f"{row['kind']} {row['track_id']}"
