"""Kernel launches by state: how much time each state takes (kernel-bins), and how long each lasts (kernel-runs).

A state says whether a launch had few or many threads, and how busy it kept parts of the device: low, middle or high.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.kernels.kernel_launches import kernel_launches, ranked, with_ratios, with_threads
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import KERNELS
from stepscope.core.table import Column, Table

States = Literal["auto", "casio", "tensor-dram"]

#: Below the first is L, above the second H; the limits themselves are M.
THREADS, RATIO = (4_000, 32_000), (0.1, 0.7)
#: Percentages as doubles divided by 100 may lie off a limit by the last bit.
_SLACK = 1e-12
KERNEL_BINS = Table(
    "kernel-bins",
    "in which state kernels spend their time",
    (
        Column("state", pl.String(), "a letter for each measure: L low, M middle, H high, * any", key=True),
        Column("is_gemm", pl.Boolean(), "matrix products, or all else", key=True),
        Column("calls", pl.Int64(), "launches"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
    ),
)
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


def launches_with_state(
    spans: pl.DataFrame, kernels: pl.DataFrame, metrics: pl.DataFrame, states: str, *, needed_by: str
) -> pl.DataFrame:
    """Kernel launches in order, with `state`; null where its counters were not measured.

    `casio`: threads, multiprocessors, memory (a launch of few threads is `L**`, whatever else). `tensor-dram`: tensor
    cores, memory. `auto`: casio's where some launch has all three. Redzone checkers are left out, as casio does.
    Raises MissingTable, UnknownName (states).
    """
    launches = kernel_launches(spans, needed_by=needed_by, without_trials=True)
    launches = with_threads(with_ratios(launches, metrics, needed_by=needed_by), kernels)
    threads = letter("threads", *THREADS)
    sm, dram, tensor = (letter(name, *RATIO) for name in ("sm_ratio", "dram_ratio", "tensor_ratio"))
    casio = pl.when(threads == "L").then(pl.lit("L**")).otherwise(threads + sm + dram)
    launches = launches.with_columns(casio=casio, tensor_dram=tensor + dram)
    if states == "auto":
        is_full = launches.select(pl.all_horizontal(pl.col("threads", "sm_ratio", "dram_ratio").is_not_null()).any())
        states = "casio" if is_full.item() else "tensor-dram"
    launches = launches.with_columns(state=pl.col(states.replace("-", "_")))
    if launches["state"].null_count() == launches.height:
        what = {"casio": "threads, SM and DRAM use of kernels", "tensor-dram": "tensor-core and DRAM use of kernels"}
        raise MissingTable(what[states], needed_by=needed_by, hint="try another --states")
    return launches.drop("casio", "tensor_dram")


def letter(column: str, low: float, high: float) -> pl.Expr:
    """L below `low`, H above `high`, M between and at the limits; null if unknown."""
    value = pl.col(column)
    known = pl.when(value < low - _SLACK).then(pl.lit("L")).when(value > high + _SLACK).then(pl.lit("H"))
    return pl.when(value.is_not_null()).then(known.otherwise(pl.lit("M")))


def kernel_bins(
    spans: pl.DataFrame,
    kernel_metrics: pl.DataFrame,
    kernels: pl.DataFrame = KERNELS.empty(),
    *,
    states: States = "auto",
) -> pl.DataFrame:
    """One row per state, matrix products apart, longest first: its launches and its share of time.

    `casio`: three letters, for threads (L under 4,000, H over 32,000), multiprocessors and memory (L under 10 %, H over
    70 %); the limits themselves are M. A launch of few threads is `L**`, so there are 19 states. `tensor-dram`: two
    letters, for tensor cores and memory. `auto`: casio's where the trace has what it needs. Redzone checkers are left
    out. `metrics` and `kernels` are the tables `kernel_metrics` and `kernels`.

    Units: ns, ratio.
    Source: casio's scripts (ASPLOS 2024), which know matrix products by a list of names and a pattern; here they are
    the class `gemm`.
    Raises MissingTable (no kernels, counters), UnknownName (states).
    """
    launches = launches_with_state(spans, kernels, kernel_metrics, states, needed_by="kernel-bins")
    bins = launches.group_by("state", "is_gemm").agg(calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum())
    return KERNEL_BINS.conform(ranked(bins, "state", "is_gemm"))


ANALYSIS = analysis_of(
    kernel_bins, KERNEL_BINS, "Share of time in each state of threads, multiprocessors and memory.", needs_clock=False
)


def kernel_runs(
    spans: pl.DataFrame,
    kernel_metrics: pl.DataFrame,
    kernels: pl.DataFrame = KERNELS.empty(),
    *,
    by: By = "all",
    states: States = "auto",
    window: int = 19,
) -> pl.DataFrame:
    """One row for all runs of launches in the same state, per state, or per run in order: how many launches they last.

    The main columns are `n_runs`, `mean_calls`, `share_ratio` and `gemm_ratio`. The runs in order, each as wide as its
    share of time, are the chronological strip of casio's figures; by state they are its summed one. `states` is that of
    `kernel-bins`; `metrics` and `kernels` are the tables `kernel_metrics` and `kernels`. `mean_states` is null where
    there are fewer launches than `window`.

    Units: ns, ratio, launches.
    Source: casio's scripts (ASPLOS 2024); its window is as long as it has states, 19.
    Raises MissingTable (no kernels, counters), UnknownName (by, states), StepscopeError (window).
    """
    if window < 1:
        raise StepscopeError(f"window is {window}, and must be 1 or more")
    launches = launches_with_state(spans, kernels, kernel_metrics, states, needed_by="kernel-runs")
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


KERNEL_RUNS_ANALYSIS = analysis_of(
    kernel_runs, KERNEL_RUNS, "How many launches in succession are in the same state.", needs_clock=False
)
