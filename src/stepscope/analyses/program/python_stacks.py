"""Where Python's threads spent their time, from stack samples: by whole stack (python-stacks) or by function.

The functions of two runs can be compared, so they are an analysis of their own too (python-functions).
"""

from __future__ import annotations

from typing import Literal

import polars as pl
import polars.selectors as cs

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.windows import host_windows
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import STEPS, TRACKS
from stepscope.core.table import Column, Table

PYTHON_STACKS = Table(
    "python-stacks",
    "where Python's threads were, seen from outside",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("pid", pl.Int64(), "process (by stack)", key=True),
        Column("thread", pl.String(), "the thread's name (by stack)", key=True),
        Column("stack", pl.String(), "function (file:line) of each frame, outermost first, joined by ;", key=True),
        Column("function", pl.String(), "function (file) (by function)", key=True),
        Column("samples", pl.Int64(), "samples of the thread there (by function: in the function itself)"),
        Column("share_ratio", pl.Float64(), "the time that they stand for, over that of all that are counted", "ratio"),
        Column("total_samples", pl.Int64(), "samples with it on the stack, recursion counted once (by function)"),
        Column("total_ratio", pl.Float64(), "the time that they stand for, over that of all that are counted", "ratio"),
    ),
)
#: A thread that ran on a core for less is waiting for work. The main thread counts in any case.
_IDLE_RATIO = 0.01
_LINE = r":\d+\)$"
PYTHON_FUNCTIONS = Table(
    "python-functions",
    "functions that Python's threads were in, seen from outside",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("function", pl.String(), "function (file)", key=True),
        Column("share_ratio", pl.Float64(), "time in which a thread was in the function itself, over all", "ratio"),
        Column("total_ratio", pl.Float64(), "time in which it was on the stack, recursion counted once", "ratio"),
        Column("samples", pl.Int64(), "samples of a thread in the function itself"),
        Column("total_samples", pl.Int64(), "samples with it on the stack"),
    ),
)


def python_stacks(
    stack_samples: pl.DataFrame,
    stacks: pl.DataFrame,
    tracks: pl.DataFrame = TRACKS.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    by: Literal["stack", "function"] = "stack",
    step: int | None = None,
    gil: bool = False,
    idle: bool = False,
) -> pl.DataFrame:
    """One row per process, thread and stack, or per function of all of them (by function), largest share first.

    The main columns are `samples` and `share_ratio`; by function also `total_ratio`, with the functions that it called.
    Samples of all threads count, running or waiting. Threads that hardly ran at all (less than 1 % of the time on a
    core) count only with `idle`, except the main thread, which always does. `gil`: samples of threads that hold the
    interpreter's lock. `step`: samples within the window of that step; a stack that lasted longer counts in part.
    Shares are of time and not of samples, so each second counts alike, however often it was sampled.

    Units: number of samples; ratios 0..1.
    Source: py-spy record --idle, or --gil.
    Raises MissingTable (no samples of that kind), UnknownName (by, step), StepscopeError (gil of a step).
    """
    counted = counted_stacks(stack_samples, gil=gil, idle=idle)
    if step is not None:
        if gil:
            raise StepscopeError(
                "who held the GIL is known for some seconds at a time, not for a step", "leave out one"
            )
        counted = _within(counted, steps, step)
    rank = _ranks(counted, tracks)
    counted = counted.with_columns(rank)
    if not counted["dur_ns"].sum():
        what = "looks at threads that hold the GIL" if gil else "looks at Python stacks"
        raise MissingTable(what, needed_by="python-stacks", hint="record with stepscope record --stacks")
    result = _by_function(counted, stacks) if by == "function" else _by_stack(counted, stacks)
    result = PYTHON_STACKS.conform(result.with_columns(cs.ends_with("samples").round()))
    keys = ["rank", "function"] if by == "function" else ["rank", "pid", "thread", "stack"]
    descending = [True, True] + [False] * len(keys)
    result = result.sort("share_ratio", "total_ratio", *keys, descending=descending, nulls_last=True)
    return result.drop(
        {"stack": ("function", "total_samples", "total_ratio"), "function": ("pid", "thread", "stack")}[by]
    )


def counted_stacks(samples: pl.DataFrame, *, gil: bool = False, idle: bool = False) -> pl.DataFrame:
    """Samples to count, with their number as `samples` (Float64): of threads that do anything, or hold the GIL."""
    mine = samples.filter(pl.col("on_gil") if gil else ~pl.col("on_gil"))
    mine = mine.with_columns(samples=pl.col("n_samples").cast(pl.Float64))
    if idle or gil:
        return mine
    time = pl.col("dur_ns").filter(pl.col("oncpu_ratio").is_not_null())
    ran = (pl.col("oncpu_ratio") * pl.col("dur_ns")).sum() / time.sum()
    busy = mine.group_by("pid", "tid").agg(is_idle=ran < _IDLE_RATIO)
    waits = busy.filter(pl.col("is_idle") & (pl.col("pid") != pl.col("tid")))
    return mine.join(waits, on=["pid", "tid"], how="anti", maintain_order="left")


def _within(counted: pl.DataFrame, steps: pl.DataFrame, step: int) -> pl.DataFrame:
    """Samples of a step's window; those that reach beyond it count in part."""
    window = host_windows(steps).filter(pl.col("step") == step)
    if window.is_empty():
        raise UnknownName("step", str(step), [str(number) for number in steps["step"].unique().sort()])
    low = window["ts_ns"][0]
    high = low + window["host_window_ns"][0]
    inside = pl.min_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), high) - pl.max_horizontal("ts_ns", low)
    mine = counted.filter((inside > 0) & (pl.col("dur_ns") > 0))
    return mine.with_columns(samples=pl.col("samples") * inside / pl.col("dur_ns"), dur_ns=inside)


def _ranks(samples: pl.DataFrame, tracks: pl.DataFrame) -> pl.Series:
    """The rank of each sample's process; that of the trace if it has only one, as processes may start others."""
    ranks = tracks["rank"].drop_nulls().unique()
    if len(ranks) <= 1:
        return pl.Series("rank", [ranks[0] if len(ranks) else None], dtype=pl.Int32()).new_from_index(0, samples.height)
    known = tracks.drop_nulls(["rank", "pid"]).select("pid", "rank").unique("pid")
    return samples.join(known, on="pid", how="left", maintain_order="left")["rank"]


def _by_stack(counted: pl.DataFrame, stacks: pl.DataFrame) -> pl.DataFrame:
    keys = [pl.col("rank"), pl.col("pid"), pl.col("thread").cast(pl.String)]
    sums = counted.group_by(*keys, "stack_id").agg(samples=pl.col("samples").sum(), share_ratio=_share(counted))
    text = stacks.select("stack_id", stack=pl.col("frames").list.join(";"))
    # Threads of a pool may have one name.
    return (
        sums.join(text, on="stack_id")
        .group_by("rank", "pid", "thread", "stack")
        .agg(pl.col("samples", "share_ratio").sum())
    )


def _by_function(counted: pl.DataFrame, stacks: pl.DataFrame) -> pl.DataFrame:
    """Own and total samples of each function, whatever line it was at."""
    sums = counted.group_by("rank", "stack_id").agg(samples=pl.col("samples").sum(), share_ratio=_share(counted))
    frames = pl.col("frames").list.eval(pl.element().str.replace(_LINE, ")"))
    whole = sums.join(stacks.select("stack_id", frames=frames), on="stack_id")
    own = whole.with_columns(function=pl.col("frames").list.last())
    own = own.group_by("rank", "function").agg(pl.col("samples", "share_ratio").sum())
    on = whole.with_columns(function=pl.col("frames").list.unique()).explode("function", empty_as_null=True)
    on = on.group_by("rank", "function").agg(
        total_samples=pl.col("samples").sum(), total_ratio=pl.col("share_ratio").sum()
    )
    result = on.join(own, on=["rank", "function"], how="left", nulls_equal=True).drop_nulls("function")
    return result.with_columns(pl.col("samples", "share_ratio").fill_null(0.0))


def _share(counted: pl.DataFrame) -> pl.Expr:
    return pl.col("dur_ns").sum() / int(counted["dur_ns"].sum())


ANALYSIS = analysis_of(
    python_stacks,
    PYTHON_STACKS,
    "Where Python's threads were, seen from outside (stepscope record --stacks): by stack or function.",
)


def python_functions(
    stack_samples: pl.DataFrame,
    stacks: pl.DataFrame,
    tracks: pl.DataFrame = TRACKS.empty(),
    steps: pl.DataFrame = STEPS.empty(),
    *,
    step: int | None = None,
    gil: bool = False,
    idle: bool = False,
) -> pl.DataFrame:
    """One row per function of all processes and threads, largest share of its own first: `python-stacks` by function.

    Units: number of samples; ratios 0..1. Source: as there. Raises as it does.
    """
    frame = python_stacks(stack_samples, stacks, tracks, steps, by="function", step=step, gil=gil, idle=idle)
    return PYTHON_FUNCTIONS.conform(frame)


PYTHON_FUNCTIONS_ANALYSIS = analysis_of(
    python_functions,
    PYTHON_FUNCTIONS,
    "Functions that Python's threads were in, seen from outside: own and total shares.",
)
