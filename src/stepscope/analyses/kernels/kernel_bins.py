"""In which state kernels spend their time: few or many threads, idle or busy multiprocessors and memory."""

from __future__ import annotations

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.kernels.kernel_launches import ranked
from stepscope.analyses.kernels.occupancy_states import States, launches_with_state
from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS, Column, Table

__all__ = ["ANALYSIS", "KERNEL_BINS", "kernel_bins"]

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
    found = launches.group_by("state", "is_gemm").agg(calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum())
    return KERNEL_BINS.conform(ranked(found, "state", "is_gemm"))


ANALYSIS = Analysis(
    name="kernel-bins",
    doc="Share of time in each state of threads, multiprocessors and memory.",
    inputs=(SPANS, KERNEL_METRICS),
    output=KERNEL_BINS,
    run=kernel_bins,
    optional=(KERNELS,),
    needs_clock=False,
)
