"""What a file of results has to say in a report: how long its cycles took, and which functions most of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.report import Block
from stepscope.core.result_tables import NSYS
from stepscope.core.schema import ATTRIBUTION, Column, Table
from stepscope.reports._summaries import summarise_sums
from stepscope.reports._summary import Lack, Summary

if TYPE_CHECKING:
    from stepscope.core.trace import Results

_NO_TIMELINE = Lack(
    "results", "This is what another program computed, not a recording: there is no timeline to explain."
)
FUNCTIONS = Table(
    "functions",
    "what functions took of all cycles",
    (
        *(ATTRIBUTION.column(name) for name in ("name", "calls", "total_ns")),
        Column("share_ratio", pl.Float64(), "that over the cycles' duration; threads add up", "ratio"),
    ),
)


def summarise_results(results: Results) -> Summary:
    """What a report needs of one file of results."""
    if results.results.keys() & NSYS.keys():
        return summarise_sums(results)
    if not {"cycles", "attribution"} <= set(results.results):
        return Summary(results.meta, recorded_ns=0, quality=(_NO_TIMELINE,), issues=results.issues)
    cycles, attribution = results.result("cycles"), results.result("attribution")
    lengths = cycles["dur_ns"].drop_nulls()
    # A function stands in a row for each of its metrics.
    per_cycle = attribution.unique(["cycle", "host", "pid", "device", "name"], maintain_order=True)
    frame = per_cycle.group_by("name", maintain_order=True).agg(pl.col("calls", "total_ns").sum())
    whole = int(lengths.sum())
    frame = frame.with_columns(share_ratio=pl.col("total_ns") / whole if whole else None)
    frame = FUNCTIONS.conform(frame.sort("total_ns", descending=True, maintain_order=True))
    return Summary(
        meta=results.meta,
        recorded_ns=_extent_ns(cycles),
        tables=(Block("Functions, by their part of all cycles", FUNCTIONS, frame, "show attribution"),),
        quality=(_NO_TIMELINE,),
        issues=results.issues,
    )


def _extent_ns(cycles: pl.DataFrame) -> int:
    """From the first start to the last end; if starts are unknown, the length of all cycles."""
    known = cycles.drop_nulls(["ts_ns", "dur_ns"])
    if known.is_empty():
        return int(cycles["dur_ns"].sum())
    first, last = known.select(pl.col("ts_ns").min(), end=(pl.col("ts_ns") + pl.col("dur_ns")).max()).row(0)
    return int(last - first)
