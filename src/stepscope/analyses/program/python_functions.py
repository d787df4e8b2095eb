"""The functions that Python's threads were in, seen from outside: what two runs can be compared by."""

from __future__ import annotations

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.program.python_stacks import python_stacks
from stepscope.core.schema import STACK_SAMPLES, STACKS, STEPS, TRACKS, Column, Table

__all__ = ["ANALYSIS", "PYTHON_FUNCTIONS", "python_functions"]

PYTHON_FUNCTIONS = Table(
    "python-functions",
    "functions that Python's threads were in, seen from outside",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("function", pl.String(), "function (file)", key=True),
        Column("share_ratio", pl.Float64(), "time in which a thread was in the function itself, over all", "ratio"),
        Column("total_ratio", pl.Float64(), "time in which it was on the stack, recursion counted once", "ratio"),
        Column("samples", pl.Int64(), "looks that found a thread in the function itself"),
        Column("total_samples", pl.Int64(), "looks that found it on the stack"),
    ),
)


def python_functions(
    samples: pl.DataFrame,
    stacks: pl.DataFrame,
    tracks: pl.DataFrame | None = None,
    steps: pl.DataFrame | None = None,
    *,
    step: int | None = None,
    gil: bool = False,
    idle: bool = False,
) -> pl.DataFrame:
    """A row per function of all processes and threads, that with the largest share of its own first.

    It is `python-stacks` by function. Units: number of looks; ratios 0..1. Source: as there.
    Raises as it does.
    """
    frame = python_stacks(samples, stacks, tracks, steps, by="function", step=step, gil=gil, idle=idle)
    return PYTHON_FUNCTIONS.conform(frame)


ANALYSIS = Analysis(
    name="python-functions",
    doc="Functions that Python's threads were in, seen from outside: own and total shares.",
    inputs=(STACK_SAMPLES, STACKS),
    optional=(TRACKS, STEPS),
    output=PYTHON_FUNCTIONS,
    run=python_functions,
)
