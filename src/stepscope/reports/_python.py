"""Where Python's threads were, in recordings with stacks seen from outside: the table of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.program.python_stacks import PYTHON_STACKS, python_stacks
from stepscope.core.errors import MissingTable
from stepscope.core.report import Block

if TYPE_CHECKING:
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

TITLE = "Python: where its threads were"
_KEPT = 30
_COMMAND = "show python-stacks --by function"


def python_block(trace: Trace, scope: Scope | None = None) -> list[Block]:
    """The functions in which threads were seen most; none without stacks.

    With steps it begins with the first of them: what a program does before is told by `show` alone. It goes on after
    the last: a profile of few steps is too short to be looked at often.
    """
    samples, title = trace.stack_samples, TITLE
    if scope is not None and scope.numbers:
        later = samples.filter(pl.col("ts_ns") >= scope.low)
        if not later.is_empty():
            samples, title = later, f"{TITLE}, from step {scope.numbers[0]} on"
    try:
        frame = python_stacks(samples, trace.stacks, by="function")
    except MissingTable:
        return []
    frame = frame.filter(pl.col("samples") > 0).select("function", "samples", "share_ratio").head(_KEPT)
    return [Block(title, PYTHON_STACKS, frame, _COMMAND)]
