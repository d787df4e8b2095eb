"""A recording as the results that the published tool would have made of it: `cycles` and `attribution`.

Not checked against its output, for none of the recordings behind its published files is public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import MissingTable
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.core.trace import Result, Results
from stepscope.exports.latencyprism._cycles import PREFILL, cycles_of
from stepscope.exports.latencyprism._metrics import instanced, metrics
from stepscope.exports.latencyprism._shares import events_in_cycles, merged_runs, shares

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = ["results_of"]

#: The published files have so many decimals.
_DECIMALS = 4
_KEYS = ("cycle", "pid", "device", "name")


def results_of(trace: Trace) -> Results:
    """Cycles of a recording, without prefills if others are known, and what functions took of them.

    Raises MissingTable if there are no cycles, or nothing in them that has a share: device work, time on a core, waits
    for one, disk access.
    """
    found = cycles_of(trace)
    if not found["phase"].eq(PREFILL).all():
        found = found.filter(pl.col("phase") != PREFILL)
    events = events_in_cycles(trace, found)
    if events.is_empty():
        raise MissingTable("device work, or samples of what ran on a core, in its cycles", needed_by="latencyprism")
    events = events.with_columns(pl.col("pid").fill_null(-1))
    extents = events.group_by("cycle").agg(pl.col("start").min(), pl.col("end").max())
    windows = found.join(extents, on="cycle", how="left").select(
        "cycle",
        low=pl.min_horizontal("ts_ns", "start"),
        high=pl.max_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), "end"),
    )
    of_metrics = metrics(merged_runs(events), instanced(trace.counters), windows)
    rows = shares(events, found).join(of_metrics, on=_KEYS, how="left", maintain_order="left")
    attribution = rows.with_columns(
        recorded_category="type",
        recorded_beta=(100 * pl.col("beta_ratio")).round(_DECIMALS),
        recorded_mu=pl.col("recorded_mu").round(_DECIMALS),
    )
    cycles = found.join(events.select("cycle", "pid").unique(), on="cycle").sort("cycle", "pid")
    tables = ((CYCLES, cycles), (ATTRIBUTION, attribution))
    results = {table.name: Result(table, table.conform(frame)) for table, frame in tables}
    return Results(trace.meta, {}, results)
