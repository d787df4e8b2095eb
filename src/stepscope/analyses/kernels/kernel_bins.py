"""Launches by state: how many threads each had, and how busy it kept a part of the device: low, middle or high."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.kernels.kernel_launches import kernel_launches, ranked, with_ratios, with_threads
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS, Column, Table

__all__ = ["ANALYSIS", "KERNEL_BINS", "kernel_bins"]


States = Literal["auto", "casio", "tensor-dram"]
STATES = ("auto", "casio", "tensor-dram")

#: Below the first is L, above the second H; the limits themselves are M.
THREADS, RATIO = (4_000, 32_000), (0.1, 0.7)
#: Percentages as doubles divided by 100 may lie off a limit by the last bit.
_SLACK = 1e-12


def launches_with_state(
    spans: pl.DataFrame, kernels: pl.DataFrame | None, metrics: pl.DataFrame | None, states: str, *, needed_by: str
) -> pl.DataFrame:
    """Kernel launches in order, with `state`; null where what it needs was not measured.

    `casio`: threads, multiprocessors, memory (a launch of few threads is `L**`, whatever else). `tensor-dram`: tensor
    cores, memory. `auto`: casio's where some launch has all three. Redzone checkers are left out, as casio does.
    Raises MissingTable, UnknownName (states).
    """
    if states not in STATES:
        raise UnknownName("kind of states", states, STATES)
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


def kernel_bins(
    spans: pl.DataFrame,
    metrics: pl.DataFrame,
    kernels: pl.DataFrame | None = None,
    *,
    states: States = "auto",
) -> pl.DataFrame:
    """Share of time in each state, matrix products apart, longest first. States without any time are left out.

    `casio`: three letters, for threads (L under 4,000, H over 32,000), multiprocessors and memory (L under 10 %, H over
    70 %); the limits themselves are M. A launch of few threads is `L**`, so there are 19 states. `tensor-dram`: two
    letters, for tensor cores and memory. `auto`: casio's where the trace has what it needs. Redzone checkers are left
    out. `metrics` and `kernels` are the tables `kernel_metrics` and `kernels`.

    Units: ns, ratio.
    Source: casio's scripts (ASPLOS 2024), which call matrix products what a list of names and a pattern hold; here the
    class `gemm` is meant.
    Raises MissingTable (no kernels, counters), UnknownName (states).
    """
    launches = launches_with_state(spans, kernels, metrics, states, needed_by="kernel-bins")
    bins = launches.group_by("state", "is_gemm").agg(calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum())
    return KERNEL_BINS.conform(ranked(bins, "state", "is_gemm"))


ANALYSIS = Analysis(
    name="kernel-bins",
    doc="Share of time in each state of threads, multiprocessors and memory.",
    inputs=(SPANS, KERNEL_METRICS),
    output=KERNEL_BINS,
    run=kernel_bins,
    optional=(KERNELS,),
    needs_clock=False,
)
