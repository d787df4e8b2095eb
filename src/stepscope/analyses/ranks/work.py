"""What a rank computed, by name, and how its resources fared: what tells the cause of its being late."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import own_lengths
from stepscope.core.schema import Column, Name, Table
from stepscope.core.trace import Trace

#: Names kept, those that took longest; the rest is one row without a name.
MOST_NAMES = 64

WORK = Table(
    "rank-work",
    "what one rank computed, by name: kernels, or where no device computes, operators",
    (
        Column("name", Name, "kernel or operator; null: all others", key=True),
        Column("calls", pl.Int64(), "how often"),
        Column("total_ns", pl.Int64(), "summed time; of operators their own, without that of operators inside", "ns"),
    ),
)


def work_of(trace: Trace, *, on_device: bool) -> pl.DataFrame:
    """A WORK table of the trace, longest first. Units: ns."""
    spans = trace.spans
    if on_device:
        kernels = spans.filter(pl.col("category") == "kernel")
        rows = kernels.filter(~talks_to_ranks(kernels["name"])).select("name", ns="dur_ns")
    else:
        rows = _own_times(spans)
    named = rows.group_by("name").agg(calls=pl.len().cast(pl.Int64), total_ns=pl.col("ns").sum())
    named = named.sort("total_ns", "calls", descending=True)
    rest = named.slice(MOST_NAMES)
    if rest.height:
        folded = rest.select(pl.col("calls").sum(), pl.col("total_ns").sum())
        named = pl.concat((named.head(MOST_NAMES), folded), how="diagonal_relaxed")
    return WORK.conform(named)


def _own_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Operators of the host that exchange nothing, and the time of each outside other operators."""
    is_op = spans["category"] == "operator"
    ops = spans.filter(is_op & ~talks_to_ranks(spans["name"], "any"))
    if ops.is_empty():
        return ops.select("name", ns="dur_ns")
    rows = np.full(int(spans["span_id"].to_numpy().max()) + 1, -1, np.int64)
    rows[ops["span_id"].to_numpy()] = np.arange(ops.height)
    above = ops["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    parents = np.where(above >= 0, rows[above], -1)
    starts = ops["ts_ns"].to_numpy()
    own = own_lengths(starts, starts + ops["dur_ns"].to_numpy(), parents)
    return ops.select("name", ns=pl.Series(own))


def resources_of(trace: Trace, window: tuple[int, int]) -> pl.DataFrame:
    """The mean of each counter within the window (ns from the origin): device, metric, unit, value.

    Counters of other processes are left out; those of the trace's own are called `process`.
    """
    own = trace.tracks["pid"].drop_nulls().unique().implode()
    counters = trace.counters.filter(
        pl.col("ts_ns").is_between(*window) & (pl.col("pid").is_null() | pl.col("pid").is_in(own))
    )
    device = pl.when(pl.col("pid").is_null()).then(pl.col("device").cast(pl.String)).otherwise(pl.lit("process"))
    return (
        counters.group_by(device.alias("device"), "metric", "unit")
        .agg(pl.col("value").mean())
        .sort("device", pl.col("metric").cast(pl.String))
    )
