"""What it would buy to make the most expensive kernels faster, as Amdahl's law has it."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.common.device_work import of_spans
from stepscope.analyses.kernels.kernel_launches import kernel_launches, ranked, shares_by_name
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import SPANS, Column, Name, Table

__all__ = ["AMDAHL", "ANALYSIS", "amdahl"]

By = Literal["name", "class", "op"]
BYS = ("name", "class", "op")
FACTORS = (2, 10)

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
        *(Column(f"speedup_{f}", pl.Float64(), f"times as fast, if this and those above took 1/{f}") for f in FACTORS),
        *(Column(f"alone_{f}", pl.Float64(), f"times as fast, if this alone took 1/{f}") for f in FACTORS),
    ),
)


def amdahl(spans: pl.DataFrame, *, by: By = "name", top: int = 10, merge_gemm: bool = False) -> pl.DataFrame:
    """What all kernels' time would become, if the `top` most expensive names, classes or operators were faster.

    In row N it is the first N together that take a half or a tenth of their time. By operator, kernels that belong to
    none are left out of the ranking, but not out of the time. `merge_gemm` counts matrix products as one name.

    Units: ns, ratio; speed-ups are times (2 is twice as fast).
    Source: Amdahl's law over summed durations, as in casio's scripts, which take the top three framework operators.
    Raises MissingTable (no kernels, durations; by op: no operators), UnknownName (by), StepscopeError (top).
    """
    if by not in BYS:
        raise UnknownName("grouping of amdahl", by, BYS)
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
        **{f"speedup_{f}": 1 / (1 - cumulative * (1 - 1 / f)) for f in FACTORS},
        **{f"alone_{f}": 1 / (1 - share * (1 - 1 / f)) for f in FACTORS},
    )
    return AMDAHL.conform(rows.head(top))


def _operators(spans: pl.DataFrame, launches: pl.DataFrame) -> pl.Series:
    """Name of the operator behind each launch. Raises MissingTable if there is none for any."""
    operators = of_spans(spans, of_spans(spans, launches["span_id"], "op_id"), "name")
    if operators.null_count() == len(operators):
        raise MissingTable("operators of kernels", needed_by="amdahl by op", hint="try --by name or --by class")
    return operators


ANALYSIS = Analysis(
    name="amdahl",
    doc="What it would buy to make the most expensive kernels twice or ten times as fast.",
    inputs=(SPANS,),
    output=AMDAHL,
    run=amdahl,
    needs_clock=False,
)
