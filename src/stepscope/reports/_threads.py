"""What samplers saw beside a profile: threads that waited for a core, and where Python was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.program.python_stacks import PYTHON_STACKS, python_stacks
from stepscope.analyses.program.scheduling import SCHEDULING, scheduling
from stepscope.core.errors import MissingTable
from stepscope.core.report import Block

if TYPE_CHECKING:
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope


_THREAD_COLUMNS = ("process", "tid", "thread", "oncpu_ns", "runq_ns", "waiting_ratio", "behind", "behind_is_own")
_MOST_THREADS = 5
PYTHON_TITLE = "Python: where its threads were"
_FUNCTIONS_SHOWN = 30
_STACKS_COMMAND = "show python-stacks --by function"


def scheduling_blocks(trace: Trace) -> list[Block]:
    """The threads that waited longest for a core; none where scheduling was not recorded."""
    if trace.sched.is_empty():
        return []
    threads = scheduling(trace.spans, trace.tracks, trace.sched)
    shown = threads.filter(pl.col("runq_ns") > 0).head(_MOST_THREADS).select(_THREAD_COLUMNS)
    title = f"Threads and cores, longest waits of {threads.height}"
    return [Block(title, SCHEDULING, shown, "show scheduling")] if shown.height else []


def python_block(trace: Trace, scope: Scope | None = None) -> list[Block]:
    """The functions that most samples of Python stacks are in; none without stacks.

    If there are steps, samples count from the first step on; only `show` has those before it. Samples after the last
    step count as well, because few steps contain few samples.
    """
    samples, title = trace.stack_samples, PYTHON_TITLE
    if scope is not None and scope.numbers:
        later = samples.filter(pl.col("ts_ns") >= scope.low)
        if not later.is_empty():
            samples, title = later, f"{PYTHON_TITLE}, from step {scope.numbers[0]} on"
    try:
        frame = python_stacks(samples, trace.stacks, by="function")
    except MissingTable:
        return []
    frame = frame.filter(pl.col("samples") > 0).select("function", "samples", "share_ratio").head(_FUNCTIONS_SHOWN)
    return [Block(title, PYTHON_STACKS, frame, _STACKS_COMMAND)]
