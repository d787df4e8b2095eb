"""What stepscope says about a recording, by the names and in the units of the independent counts."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

import stepscope
from stepscope.core.schema import DEVICE_WORK

TABLE = Path(__file__).with_name("known_differences.csv")
#: Times may differ by this much: readers and oracle round at different places.
NEAR_NS, NEAR_RATIO = 1_000, 0.005
COUNTS = {"kernel": "kernels", "memcpy": "copies", "memset": "fills"}
TIMES = {
    "extent": "total_ns",
    "busy": "busy_ns",
    "idle": "idle_ns",
    "computation": "computation_ns",
    "communication": "communication_ns",
    "exposed_communication": "exposed_communication_ns",
    "copy_time": "memcpy_ns",
    "exposed_copies": "exposed_memcpy_ns",
}
BAR_PARTS = {
    "computation": "computation",
    "exposed communication": "exposed_communication",
    "exposed memcpy": "exposed_copies",
    "idle": "idle",
}

Quantities = dict[str, float | None]


class Known(NamedTuple):
    """A known difference: words about the recordings, their paths, the quantities, both sides, and why."""

    recordings: str
    pattern: str
    quantities: str
    stepscope: str
    recorder: str
    why: str

    def covers(self, path: str) -> bool:
        """Whether it is about this recording."""
        return fnmatch(path, self.pattern)

    def is_about(self, quantity: str) -> bool:
        """Whether it is about this quantity."""
        return any(fnmatch(quantity, each) for each in self.quantities.split("|"))


def known_differences() -> list[Known]:
    """The rows of the table beside this file."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [Known(**row) for row in csv.DictReader(file)]


def as_markdown(rows: list[Known]) -> str:
    """The table as docs/how-it-works.md shows it."""
    lines = [f"| {row.recordings} | {row.stepscope} | {row.recorder} | {row.why} |" for row in rows]
    return "\n".join(["| recordings | stepscope | the recorder | why |", "|---|---|---|---|", *lines])


def asked(trace: stepscope.Trace, name: str, **options: Any) -> pl.DataFrame:
    """The analysis, an empty table if the trace lacks what it needs."""
    try:
        return trace.show(name, **options)
    except stepscope.StepscopeError:
        return pl.DataFrame()


def of_stepscope(trace: stepscope.Trace) -> Quantities:
    """Every quantity that stepscope knows of the trace."""
    work = trace.spans.filter(trace.spans["category"].is_in(DEVICE_WORK))
    counts = work.join(trace.tracks.select("track_id", "rank", "device_id"), on="track_id")
    counts = counts.group_by("rank", "device_id", pl.col("category").cast(pl.String)).len()
    keys = sorted(
        {(rank, device) for rank, device, *_ in counts.rows()}, key=lambda key: [(v is None, v or 0) for v in key]
    )
    times, hidden = asked(trace, "timeline", by="device"), asked(trace, "overlap", by="device")
    used = asked(trace, "device-utilisation") if trace.steps.is_empty() else pl.DataFrame()
    values: Quantities = {"devices": len(keys)}
    for place, (rank, device) in enumerate(keys):
        by_kind = dict.fromkeys(COUNTS, 0) | {kind: n for r, d, kind, n in counts.rows() if (r, d) == (rank, device)}
        values |= {f"device {place} {COUNTS[kind]}": n for kind, n in by_kind.items()}
        if times.height:
            values[f"device {place} collectives"] = _row(hidden, rank, device).get("calls")
            spent = _row(times, rank, device)
            values |= {f"device {place} {name}": spent.get(column) for name, column in TIMES.items()}
        if use := _row(used, rank, device):
            values[f"device {place} kernel_time"] = use["busy_ratio"] * use["window_ns"]
    return values | _kernels(asked(trace, "kernels")) | _steps(trace) | _bar(trace)


def _row(table: pl.DataFrame, rank: int | None, device: int | None) -> dict[str, Any]:
    """The row of one device."""
    rows = table.to_dicts() if table.height else []
    return next((row for row in rows if (row["rank"], row["device_id"]) == (rank, device)), {})


def _kernels(table: pl.DataFrame) -> Quantities:
    if table.is_empty():
        return {}
    lengths = table["total_ns"]
    top = {f"top {i} total": lengths[i] for i in range(min(5, table.height))}
    calls = {f"calls of {name}": n for name, n in table.select(pl.col("name").cast(pl.String), "calls").rows()}
    return {"kernel total": None if lengths.null_count() else lengths.sum(), **top, **calls}


def _steps(trace: stepscope.Trace) -> Quantities:
    rows = trace.steps.sort("ts_ns")
    values: Quantities = {"steps": rows.height} | {f"step {i} length": ns for i, ns in enumerate(rows["dur_ns"])}
    order = {step: place for place, step in enumerate(rows["step"])}
    for row in asked(trace, "timeline", by="step").to_dicts():
        values |= {f"step {order[row['step']]} {name}": row[column] for name, column in TIMES.items()}
    return values


def _bar(trace: stepscope.Trace) -> Quantities:
    """The parts of the report's first bar, if that is of a device."""
    bars = stepscope.report(trace).bars
    ratios = {part.name: part.ratio for part in bars[0].parts} if bars else {}
    if not {"computation", "idle"} & set(ratios):
        return {}
    return {f"{bars[0].label} bar {name}": ratios.get(name, 0.0) for name in BAR_PARTS}


def of_oracle(document: dict[str, Any]) -> Quantities:
    """The same quantities of the independent counts, as far as they have them."""
    devices = list(document["devices"].values())
    values: Quantities = {"devices": len(devices)}
    for place, device in enumerate(devices):
        values |= {f"device {place} {name}": value for name, value in device.items() if name != "steps"}
    if devices:
        values["kernel total"] = document["kernel_total"] if document["top"] else None
        values |= {f"top {i} total": kernel["total"] for i, kernel in enumerate(document["top"])}
        values |= {f"calls of {kernel['name']}": kernel["calls"] for kernel in document["top"]}
    if document["whole"]:
        low, high = document["recorded"]
        around = {"idle": (high - low) - (document["whole"][1] - document["whole"][0])}  # before and after all work
        heads = [{**device, "idle": device["idle"] + around["idle"]} for device in devices]
        values |= _shares("Device", heads, (high - low) * len(devices))
        steps = [step for device in devices for step in device["steps"]]
        values |= _shares("Step", steps, sum(step["extent"] for step in steps))
    for place in range(len(document["steps"]) if document["whole"] else 0):
        means = {name: sum(device["steps"][place][name] for device in devices) / len(devices) for name in TIMES}
        values |= {f"step {place} {name}": value for name, value in means.items()}
    lengths = [step["length"] for step in document["steps"]]
    return values | {"steps": len(lengths)} | {f"step {i} length": length for i, length in enumerate(lengths)}


def _shares(bar: str, windows: list[dict[str, int]], whole: int) -> Quantities:
    """Parts of windows, summed, as shares of the whole."""
    parts = {part: sum(window[name] for window in windows) / (whole or 1) for part, name in BAR_PARTS.items()}
    return {f"{bar} bar {part}": ratio for part, ratio in parts.items()}


def agree(quantity: str, ours: float | None, theirs: float | None) -> bool:
    """Whether both mean the same: counts exactly, times and shares nearly."""
    if ours is None or theirs is None:
        return ours is theirs
    if " bar " in quantity:
        return abs(ours - theirs) <= NEAR_RATIO
    if (
        quantity in ("devices", "steps")
        or quantity.rsplit(maxsplit=1)[-1] in (*COUNTS.values(), "collectives")
        or quantity.startswith("calls of ")
    ):
        return ours == theirs
    return abs(ours - theirs) <= max(NEAR_NS, NEAR_RATIO * max(abs(ours), abs(theirs)))


def differences(ours: Quantities, theirs: Quantities) -> dict[str, tuple[float | None, float | None]]:
    """Every quantity that both have and that differs, with both values."""
    both = [name for name in theirs if name in ours]
    return {name: (ours[name], theirs[name]) for name in both if not agree(name, ours[name], theirs[name])}
