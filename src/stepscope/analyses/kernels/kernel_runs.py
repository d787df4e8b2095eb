"""How long kernels stay in one state before they change to another: how mixed a workload is in time."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.kernels.kernel_bins import States, launches_with_state
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS, Column, Table

__all__ = ["ANALYSIS", "KERNEL_RUNS", "kernel_runs"]

By = Literal["all", "state", "run"]
KEYS = {"all": (), "state": ("state",), "run": ("run", "state")}

KERNEL_RUNS = Table(
    "kernel-runs",
    "launches in succession that are in the same state",
    (
        Column("run", pl.Int64(), "number of the run, from 0 in order of launch (by run)", key=True),
        Column("state", pl.String(), "as in kernel-bins (by state, run)", key=True),
        Column("first_id", pl.UInt32(), "span_id of its first launch (by run)"),
        Column("n_runs", pl.Int64(), "how many runs"),
        Column("calls", pl.Int64(), "launches in them"),
        Column("mean_calls", pl.Float64(), "mean launches of a run"),
        Column("max_calls", pl.Int64(), "launches of the longest run"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
        Column("gemm_ratio", pl.Float64(), "share of its time in matrix products", "ratio"),
        Column("mean_states", pl.Float64(), "mean number of states among `window` launches in succession (by all)"),
    ),
)


def kernel_runs(
    spans: pl.DataFrame,
    metrics: pl.DataFrame,
    kernels: pl.DataFrame | None = None,
    *,
    by: By = "all",
    states: States = "auto",
    window: int = 19,
) -> pl.DataFrame:
    """Runs of launches in the same state: their mean length in all, by state, or each run by itself in order.

    The runs in order, each as wide as its share of time, are the chronological strip of casio's figures; by state they
    are its summed one. `states` is that of `kernel-bins`; `metrics` and `kernels` are the tables `kernel_metrics` and
    `kernels`. `mean_states` is null where there are fewer launches than `window`.

    Units: ns, ratio, launches.
    Source: casio's scripts (ASPLOS 2024); its window is as long as it has states, 19.
    Raises MissingTable (no kernels, counters), UnknownName (by, states), StepscopeError (window).
    """
    if by not in KEYS:
        raise UnknownName("grouping of kernel-runs", by, KEYS)
    if window < 1:
        raise StepscopeError(f"window is {window}, and must be 1 or more")
    launches = launches_with_state(spans, kernels, metrics, states, needed_by="kernel-runs")
    runs = (
        launches.with_columns(run=pl.col("state").rle_id().cast(pl.Int64), gemm_ns=pl.col("dur_ns") * pl.col("is_gemm"))
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("state").first(),
            first_id=pl.col("span_id").first(),
            calls=pl.len().cast(pl.Int64),
            total_ns=pl.col("dur_ns").sum(),
            gemm_ns=pl.col("gemm_ns").sum(),
        )
    )
    whole = runs["total_ns"].sum()
    measures = {
        "first_id": pl.col("first_id").first(),
        "n_runs": pl.len().cast(pl.Int64),
        "calls": pl.col("calls").sum(),
        "mean_calls": pl.col("calls").mean(),
        "max_calls": pl.col("calls").max(),
        "total_ns": pl.col("total_ns").sum(),
        "gemm_ns": pl.col("gemm_ns").sum(),
    }
    keys = KEYS[by]
    grouped = runs.group_by(keys, maintain_order=True).agg(**measures) if keys else runs.select(**measures)
    grouped = grouped.with_columns(
        share_ratio=pl.col("total_ns") / pl.lit(whole or None, dtype=pl.Float64),
        gemm_ratio=pl.when(pl.col("total_ns") > 0).then(pl.col("gemm_ns") / pl.col("total_ns")),
    )
    if by == "state":
        grouped = grouped.sort("total_ns", "state", descending=[True, False], nulls_last=True)
    if by == "all":
        grouped = grouped.with_columns(mean_states=pl.lit(_mean_states(launches["state"], window), dtype=pl.Float64))
    if by != "run":
        grouped = grouped.drop("first_id")
    return grouped.select(pl.col(k).cast(t) for k, t in KERNEL_RUNS.dtypes.items() if k in grouped.columns)


def _mean_states(states: pl.Series, window: int) -> float | None:
    """Mean number of distinct states in every `window` launches in succession."""
    n_windows = len(states) - window + 1
    if n_windows < 1:
        return None
    distinct = np.zeros(n_windows, np.int64)
    for state in states.unique().drop_nulls():
        so_far = np.concatenate(([0], np.cumsum((states == state).fill_null(value=False).to_numpy())))
        distinct += so_far[window:] > so_far[:-window]
    return float(distinct.mean())


ANALYSIS = Analysis(
    name="kernel-runs",
    doc="How many launches in succession are in the same state.",
    inputs=(SPANS, KERNEL_METRICS),
    output=KERNEL_RUNS,
    run=kernel_runs,
    optional=(KERNELS,),
    needs_clock=False,
)
