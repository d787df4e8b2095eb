"""Where each step's time went, and which steps were slower than the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.collective_calls import collectives_on_host, computing_on_host, open_time
from stepscope.analyses.common.device_work import device_work, occupancy
from stepscope.analyses.common.windows import of_rank, step_windows
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import covered, either, locate
from stepscope.core.names import is_launch_call, map_names
from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEPS = Table(
    "steps",
    "where each step's time went, a row per step and rank",
    (
        Column("step", pl.Int32(), "its number", key=True),
        Column("rank", pl.Int32(), "rank that recorded it", key=True),
        Column("ts_ns", pl.Int64(), "when it begins: on the device if that lags behind the host", "ns"),
        Column("window_ns", pl.Int64(), "from its begin to the next one's: what the step took", "ns"),
        Column("of_median_ratio", pl.Float64(), "the same, over the median of all steps of the rank", "ratio"),
        Column("computation_ns", pl.Int64(), "some kernel computes, or memory is being filled", "ns"),
        Column(
            "exposed_communication_ns", pl.Int64(), "communicates while nothing computes (no device: no operator)", "ns"
        ),
        Column("exposed_memcpy_ns", pl.Int64(), "copies while no kernel runs", "ns"),
        Column("idle_ns", pl.Int64(), "the device does nothing", "ns"),
        Column("busy_ratio", pl.Float64(), "share of the step in which the device does anything", "ratio"),
        Column("host_window_ns", pl.Int64(), "on the host alone: from its start there to the next one's", "ns"),
        Column("host_ns", pl.Int64(), "duration of the step's own span on the host", "ns"),
        Column(
            "late_ns", pl.Int64(), "from that span's end until the device has done its work; negative: before", "ns"
        ),
        Column("dataloader_ns", pl.Int64(), "a data loader fetches, on any thread", "ns"),
        Column("operator_ns", pl.Int64(), "an operator is open, on any thread, and no data loader fetches", "ns"),
        Column("other_host_ns", pl.Int64(), "the rest: Python, and waiting", "ns"),
        Column("n_kernels", pl.Int64(), "kernels that the step queued"),
        Column("n_launches", pl.Int64(), "calls that put work on a device"),
        Column("source", pl.String(), "where its bounds come from: annotation, detected"),
    ),
)


def steps(spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame = STEPS.empty()) -> pl.DataFrame:
    """One row per step and rank, in order of time: its length, and how device and host spent it.

    The main columns are `window_ns`, `computation_ns`, `exposed_communication_ns` and `idle_ns` of the device, and
    `dataloader_ns` and `operator_ns` of the host. A step begins with its span on the host, or when the device has done
    the work of the step before if that is later. Its window lasts until the next one begins; if the next number is
    missing, until its span has ended and the device has done its work. So `window_ns` is the time that a loop measures
    which waits for the device, and the cadence of the device where the host runs ahead (`host_window_ns` is shorter).

    Device time is what ran within the window, whichever step queued it, mean over the rank's devices. Host time is that
    of `host_window_ns`. `n_kernels` counts the kernels that the step queued, whenever they ran, and those in its window
    whose launch was not recorded. Without device work the device columns are null, and collectives on the host are a
    part of their own: then they do not count as operators, and the four parts sum to the window.

    Units: ns; ratios 0..1.
    Source: windows as a training loop's own clock measures them, or the cadence of the device; device columns as in
    `timeline`.
    Raises MissingTable if no steps are marked.
    """
    require_steps(steps, needed_by="steps")
    work = device_work(spans, tracks, needed_by=None)
    rows = step_windows(steps, work)
    lows = rows["host_ts_ns"].to_numpy()
    host = host_time(spans, lows, lows + rows["host_window_ns"].to_numpy(), collectives_apart=work.is_empty())
    rows = rows.with_columns(
        pl.col("source").cast(pl.String),
        of_median_ratio=pl.col("window_ns") / pl.col("window_ns").median().over("rank"),
        **host,
    )
    rows = rows.join(_n_launches(spans), on="step", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("n_launches").fill_null(0))
    rows = rows.with_columns(n_kernels=None) if work.is_empty() else _with_device(rows, work)
    return STEPS.conform(rows)


def _with_device(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The windows with what the devices of their rank did in them."""
    parts = []
    by_rank = rows.partition_by("rank", as_dict=True, maintain_order=True)
    for (rank,), mine in by_rank.items():
        its = of_rank(work, rank) if len(by_rank) > 1 else work
        means, _ = occupancy(its, mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy())
        measured = mine.join(_n_kernels(its, mine), on="step", how="left", maintain_order="left")
        measured = measured.with_columns(
            pl.col("n_kernels").fill_null(0), *(pl.Series(name, values) for name, values in means.items())
        )
        if means:
            busy = pl.when(pl.col("window_ns") > 0).then(pl.col("busy_ns") / pl.col("window_ns"))
            measured = measured.with_columns(busy_ratio=busy)
        parts.append(measured)
    return pl.concat(parts, how="diagonal").sort("ts_ns", "host_ts_ns")


def require_steps(steps: pl.DataFrame, *, needed_by: str) -> None:
    """Raises MissingTable, with what to do, if there are no steps."""
    if steps.is_empty():
        raise MissingTable("steps", needed_by=needed_by, topic="steps")


def host_time(
    spans: pl.DataFrame, lows: NDArray[np.int64], highs: NDArray[np.int64], *, collectives_apart: bool = False
) -> dict[str, pl.Series]:
    """How the host spent each window [low, high): `dataloader_ns`, `operator_ns`, `other_host_ns`; they sum to it.

    With `collectives_apart`, operators and ranges of collectives do not count as operators. The time in which only they
    are open is a fourth part, `exposed_communication_ns`.

    Units: ns. Source: union over all threads; what a data loader does in operators is data loading.
    """
    loading = open_time(spans, spans["category"] == "dataloader")
    operators = computing_on_host(spans) if collectives_apart else open_time(spans, spans["category"] == "operator")
    work = either(loading, operators)
    fetched, active = covered(loading, lows, highs), covered(work, lows, highs)
    parts = {"dataloader_ns": fetched, "operator_ns": active - fetched, "other_host_ns": highs - lows - active}
    if collectives_apart:
        every = covered(either(work, open_time(spans, collectives_on_host(spans))), lows, highs)
        parts |= {"exposed_communication_ns": every - active, "other_host_ns": highs - lows - every}
    return {name: pl.Series(lengths) for name, lengths in parts.items()}


def _n_launches(spans: pl.DataFrame) -> pl.DataFrame:
    """Calls that put work on a device, per step."""
    calls = spans.select("name", "step").filter(spans["category"].is_in(["runtime", "driver"]))
    calls = calls.filter(map_names(calls["name"], is_launch_call, pl.Boolean()))
    return _per_step(calls["step"], "n_launches")


def _n_kernels(work: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Kernels per step: those that it queued, and those without a launch record that began in its window."""
    kernels = work.filter(pl.col("category") == "kernel").select("ts_ns", "step", "launch_id")
    place = locate((windows["ts_ns"].to_numpy(), windows["end_ns"].to_numpy()), kernels["ts_ns"].to_numpy())
    ran = windows["step"].gather(pl.Series(place).replace(-1, None))
    return _per_step(ran.zip_with(kernels["launch_id"].is_null(), kernels["step"]), "n_kernels")


def _per_step(steps: pl.Series, name: str) -> pl.DataFrame:
    counted = steps.drop_nulls().alias("step").to_frame()
    return counted.group_by("step").agg(pl.len().cast(pl.Int64).alias(name))


ANALYSIS = analysis_of(steps, STEPS, "Where each step's time went, a row per step and rank.")
