"""How threads fared with the cores, for a report: those that waited for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.program.scheduling import SCHEDULING, scheduling
from stepscope.core.report import Block

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = ["only_scheduled", "scheduling_blocks"]

_SHOWN = ("process", "tid", "thread", "oncpu_ns", "runq_ns", "waiting_ratio", "behind", "behind_is_own")
_MOST = 5


def only_scheduled(trace: Trace) -> bool:
    """Whether time on cores and waits for them are all that the trace holds of events."""
    return 0 < trace.spans.height == trace.sched.height


def scheduling_blocks(trace: Trace) -> list[Block]:
    """The threads that waited longest for a core; none where scheduling was not recorded."""
    if trace.sched.is_empty():
        return []
    found = scheduling(trace.spans, trace.tracks, trace.sched)
    shown = found.filter(pl.col("runq_ns") > 0).head(_MOST).select(_SHOWN)
    title = f"Threads and cores, longest waits of {found.height}"
    return [Block(title, SCHEDULING, shown, "show scheduling")] if shown.height else []
