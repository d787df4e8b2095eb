"""What there is to say of a recording without spans: the resources that were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.resources.counters import COUNTER_SUMMARY, counters
from stepscope.core.report import Block
from stepscope.reports._python import python_block
from stepscope.reports._scheduling import scheduling_blocks
from stepscope.reports._summary import Lack, Summary

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

_NOTHING = Lack("no_spans", "The trace holds no spans with times: there is nothing to report.")
_ONLY = Lack("only_counters", "Counters alone were recorded: what ran, and when, cannot be told.")
_SCHEDULED = Lack("only_counters", "Counters and scheduling were recorded: when threads ran, not what they did.")
_NO_PROFILE = Lack(
    "no_profile", "Counters and Python stacks were recorded, no profile: steps and operators are unknown."
)
#: Of many disks, interfaces, threads of cores, those that never did anything say nothing.
_SHOWN = ("device", "metric", "unit", "mean", "p95", "max")


def summary_of_counters(trace: Trace) -> Summary:
    """Mean and highest use of each resource that was used at all; without counters, that there is nothing."""
    waits = scheduling_blocks(trace)
    if trace.counters.is_empty():
        lack = _SCHEDULED if waits else _NOTHING
        return Summary(trace.meta, recorded_ns=0, tables=tuple(waits), quality=(lack,), issues=trace.issues)
    frame = counters(trace.counters).filter(pl.col("max") != 0).select(_SHOWN)
    first, last = trace.counters.select(low=pl.col("ts_ns").min(), high=pl.col("ts_ns").max()).row(0)
    block = Block("Resources that were used", COUNTER_SUMMARY, frame, "show counters")
    python = python_block(trace)
    lack = _NO_PROFILE if python else _SCHEDULED if waits else _ONLY
    tables = (*python, *waits, block)
    return Summary(trace.meta, recorded_ns=last - first, tables=tables, quality=(lack,), issues=trace.issues)
