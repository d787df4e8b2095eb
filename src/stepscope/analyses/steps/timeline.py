"""How the device's time divides: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.common.device_work import Occupied, device_work, groups_of, label_devices, occupied, stretches
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.intervals import Intervals, Ints, covered, total
from stepscope.core.schema import DEVICES, SPANS, STEPS, TRACKS, Column, Table
from stepscope.core.trace import extent_ns

__all__ = ["ANALYSIS", "TIMELINE", "timeline"]

By = Literal["rank", "device", "stream", "step", "time", "stream-time"]
_DEVICE, _STREAM = ("rank", "device_id"), ("rank", "device_id", "stream")
KEYS = {
    "rank": ("rank",), "device": _DEVICE, "stream": _STREAM, "step": ("rank",), "time": _DEVICE, "stream-time": _STREAM,
}  # fmt: skip

TIMELINE = Table(
    "timeline",
    "how the device's time divides, a row per rank, device, stream, step or stretch of time",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("device_id", pl.UInt32(), "device", key=True),
        Column("device", pl.String(), "device as the framework calls it"),
        Column("stream", pl.Int64(), "stream or queue (by stream, stream-time)", key=True),
        Column("step", pl.Int32(), "step whose window it is", key=True),
        Column("ts_ns", pl.Int64(), "start of the stretch, from the trace's origin (by time)", "ns", key=True),
        Column("computation_ns", pl.Int64(), "some kernel computes, or memory is being filled", "ns"),
        Column("exposed_communication_ns", pl.Int64(), "communicates while nothing computes", "ns"),
        Column("exposed_memcpy_ns", pl.Int64(), "copies while no kernel runs", "ns"),
        Column("busy_ns", pl.Int64(), "does anything: the sum of the three before", "ns"),
        Column("idle_ns", pl.Int64(), "does nothing", "ns"),
        Column("total_ns", pl.Int64(), "first start to last end of device work; by step, time: the window", "ns"),
        Column("communication_ns", pl.Int64(), "communicates, hidden or not", "ns"),
        Column("memcpy_ns", pl.Int64(), "copies, hidden or not", "ns"),
        Column("n_events", pl.Int64(), "kernels, copies and fills; by step: that it queued; by time: that start in it"),
    ),
)


def timeline(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame | None = None,
    steps: pl.DataFrame | None = None,
    *,
    by: By = "rank",
    linked_only: bool = False,
    communication: str = "any",
    bucket_ns: int | None = None,
) -> pl.DataFrame:
    """One row per rank, device, stream, step or stretch of time: how the device's time divides.

    The main columns are `computation_ns`, `exposed_communication_ns`, `exposed_memcpy_ns` and `idle_ns`, which sum to
    `total_ns`. Each kind of work is the union of its intervals over all streams (by rank and step: over all devices
    too), so overlaps count once. Computation is every kernel that does not communicate, and fills. Exposed
    communication is communication while nothing computes. Exposed memcpy is copies while no kernel runs. Idle is the
    rest.

    By step, the window reaches from the step's start on the host to the start of the next step (to its own end if the
    next number is missing), and work counts where it runs, not where it was queued. By stream, each stream is taken by
    itself. By time (per device) and stream-time, the recording from the first to the last device work is cut into
    stretches of `bucket_ns`; the default is the smallest power of ten µs that makes at most 100 stretches. The last one
    may be shorter.

    `linked_only` leaves out work that the trace does not tie to a launch. `communication` says which kernels talk to
    other ranks: `any` (all that do: collective libraries, multimem, NVSHMEM, DeepEP, one-shot all-reduce, …), `library`
    (those of collective libraries only, as TraceLens counts), or a regular expression of names.

    Units: ns.
    Source: the definition of TraceLens's gpu_timeline, so that the two can be compared.
    Raises MissingTable (no device work; by step: no steps), UnknownName (by), StepscopeError (too many stretches).
    """
    if by not in KEYS:
        raise UnknownName("grouping of timeline", by, KEYS)
    work = device_work(spans, tracks, needed_by="timeline", linked_only=linked_only, communication=communication)
    edges = stretches(*extent_ns(work), bucket_ns) if by in ("time", "stream-time") else None
    parts = []
    for key, part in groups_of(work, KEYS[by]):
        keys = dict(zip(KEYS[by], key, strict=True))
        if by == "step":
            parts.append(_of_steps(part, steps, keys["rank"]))
        elif edges is not None:
            parts.append(_of_stretches(part, edges, keys))
        else:
            parts.append(_of_group(part, keys))
    result = pl.concat(parts, how="vertical")
    if "device_id" in KEYS[by]:
        result = label_devices(result, DEVICES.empty() if devices is None else devices)
    return _in_order(result)


def _of_group(work: pl.DataFrame, keys: dict[str, int | None]) -> pl.DataFrame:
    times = occupied(work)
    measures = _measures(times, lambda iv: np.array([total(iv)]))
    whole = np.array([times.last_ns - times.first_ns])
    frame = pl.DataFrame({**measures, "total_ns": whole, "n_events": [work.height]})
    return frame.select(*(pl.lit(v, TIMELINE.column(k).dtype).alias(k) for k, v in keys.items()), pl.all())


def _of_stretches(work: pl.DataFrame, edges: Ints, keys: dict[str, int | None]) -> pl.DataFrame:
    lows, highs = edges[:-1], edges[1:]
    measures = _measures(occupied(work), lambda iv: covered(iv, lows, highs))
    begun = np.searchsorted(np.sort(work["ts_ns"].to_numpy()), edges)
    begun[-1] = work.height  # what has no length may lie on the last edge
    frame = pl.DataFrame({"ts_ns": lows, **measures, "total_ns": highs - lows, "n_events": np.diff(begun)})
    return frame.select(*(pl.lit(v, TIMELINE.column(k).dtype).alias(k) for k, v in keys.items()), pl.all())


def _of_steps(work: pl.DataFrame, steps: pl.DataFrame | None, rank: int | None) -> pl.DataFrame:
    if steps is None or steps.is_empty():
        raise MissingTable("steps", needed_by="timeline by step")
    own = steps.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32()))).sort("ts_ns")
    ends = pl.when(pl.col("step").shift(-1) == pl.col("step") + 1).then(pl.col("ts_ns").shift(-1))
    window = own.select("rank", "step", low="ts_ns", high=ends.otherwise(pl.col("ts_ns") + pl.col("dur_ns")))
    lows, highs = window["low"].to_numpy(), window["high"].to_numpy()
    measures = _measures(occupied(work), lambda iv: covered(iv, lows, highs))
    queued = work.group_by("step").agg(n_events=pl.len())
    return (
        window.select("rank", "step")
        .with_columns(
            **{name: pl.Series(values) for name, values in measures.items()}, total_ns=pl.Series(highs - lows)
        )
        .join(queued, on="step", how="left", maintain_order="left")
        .with_columns(pl.col("n_events").fill_null(0).cast(pl.Int64))
    )


def _measures(times: Occupied, lengths: Callable[[Intervals], Ints]) -> dict[str, Ints]:
    computation, kernels, busy = lengths(times.computation), lengths(times.kernels), lengths(times.busy)
    return {
        "computation_ns": computation,
        "exposed_communication_ns": kernels - computation,
        "exposed_memcpy_ns": busy - kernels,
        "busy_ns": busy,
        "communication_ns": lengths(times.communication),
        "memcpy_ns": lengths(times.memcpy),
    }


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    frame = frame.with_columns(idle_ns=pl.col("total_ns") - pl.col("busy_ns"))
    return TIMELINE.conform(frame).select(c for c in TIMELINE.dtypes if c in frame.columns)


ANALYSIS = Analysis(
    name="timeline",
    doc="How the device's time divides: computation, exposed communication and copies, idle.",
    inputs=(SPANS, TRACKS),
    output=TIMELINE,
    run=timeline,
    optional=(DEVICES, STEPS),
)
