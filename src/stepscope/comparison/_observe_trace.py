"""A recording as observations, one for each process: its cycles, and what happened in each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.processes import of_each
from stepscope.analyses.cycles.cycles import Cycles, find_cycles
from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.comparison._allocations import held_by_tensors
from stepscope.comparison._observed_functions import functions_seen
from stepscope.comparison._parts import parts_of
from stepscope.comparison._remarks import elsewhere, left_out, without_counters
from stepscope.comparison._resources import by_cycle, by_function, seen_counters
from stepscope.comparison._scheduling import in_place_of, scheduled
from stepscope.comparison._workload import workload_of
from stepscope.comparison.model import CYCLES_SEEN, FUNCTIONS, Observation
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.core.trace import Trace


def observe_trace(trace: Trace, anchor: str) -> tuple[Observation, ...]:
    """The processes of the recording that have cycles.

    `anchor` is taken if it marks cycles here, else what marks them best, and the notes say so.
    Raises MissingTable (no spans, no clock), StepscopeError (no process has cycles).
    """
    trace.require("spans", needed_by="compare")
    trace.require_clock(needed_by="compare")
    processes = of_each(trace.tables, lambda tables: _cycles(replace(trace, tables=tables), anchor))
    pids = [pid for pid, _, _ in processes if pid is not None]
    return tuple(
        _observed(replace(trace, tables=tables), pid, pids, cycles, notes) for pid, tables, (cycles, notes) in processes
    )


def _cycles(trace: Trace, anchor: str) -> tuple[Cycles, tuple[str, ...]]:
    if anchor != "auto":
        try:
            return find_cycles(trace.spans, trace.tracks, trace.steps, trace.devices, anchor), ()
        except StepscopeError as error:
            cycles = find_cycles(trace.spans, trace.tracks, trace.steps, trace.devices)
            return cycles, (f"{error.message}; cycles are {cycles.how}",)
    return find_cycles(trace.spans, trace.tracks, trace.steps, trace.devices), ()


def _observed(trace: Trace, pid: int | None, pids: list[int], cycles: Cycles, notes: tuple[str, ...]) -> Observation:
    seen = CYCLES_SEEN.conform(cycles.frame)
    lows = seen["ts_ns"].to_numpy()
    highs = lows + seen["dur_ns"].to_numpy()
    low, high = int(lows.min()), int(highs.max())
    own = own_of(trace.spans, trace.tracks, trace.devices)
    functions = functions_of(trace.spans, own, lows, highs)
    counters = seen_counters(trace.counters, pid, pids, low, high)
    held = seen_counters(held_by_tensors(trace), pid, pids, low, high)
    whole = pl.concat([by_cycle(counters, seen), by_cycle(held, seen)])
    whole = in_place_of(whole, scheduled(trace, pid, seen))
    inside = counters.filter(pl.col("ts_ns").is_between(low, high))
    return Observation(
        label=f"pid {pid}" if len(pids) > 1 else "",
        meta=trace.meta,
        pid=pid,
        anchor=cycles.anchor,
        source=cycles.source,
        cycles=seen,
        functions=FUNCTIONS.conform(functions.frame.with_columns(cycle=seen["cycle"].gather(functions.frame["row"]))),
        parts=parts_of(trace, seen, _threads(trace)),
        resources=pl.concat([whole, by_function(counters, functions, seen["cycle"], trace.spans, whole)]),
        counters=inside,
        workload=workload_of(trace, functions, own, seen["is_complete"].to_numpy()),
        notes=(*notes, *_remarks(trace, cycles, seen, inside)),
        functions_seen=functions_seen(trace, pid, low),
    )


def _remarks(trace: Trace, cycles: Cycles, seen: pl.DataFrame, inside: pl.DataFrame) -> tuple[str, ...]:
    notes = [] if cycles.source == "annotation" else [f"no steps are marked; cycles are {cycles.how}"]
    notes += left_out(seen)
    if trace.counters.is_empty():
        notes.append(without_counters(trace.issues))
    elif inside.is_empty():
        notes.append(elsewhere(trace.counters, seen))
    return tuple(notes)


def _threads(trace: Trace) -> pl.Series:
    """Threads that do the job's own work: those with steps or most operators, and those of autograd."""
    spans = trace.spans
    names = spans["name"].unique()
    autograd = names.filter(names.cast(pl.String).str.starts_with("autograd::").fill_null(value=False))
    marked = spans["track_id"].filter(spans["category"] == "step")
    if marked.is_empty():
        busiest = spans["track_id"].filter(spans["category"].is_in(("operator", "runtime", "python", "user_range")))
        marked = busiest.mode().sort().head(1)
    backward = spans["track_id"].filter(spans["name"].is_in(autograd.implode()))
    return pl.concat([marked.unique(), backward.unique()]).unique()
