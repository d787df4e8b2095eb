"""How many kernels make up most of the time (kernel-mix), and what faster ones would gain by Amdahl's law (amdahl)."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.kernels.kernel_launches import GEMM, kernel_launches, ranked, shares_by_name
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.table import Column, Name, Table

REST = "(all others)"

KERNEL_MIX = Table(
    "kernel-mix",
    "each kernel's share of time, largest first",
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
By = Literal["name", "class", "op"]
_FACTORS = (2, 10)
AMDAHL = Table(
    "amdahl",
    "what faster kernels would buy",
    (
        Column("rank", pl.Int64(), "1 is the longest in total", key=True),
        Column("name", Name, "kernel, class, or operator that launched it", key=True),
        Column("calls", pl.Int64(), "launches"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
        Column("cumulative_ratio", pl.Float64(), "part of all that this row and those above it make", "ratio"),
        *(Column(f"speedup_{f}", pl.Float64(), f"times as fast, if this and those above took 1/{f}") for f in _FACTORS),
        *(Column(f"alone_{f}", pl.Float64(), f"times as fast, if this alone took 1/{f}") for f in _FACTORS),
    ),
)


def kernel_mix(spans: pl.DataFrame, *, top: int = 30, merge_gemm: bool = True) -> pl.DataFrame:
    """One row per kernel name, longest first, for the `top` of them, and one row for all others.

    The main columns are `share_ratio` and `cumulative_ratio`: the rank at which the latter reaches 0.8 or 0.9 is how
    many names make 80 or 90 % of the time. `merge_gemm` counts all matrix products as one name, as their variants
    differ by tile and not by work.

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


ANALYSIS = analysis_of(
    kernel_mix,
    KERNEL_MIX,
    "Each kernel's share of time, with all matrix products as one row: how few names make up most of it.",
    needs_clock=False,
)


def amdahl(spans: pl.DataFrame, *, by: By = "name", top: int = 10, merge_gemm: bool = False) -> pl.DataFrame:
    """One row per kernel name, class or operator, for the `top` by time: the gain if it were faster.

    `alone_2` and `alone_10` are the speed-up if only this one took a half or a tenth of its time, `speedup_2` and
    `speedup_10` if all rows up to this one did. By operator, kernels that belong to none are left out of the ranking,
    but not out of the time. `merge_gemm` counts matrix products as one name.

    Units: ns, ratio; speed-ups are times (2 is twice as fast).
    Source: Amdahl's law over summed durations, as in casio's scripts, which take the top three framework operators.
    Raises MissingTable (no kernels, durations; by op: no operators), UnknownName (by), StepscopeError (top).
    """
    if top < 1:
        raise StepscopeError(f"top is {top}, and must be 1 or more")
    launches = kernel_launches(spans, needed_by="amdahl")
    if by == "name":
        rows = shares_by_name(launches, merge_gemm=merge_gemm)
    else:
        key = launches["kernel_class"] if by == "class" else _operators(spans, launches)
        rows = launches.with_columns(name=key.cast(pl.String)).group_by("name").agg(
            calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
        )  # fmt: skip
        rows = ranked(rows, "name").drop_nulls("name")
    share, cumulative = pl.col("share_ratio"), pl.col("share_ratio").cum_sum()
    rows = rows.with_columns(
        rank=pl.int_range(1, pl.len() + 1),
        cumulative_ratio=cumulative,
        **{f"speedup_{f}": 1 / (1 - cumulative * (1 - 1 / f)) for f in _FACTORS},
        **{f"alone_{f}": 1 / (1 - share * (1 - 1 / f)) for f in _FACTORS},
    )
    return AMDAHL.conform(rows.head(top))


def _operators(spans: pl.DataFrame, launches: pl.DataFrame) -> pl.Series:
    """Name of the operator that queued each launch. Raises MissingTable if no launch has one."""
    operators = of_spans(spans, of_spans(spans, launches["span_id"], "op_id"), "name")
    if operators.null_count() == len(operators):
        raise MissingTable("operators of kernels", needed_by="amdahl by op", hint="try --by name or --by class")
    return operators


AMDAHL_ANALYSIS = analysis_of(
    amdahl,
    AMDAHL,
    "What the program would gain if the most expensive kernels were twice or ten times as fast.",
    needs_clock=False,
)
