"""Of how few names a workload's time is made: each kernel's share, matrix products as one."""

from __future__ import annotations

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.kernels.kernel_launches import GEMM, kernel_launches, shares_by_name
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SPANS, Column, Name, Table

__all__ = ["ANALYSIS", "KERNEL_MIX", "kernel_mix"]

REST = "(all others)"

KERNEL_MIX = Table(
    "kernel-mix",
    "of how few names the time of kernels is made",
    (
        Column("rank", pl.Int64(), "1 is the longest in total", key=True),
        Column("name", Name, f"kernel; {GEMM}; {REST}", key=True),
        Column("calls", pl.Int64(), "launches"),
        Column("n_names", pl.Int64(), "distinct names in this row"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
        Column("cumulative_ratio", pl.Float64(), "part of all that this row and those above it make", "ratio"),
    ),
)


def kernel_mix(spans: pl.DataFrame, *, top: int = 30, merge_gemm: bool = True) -> pl.DataFrame:
    """The `top` names by time, and one row for all others.

    The rank at which `cumulative_ratio` reaches 0.8 or 0.9 is how many names make 80 or 90 % of the time. `merge_gemm`
    counts all matrix products as one name, as their variants differ by tile and not by work.

    Units: ns, ratio.
    Source: casio's scripts (ASPLOS 2024).
    Raises MissingTable (no kernels, no durations), StepscopeError (top).
    """
    if top < 1:
        raise StepscopeError(f"top is {top}, and must be 1 or more")
    shares = shares_by_name(kernel_launches(spans, needed_by="kernel-mix"), merge_gemm=merge_gemm)
    rest = shares[top:]
    if not rest.is_empty():
        sums = rest.select(pl.lit(REST).alias("name"), pl.col("calls", "n_names", "total_ns", "share_ratio").sum())
        shares = pl.concat([shares[:top], sums])
    return KERNEL_MIX.conform(
        shares.with_columns(rank=pl.int_range(1, pl.len() + 1), cumulative_ratio=pl.col("share_ratio").cum_sum())
    )


ANALYSIS = Analysis(
    name="kernel-mix",
    doc="Each kernel's share of time, with matrix products as one: of how few names it is made.",
    inputs=(SPANS,),
    output=KERNEL_MIX,
    run=kernel_mix,
    needs_clock=False,
)
