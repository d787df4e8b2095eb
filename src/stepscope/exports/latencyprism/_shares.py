"""β, the share of functions in the cycles of a recording, in rows like those of the published files without metrics.

Source: the description of the published tool's first stage. Categories determine its event types; events without such
a type, such as operators, have no share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]

_SYNCS = ("cudaStreamSynchronize", "cuStreamSynchronize")
_MAPPINGS = ("mmap", "mprotect", "munmap")
_DISK = ("read", "readv", "write")
_COPIES = {"HtoD": "gpu_memcpy_h2d", "DtoH": "gpu_memcpy_d2h", "DtoD": "gpu_memcpy_d2d"}


def events_in_cycles(trace: Trace, cycles: pl.DataFrame) -> pl.DataFrame:
    """Events that have a share, in their cycles: cycle, pid, device, name, type, category, start, end. Units: ns.

    What runs on the host is cut at the cycles' borders; device work belongs, whole, to the cycle that launched it.
    """
    spans = trace.spans.join(trace.tracks.select("track_id", "pid", "device_id"), on="track_id", how="left")
    spans = spans.select(
        "span_id", "pid", "launch_id", "category", type=_type(), name=pl.col("name").cast(pl.String), start="ts_ns",
        end=pl.col("ts_ns") + pl.col("dur_ns"), device_id="device_id",
    )  # fmt: skip
    calls = spans.select(launch_id="span_id", launch_pid="pid", launched="start")
    index = trace.devices.select("device_id", device=pl.format("gpu{}", "index"))
    typed = spans.filter(pl.col("type").is_not_null()).join(calls, on="launch_id", how="left")
    typed = typed.join(index, on="device_id", how="left", maintain_order="left")
    on_device = pl.col("category").is_in(DEVICE_WORK)
    work = typed.filter(on_device).with_columns(pid=pl.coalesce("launch_pid", pl.lit(_main_pid(trace))))
    host = typed.filter(~on_device).with_columns(device=pl.lit("host"))
    low, high = cycles["ts_ns"].to_numpy(), (cycles["ts_ns"] + cycles["dur_ns"]).to_numpy()
    number = cycles["cycle"].to_numpy()
    parts = [_launched(work, low, high, number), _clipped(host, low, high, number)]
    columns = ("cycle", "pid", "device", "name", "type", "category", "start", "end")
    return pl.concat([part.select(columns) for part in parts]).sort("start", maintain_order=True)


def _type() -> pl.Expr:
    """The published type of an event, null for those that have none; the first rule that fits."""
    name, category = pl.col("name").cast(pl.String), pl.col("category").cast(pl.String)
    copy = pl.lit("gpu_memcpy_h2d")
    for sign, kind in reversed(_COPIES.items()):
        copy = pl.when(name.str.contains(sign, literal=True)).then(pl.lit(kind)).otherwise(copy)
    # LatencyPrism's own rule, narrower than ours in `core.collectives`.
    collective = name.str.to_lowercase().str.contains("nccl", literal=True)
    kernel = pl.when(collective).then(pl.lit("gpu_comm")).otherwise(pl.lit("gpu_compute"))
    return (
        pl.when(category == "kernel").then(kernel)
        .when(category == "memcpy").then(copy)
        .when(category == "memset").then(pl.lit("gpu_memcpy_h2d"))
        .when(name.is_in(_MAPPINGS)).then(pl.lit("cpu_os_syscall_mem"))
        .when(name.is_in(_SYNCS) & category.is_in(["runtime", "driver"])).then(pl.lit("cpu_sync"))
        .when(name.is_in(_DISK) & (category == "io")).then(pl.lit("disk_read_and_write"))
        .when(category == "sched_oncpu").then(pl.lit("oncpu"))
        .when(category == "sched_runq").then(pl.lit("runq"))
    )  # fmt: skip


def _main_pid(trace: Trace) -> int | None:
    """The process that recorded: that of most host tracks."""
    pids = trace.tracks.filter(pl.col("device_id").is_null())["pid"].drop_nulls()
    return None if pids.is_empty() else int(pids.mode().sort()[0])


def _launched(work: pl.DataFrame, low: Ints, high: Ints, number: Ints) -> pl.DataFrame:
    at = work.select(pl.coalesce("launched", "start")).to_series().to_numpy()
    cycle = np.searchsorted(low, at, side="right") - 1
    inside = (cycle >= 0) & (at < high[np.maximum(cycle, 0)])
    return work.filter(inside).with_columns(cycle=pl.Series(number[cycle[inside]], dtype=pl.Int64))


def _clipped(host: pl.DataFrame, low: Ints, high: Ints, number: Ints) -> pl.DataFrame:
    """Events in each cycle that they overlap, cut at its borders. Cycles are sorted and do not overlap."""
    start, end = host["start"].to_numpy(), host["end"].to_numpy()
    first = np.searchsorted(high, start, side="right")
    counts = np.maximum(np.searchsorted(low, end, side="left") - first, 0)
    rows = np.repeat(np.arange(start.size), counts)
    cycle = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return host[rows].with_columns(
        cycle=pl.Series(number[cycle], dtype=pl.Int64),
        start=pl.Series(np.maximum(start[rows], low[cycle])),
        end=pl.Series(np.minimum(end[rows], high[cycle])),
    )


def merged_runs(events: pl.DataFrame) -> pl.DataFrame:
    """Events whose metrics are looked up: `oncpu` of all threads of a process joined where they overlap.

    `weight` is the summed duration of what was joined, `calls` its number. Units: ns.
    """
    lane = ["cycle", "pid"]
    events = events.with_columns(weight=pl.col("end") - pl.col("start"), calls=pl.lit(1, pl.Int64))
    runs, rest = events.filter(pl.col("type") == "oncpu"), events.filter(pl.col("type") != "oncpu")
    runs = runs.sort(*lane, "start", maintain_order=True)
    # An event that only touches the running block begins a new one.
    is_first = pl.col("start") >= pl.col("end").cum_max().shift(1).over(lane)
    runs = runs.with_columns(block=is_first.fill_null(value=True).cum_sum())
    first = [pl.col(name).first() for name in ("cycle", "pid", "device", "name", "type", "category", "start")]
    joined = runs.group_by("block", maintain_order=True).agg(
        *first, pl.col("end").max(), pl.col("weight", "calls").sum()
    )
    return pl.concat([rest, joined.select(rest.columns)])


def shares(events: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """β: a row per cycle, process, device, function: calls, total_ns, beta_ratio; type and category of its last event.

    Durations add up, also where events overlap, so β may exceed 1.
    """
    keys = ["cycle", "pid", "device", "name"]
    last = events.group_by("name").agg(pl.col("type", "category").last())
    rows = events.group_by(keys, maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64), total_ns=(pl.col("end") - pl.col("start")).sum()
    )
    rows = rows.join(last, on="name", maintain_order="left")
    rows = rows.join(cycles.select("cycle", "dur_ns"), on="cycle", maintain_order="left")
    return rows.with_columns(beta_ratio=pl.col("total_ns") / pl.col("dur_ns")).drop("dur_ns")
