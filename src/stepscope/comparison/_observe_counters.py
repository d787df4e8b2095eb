"""Reduces a recording without a profile to observations: by the steps that were timed, else by windows of time.

Without steps nothing says how much work was done, so only rates are compared: waits for cores, reading, memory, clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison._resources import by_cycle, counters_around
from stepscope.comparison.kinds import setup_of
from stepscope.comparison.main_thread import lock_held, main_thread
from stepscope.comparison.model import (
    FUNCTIONS,
    OBSERVED_CYCLES,
    PARTS,
    TIMED_STEPS,
    WINDOWS,
    WORKLOAD,
    Observation,
)
from stepscope.comparison.whole_run import run_resources, timed_steps
from stepscope.core.errors import MissingTable
from stepscope.core.trace import extent_ns

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

#: Windows of a recording, after this share of it, in which a job starts.
_WINDOWS, _START = 24, 0.1
_SHORTEST_NS = 200_000_000
#: Fewer steps say less than windows of time.
_LEAST_STEPS = 10
_OF_PROCESS = r"^pid:(\d+)$"


def observe_counters(trace: Trace) -> tuple[Observation, ...]:
    """One observation for each process whose steps were timed, else one for the busiest process.

    Raises MissingTable (no counters, or only those of an instant).
    """
    counters = trace.require("counters", needed_by="compare")
    pids = trace.step_times["pid"].unique().sort().to_list()
    timed = {pid: steps for pid in pids if (steps := timed_steps(trace, pid))["n_steps"].sum() >= _LEAST_STEPS}
    if timed:
        whose = "another recording has no profile" if trace.spans.height else "no profile was recorded"
        remark = f"{whose}: times of steps and counters are compared"
        return tuple(
            _observation(trace, pid, list(timed), _cycles_of(steps), steps, remark) for pid, steps in timed.items()
        )
    remark = (
        "no profile and no steps were recorded: rates are compared, and nothing says how much work was done"
        " (stepscope.step() in each turn of the loop would)"
    )
    return (_observation(trace, _busiest(counters), [], _windows(counters), TIMED_STEPS.empty(), remark),)


def _observation(
    trace: Trace, pid: int | None, pids: list[int], cycles: pl.DataFrame, steps: pl.DataFrame, remark: str
) -> Observation:
    low, high = extent_ns(cycles)
    counters = counters_around(trace.counters, pid, pids, low, high)
    main = main_thread(trace, pid, low, high, steps, pids)
    return Observation(
        label=f"pid {pid}" if len(pids) > 1 else "",
        meta=trace.meta,
        pid=pid,
        anchor=WINDOWS if steps.is_empty() else "steps",
        source="recorded",
        cycles=cycles,
        functions=FUNCTIONS.empty(),
        parts=PARTS.empty(),
        resources=by_cycle(counters, cycles),
        counters=counters.filter(pl.col("ts_ns").is_between(low, high)),
        workload=WORKLOAD.empty(),
        remarks=(remark,),
        python_functions=None if main is None else main.functions,
        python_lines=None if main is None else main.lines,
        lock_held=lock_held(trace, pid, low, high),
        setup=setup_of(trace),
        steps=steps,
        worked=TIMED_STEPS.empty() if main is None else main.worked,
        answers=None if main is None else main.answers,
        run_resources=run_resources(trace, pid, pids, steps),
    )


def _cycles_of(steps: pl.DataFrame) -> pl.DataFrame:
    """Each row of TIMED_STEPS as a cycle; of several steps in a row, the first, as long as their mean."""
    dur = pl.col("dur_ns").round().cast(pl.Int64)
    return OBSERVED_CYCLES.conform(steps.select("ts_ns", cycle="step", dur_ns=dur, is_complete=True))


def _windows(counters: pl.DataFrame) -> pl.DataFrame:
    """Windows of equal length from the time on at which the job has started. Raises MissingTable (too short)."""
    first, last = int(counters["ts_ns"].to_numpy().min()), int(counters["ts_ns"].to_numpy().max())
    low = first + int(_START * (last - first))
    length = (last - low) // _WINDOWS
    if length < _SHORTEST_NS:
        raise MissingTable("counters of some seconds", needed_by="compare", hint="record for longer")
    starts = low + length * np.arange(_WINDOWS)
    frame = pl.DataFrame({"cycle": np.arange(_WINDOWS), "ts_ns": starts, "dur_ns": [length] * _WINDOWS})
    return OBSERVED_CYCLES.conform(frame.with_columns(is_complete=True))


def _busiest(counters: pl.DataFrame) -> int | None:
    """The process that ran most; None if counters of no process were recorded."""
    pid = pl.col("device").cast(pl.String).str.extract(_OF_PROCESS).cast(pl.Int64)
    used = counters.filter(pl.col("metric").cast(pl.String) == "process_oncpu_time").select("value", pid=pid)
    sums = used.drop_nulls().group_by("pid").agg(pl.col("value").sum()).sort("value", "pid", descending=[True, False])
    return None if sums.is_empty() else int(sums["pid"][0])
