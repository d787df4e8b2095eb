"""How a step divides among device and host: each moment counts once, for what matters most at that moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.collective_calls import collectives_on_host, open_time
from stepscope.analyses.common.device_work import COMMUNICATION, by_device, device_work, mean_of
from stepscope.analyses.common.windows import windows_of
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, Ints, covered, either, union
from stepscope.core.schema import DEVICE_WORK, STEPS, TRACKS
from stepscope.core.table import Column, Table, is_any_of

#: The parts of a step. Earlier ones take precedence; the rest is `other`.
PARTS = {
    "kernel": "a kernel runs that does not communicate",
    "memcpy": "a copy, and no such kernel",
    "memset": "a fill, and nothing of the above",
    "communication": "a kernel of a collective, or a collective on the host, and nothing of the above",
    "runtime": "the host is in a call of the device's runtime or driver, and nothing of the above",
    "dataloader": "a data loader fetches, and nothing of the above",
    "cpu_exec": "an operator or a named range is open on the host, and nothing of the above",
    "other": "nothing of the above: Python, and waiting",
}

STEP_BREAKDOWN = Table(
    "step-breakdown",
    "how each step divides, each moment counted once, a row per step and rank, or per part",
    (
        Column("part", pl.Enum(list(PARTS)), "what the time went into (by part)", key=True),
        Column("step", pl.Int32(), "its number; null: no steps are marked, the row is the whole recording", key=True),
        Column("rank", pl.Int32(), "rank that recorded it (by step)", key=True),
        Column("mean_ns", pl.Float64(), "mean of the steps (by part)", "ns"),
        Column("share_ratio", pl.Float64(), "the part of all steps' time that it is (by part)", "ratio"),
        Column("total_ns", pl.Int64(), "what the step took until the device was done with it: all parts", "ns"),
        *(Column(f"{part}_ns", pl.Int64(), doc, "ns") for part, doc in PARTS.items()),
        *(Column(f"{part}_share_ratio", pl.Float64(), f"`{part}_ns` over `total_ns`", "ratio") for part in PARTS),
        Column("ts_ns", pl.Int64(), "start, on the side of the device", "ns"),
    ),
)


def step_breakdown(
    spans: pl.DataFrame,
    tracks: pl.DataFrame = TRACKS.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: Literal["step", "part"] = "step",
    communication: str = "any",
) -> pl.DataFrame:
    """One row per step in order of time, or per part of the average step (by part). The parts sum to `total_ns`.

    Each moment counts once. Where several things happen at a time, the first of these parts counts: kernel, memcpy,
    memset, communication, runtime, dataloader, cpu_exec, other.

    A step's window is that of `steps`: it begins when the device has done the work of the step before, or with its span
    on the host if that is later, and lasts until the next one begins. So windows never overlap and are never negative.
    Threads are merged; of several devices, each divides the step, and the parts are their mean. Kernels of collectives
    count as communication, not as `kernel`; `communication` says which those are, as in `timeline`. Named ranges count
    as work of the host (`cpu_exec`), frames of Python do not, so the result is the same with or without recorded
    stacks. Without marked steps the one row is the recording. Without device work the parts of the device are 0.

    Units: ns; ratios 0..1.
    Source: the step time breakdown of the TensorBoard profiler plugin, whose kernels of collectives count as kernels,
    whose parts may exceed the step, which leaves out the time between steps on the host, and which drops steps at the
    end that have little device work.
    Raises MissingTable (neither host nor device work), UnknownName (by), StepscopeError (`communication` is no
    regular expression).
    """
    work = device_work(spans, tracks, needed_by=None, communication=communication)
    windows = windows_of(spans, tracks, steps, work)
    parts = broken_down(spans, work, windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy())
    sums = {f"{part}_ns": ns for part, ns in parts.items()}
    rows = windows.with_columns(total_ns=pl.col("end_ns") - pl.col("ts_ns"), **sums)
    return _average(rows) if by == "part" else _each(rows)


def broken_down(
    spans: pl.DataFrame, work: pl.DataFrame, lows: Ints, highs: Ints, needed_by: str = "step-breakdown"
) -> dict[str, Ints]:
    """How each window [low, high) divides into PARTS, which add up to it. `work` is what `device_work` returns.

    Units: ns. Raises MissingTable (neither host nor device work).
    """
    host = host_parts(spans)
    if work.is_empty() and not any(starts.size for starts, _ in host.values()):
        raise MissingTable("host or device work", needed_by=needed_by, topic="host")
    talks = host.pop("communication")
    host["cpu_exec"] = either(host["cpu_exec"], host.pop("range"))
    each = [device_parts(mine) for _, mine in by_device(work)] or [device_parts(work)]
    for device in each:
        device["communication"] = either(device["communication"], talks)
    return mean_of([divided([*device.items(), *host.items()], lows, highs) for device in each], PARTS)


def _each(rows: pl.DataFrame) -> pl.DataFrame:
    whole = pl.when(pl.col("total_ns") > 0).then(pl.col("total_ns"))
    rows = rows.with_columns((pl.col(f"{part}_ns") / whole).alias(f"{part}_share_ratio") for part in PARTS)
    return STEP_BREAKDOWN.conform(rows).drop("part", "mean_ns", "share_ratio")


def _average(rows: pl.DataFrame) -> pl.DataFrame:
    whole = int(rows["total_ns"].sum())
    sums = [int(rows[f"{part}_ns"].sum()) for part in PARTS]
    columns = {
        "part": list(PARTS),
        "mean_ns": [ns / rows.height for ns in sums],
        "share_ratio": [ns / whole if whole else None for ns in sums],
    }
    return STEP_BREAKDOWN.conform(pl.DataFrame(columns)).select(list(columns))


def divided(levels: Iterable[tuple[str, Intervals]], lows: Ints, highs: Ints) -> dict[str, Ints]:
    """How much of each window [low, high) each level of intervals adds to those before it, and `other`, the rest."""
    parts = {}
    every: Intervals = np.empty(0, np.int64), np.empty(0, np.int64)
    taken = np.zeros(lows.size, np.int64)
    for name, level in levels:
        if level[0].size:
            every = either(every, level)
        reached = covered(every, lows, highs)
        parts[name] = reached - taken
        taken = reached
    parts["other"] = np.maximum(highs - lows, 0) - taken
    return parts


def host_parts(spans: pl.DataFrame) -> dict[str, Intervals]:
    """When the host is in each of its parts, on any thread. Each part is a disjoint set; parts may overlap."""
    category = spans["category"]
    return {
        "communication": open_time(spans, collectives_on_host(spans)),
        "runtime": open_time(spans, is_any_of(category, ("runtime", "driver"))),
        "dataloader": open_time(spans, category == "dataloader"),
        "cpu_exec": open_time(spans, category == "operator"),
        "range": open_time(spans, category == "user_range"),
    }


def device_parts(work: pl.DataFrame) -> dict[str, Intervals]:
    """When devices are in each of their parts; `work` is of `device_work`. Each part is disjoint; parts may overlap."""
    recorded = pl.col("category").cast(pl.String)
    part = pl.when(pl.col("sort") == COMMUNICATION).then(pl.lit("communication")).otherwise(recorded)
    work = work.sort("ts_ns").select("ts_ns", "end_ns", part=part)  # one sort serves every union
    parts = {name: work.filter(pl.col("part") == name) for name in (*DEVICE_WORK, "communication")}
    return {name: union(mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy()) for name, mine in parts.items()}


ANALYSIS = analysis_of(
    step_breakdown,
    STEP_BREAKDOWN,
    "How each step divides: kernels, copies, communication, runtime calls, data loading, operators, the rest.",
)
