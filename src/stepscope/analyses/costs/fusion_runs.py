"""Runs of kernels that one kernel could stand for: memory-bound, one after another on a stream, nothing in between."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import of_spans
from stepscope.core.names import is_sync_call, kernel_class, map_names, transfer_kind

#: Classes of kernels whose time is that of their traffic with memory, and which compilers put together.
FUSIBLE = (
    "elementwise", "norm", "softmax", "reduction", "copy", "embedding", "random", "rope", "quantization", "optimizer",
)  # fmt: skip
_MEMBER, _BESIDE, _OTHER = 0, 1, 2


def members_of_runs(work: pl.DataFrame, spans: pl.DataFrame, *, min_kernels: int, max_gap_ns: int) -> pl.DataFrame:
    """The kernels of all runs in order, with `run` (from 0), `kernel_class` and `gap_ns` since the one before.

    A run is kernels of memory-bound classes that follow one another on a track. Fills and copies within the device
    neither belong to it nor end it. What ends it: any other work on the track, another step, a gap longer than
    `max_gap_ns`, and a synchronising call of the host between two launches. `gap_ns` is the time in which nothing ran
    on the track; null for the first of a run, and without a clock. Units: ns.
    """
    columns = ("span_id", "track_id", "ts_ns", "end_ns", "dur_ns", "name", "category", "launch_id", "op_id", "step")
    work = work.select(*columns, "device_id").sort("track_id", "ts_ns", maintain_order=True)
    classes = map_names(work["name"], kernel_class, pl.String())
    work = work.with_columns(kernel_class=classes, role=_roles(work, classes))
    work = work.with_columns(idle_ns=_idle_before().cum_sum().over("track_id"))
    work = work.filter(pl.col("role") != _BESIDE).with_columns(called_ns=of_spans(spans, work_launches(work), "ts_ns"))
    before = {name: pl.col(name).shift(1) for name in ("track_id", "role", "step", "idle_ns")}
    gap = pl.col("idle_ns") - before["idle_ns"]
    follows = (
        (before["track_id"] == pl.col("track_id"))
        & (before["role"] == _MEMBER)
        & (pl.col("role") == _MEMBER)
        & before["step"].eq_missing(pl.col("step"))
        & (gap <= max_gap_ns).fill_null(value=True)
        & ~_synchronised(work["called_ns"], spans)
    ).fill_null(value=False)
    work = work.with_columns(follows=follows, gap_ns=pl.when(follows & pl.col("ts_ns").is_not_null()).then(gap))
    work = work.with_columns(run=(~pl.col("follows")).cum_sum()).filter(pl.col("role") == _MEMBER)
    work = work.filter(pl.len().over("run") >= min_kernels)
    return work.with_columns(run=pl.col("run").rle_id().cast(pl.Int64)).drop("role", "follows", "idle_ns", "called_ns")


def work_launches(work: pl.DataFrame) -> pl.Series:
    """The host calls of work that is not beside a run, row by row."""
    return work.filter(pl.col("role") != _BESIDE)["launch_id"]


def _roles(work: pl.DataFrame, classes: pl.Series) -> pl.Series:
    fusible = classes.is_in(FUSIBLE)
    inside = map_names(work["name"], transfer_kind, pl.String()).is_in(["DtoD", "memset"])
    is_kernel = work["category"] == "kernel"
    beside = pl.select(pl.when(is_kernel).then(classes == "memory").otherwise(inside)).to_series()
    role = pl.when(is_kernel & fusible).then(_MEMBER).when(beside & inside).then(_BESIDE).otherwise(_OTHER)
    return pl.select(role.cast(pl.Int8)).to_series()


def _idle_before() -> pl.Expr:
    """Time before each piece of work in which nothing ran on its track."""
    reached = pl.col("end_ns").cum_max().shift(1).over("track_id")
    return (pl.col("ts_ns") - reached).clip(lower_bound=0).fill_null(0)


def _synchronised(called: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Whether the host waited for the device between the launch before and this one; False where either is unknown."""
    host = spans.select("ts_ns", "dur_ns", "name").filter(spans["category"].is_in(["runtime", "driver"]))
    waits = host.filter(map_names(host["name"], is_sync_call, pl.Boolean())).sort("ts_ns")
    if waits.is_empty():
        return pl.Series([False] * len(called), dtype=pl.Boolean)
    starts = waits["ts_ns"].to_numpy()
    ends = np.append(starts + waits["dur_ns"].to_numpy(), np.iinfo(np.int64).max)
    first_end = np.minimum.accumulate(ends[::-1])[::-1]  # of the waits from each on, the first end
    low, high = called.shift(1).fill_null(2**62).to_numpy(), called.fill_null(-1).to_numpy()
    return pl.Series(first_end[np.searchsorted(starts, low)] <= high)
