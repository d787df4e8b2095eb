"""How the device's time divides: computation, exposed communication, exposed copies, idle."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import (
    by_device,
    device_work,
    groups_of,
    label_devices,
    measures,
    occupancy,
    occupied,
    on_devices,
)
from stepscope.analyses.common.windows import of_rank, step_windows, stretches
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Ints
from stepscope.core.schema import DEVICES, STEPS
from stepscope.core.table import Column, Table
from stepscope.core.trace import extent_ns

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
        Column("n_devices", pl.Int64(), "devices whose mean the times are (by rank, step)"),
        Column("n_events", pl.Int64(), "kernels, copies and fills; by step: that it queued; by time: that start in it"),
    ),
)


def timeline(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    devices: pl.DataFrame = DEVICES.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: By = "rank",
    linked_only: bool = False,
    communication: str = "any",
    bucket_ns: int | None = None,
) -> pl.DataFrame:
    """One row per rank, device, stream, step or stretch of time: how the device's time divides.

    The main columns are `computation_ns`, `exposed_communication_ns`, `exposed_memcpy_ns` and `idle_ns`, which sum to
    `total_ns`. Each kind of work is the union of its intervals over all streams of a device, so overlaps count once. By
    rank and step, the times are the mean of the rank's devices, `n_devices` of them; work of an unknown device counts
    only where no device is known. Computation is every kernel that does not communicate, and fills. Exposed
    communication is communication while nothing computes. Exposed memcpy is copies while no kernel runs. Idle is the
    rest.

    By step, the window is that of `steps`: it lasts until the next one begins, on the device if that lags behind the
    host. Work counts where it runs, not where it was queued. By stream, each stream is taken by
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
    work = device_work(spans, tracks, needed_by="timeline", linked_only=linked_only, communication=communication)
    edges = stretches(*extent_ns(work), bucket_ns) if by in ("time", "stream-time") else None
    if by == "step":
        parts = [_of_steps(part, steps, rank) for (rank,), part in groups_of(work, KEYS[by])]
    elif by in ("rank", "device"):
        parts = [
            row for (rank,), part in groups_of(work, ("rank",)) for row in _of_rank(part, rank, each=by == "device")
        ]
    else:
        groups = groups_of(on_devices(work) if by == "time" else work, KEYS[by])
        parts = [_of_group(part, dict(zip(KEYS[by], key, strict=True)), edges) for key, part in groups]
    result = pl.concat(parts, how="vertical")
    if "device_id" in KEYS[by]:
        result = label_devices(result, devices)
    return TIMELINE.conform(result).select(c for c in TIMELINE.dtypes if c in result.columns)


def _of_rank(work: pl.DataFrame, rank: int | None, *, each: bool) -> list[pl.DataFrame]:
    """The mean of the rank's devices, or with `each` a row for every device; all have the rank's window."""
    lows, highs = (np.array([time]) for time in extent_ns(work))
    if not each:
        means, n_devices = occupancy(work, lows, highs)
        return [_keyed(pl.DataFrame({**means, "n_devices": n_devices, "n_events": work.height}), {"rank": rank})]
    rows = []
    for (_, device_id), mine in by_device(work):
        frame = pl.DataFrame({**measures(occupied(mine), lows, highs), "n_events": mine.height})
        rows.append(_keyed(frame, {"rank": rank, "device_id": device_id}))
    return rows


def _of_group(work: pl.DataFrame, keys: dict[str, int | None], edges: Ints | None) -> pl.DataFrame:
    """One stream over the time of its own work; with `edges` a row for each stretch between two of them."""
    bounds = np.array(extent_ns(work)) if edges is None else edges
    lows, highs = bounds[:-1], bounds[1:]
    begun = np.searchsorted(np.sort(work["ts_ns"].to_numpy()), bounds)
    begun[-1] = work.height  # what has no length may lie on the last edge
    frame = pl.DataFrame({"ts_ns": lows, **measures(occupied(work), lows, highs), "n_events": np.diff(begun)})
    return _keyed(frame if edges is not None else frame.drop("ts_ns"), keys)


def _keyed(frame: pl.DataFrame, keys: dict[str, int | None]) -> pl.DataFrame:
    return frame.select(*(pl.lit(v, TIMELINE.column(k).dtype).alias(k) for k, v in keys.items()), pl.all())


def _of_steps(work: pl.DataFrame, steps: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    if steps.is_empty():
        raise MissingTable("steps", needed_by="timeline by step")
    own = of_rank(steps, rank)
    window = step_windows(own, work)
    means, n_devices = occupancy(work, window["ts_ns"].to_numpy(), window["end_ns"].to_numpy())
    queued = work.group_by("step").agg(n_events=pl.len())
    return (
        window.select("rank", "step")
        .with_columns(**{name: pl.Series(values) for name, values in means.items()}, n_devices=n_devices)
        .join(queued, on="step", how="left", maintain_order="left")
        .with_columns(pl.col("n_events").fill_null(0).cast(pl.Int64))
    )


ANALYSIS = analysis_of(
    timeline, TIMELINE, "How the device's time divides: computation, exposed communication and copies, idle."
)
