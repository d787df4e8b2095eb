"""Reduces a recording to observations: what each process did in each cycle.

The parts of a cycle count each moment once and sum to the cycle. The device comes first, because the host delays
nothing while the device works. What the host did counts where the device was idle. Without any device work, collectives
count as exposed where the host does nothing else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.collective_calls import collectives_on_host, computing_on_host, open_time
from stepscope.analyses.common.device_work import by_device, device_work, mean_of, occupied
from stepscope.analyses.common.processes import of_each
from stepscope.analyses.common.span_lookup import at_or_around, of_ids
from stepscope.analyses.cycles.cycles import Cycles, find_cycles, host_bounds
from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.analyses.steps.step_breakdown import divided
from stepscope.comparison._observe_counters import observe_counters
from stepscope.comparison._observe_results import observe_results
from stepscope.comparison._resources import (
    by_cycle,
    by_function,
    counter_remarks,
    counters_around,
    cycle_remarks,
    held_by_tensors,
    replaced,
    scheduled,
)
from stepscope.comparison.kinds import setup_of
from stepscope.comparison.main_thread import lock_held, main_thread
from stepscope.comparison.model import (
    COMMUNICATION,
    COMPUTATION,
    FUNCTIONS,
    IDLE,
    LAUNCH,
    LOADING,
    MATRIX_PRODUCTS,
    MEMCPY,
    OBSERVED_CYCLES,
    OPERATORS,
    PARTS,
    PYTHON,
    SYNC,
    TIMED_STEPS,
    WORKLOAD,
    Observation,
)  # fmt: skip
from stepscope.comparison.whole_run import last_step_ns, run_resources, timed_steps
from stepscope.core.errors import StepscopeError
from stepscope.core.names import is_sync_call, map_names
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import filtered
from stepscope.core.trace import Results, Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stepscope.analyses.cycles.functions import Functions, Own
    from stepscope.core.intervals import Intervals, Ints


_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def observe(trace: Trace, *, anchor: str = "auto", profile: bool = True) -> tuple[Observation, ...]:
    """One observation per process of the source, by cycle: its functions, parts, resources and workload.

    `anchor` names the function, range or kernel whose calls mark the cycles, so that both runs get the same kind of
    cycle. If it marks none here, the best anchor of this recording is used and the remarks say so. Results of other
    programs (`Results`) bring their own cycles. Counters alone have those of the steps that were timed, else windows of
    time; so has any recording without its `profile`.

    The observations hold no reference to the trace. Raises MissingTable (no events, no clock, no cycles in the
    results), StepscopeError (nothing repeats, so there are no cycles).
    """
    if isinstance(trace, Results) and trace.spans.is_empty():
        return observe_results(trace)
    if not profile or (trace.spans.is_empty() and not trace.counters.is_empty()):
        return observe_counters(trace)
    trace.require("spans", needed_by="compare")
    trace.require_clock(needed_by="compare")
    processes = of_each(trace.tables, lambda tables: _cycles(replace(trace, tables=tables), anchor))
    pids = [pid for pid, _, _ in processes if pid is not None]
    return tuple(
        _observation(replace(trace, tables=tables), pid, pids, cycles, remarks)
        for pid, tables, (cycles, remarks) in processes
    )


def _cycles(trace: Trace, anchor: str) -> tuple[Cycles, list[str]]:
    sources = trace.spans, trace.tracks, trace.steps, trace.devices
    remarks = []
    if anchor != "auto":
        try:
            return find_cycles(*sources, anchor), []
        except StepscopeError as error:
            remarks.append(error.message)
    cycles = find_cycles(*sources)
    if not remarks and cycles.source != "annotation":
        remarks = ["no steps are marked"]
    return cycles, [f"{remark}; cycles are {cycles.how}" for remark in remarks]


def _observation(trace: Trace, pid: int | None, pids: list[int], chosen: Cycles, remarks: list[str]) -> Observation:
    cycles = OBSERVED_CYCLES.conform(chosen.frame)
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    low, high = int(lows.min()), int(highs.max())
    own = own_of(trace.spans, trace.tracks, trace.devices)
    functions = functions_of(trace.spans, own, *host_bounds(chosen.frame))
    counters = counters_around(trace.counters, pid, pids, low, high)
    allocated = counters_around(held_by_tensors(trace), pid, pids, low, high)
    whole = replaced(
        pl.concat([by_cycle(counters, cycles), by_cycle(allocated, cycles)]), scheduled(trace, pid, cycles)
    )
    steps = timed_steps(trace, pid)
    inside = counters.filter(pl.col("ts_ns").is_between(low, high))
    main = main_thread(trace, pid, low, last_step_ns(steps), steps, pids)
    return Observation(
        label=f"pid {pid}" if len(pids) > 1 else "",
        meta=trace.meta,
        pid=pid,
        anchor=chosen.anchor,
        source=chosen.source,
        cycles=cycles,
        functions=FUNCTIONS.conform(functions.frame.with_columns(cycle=cycles["cycle"].gather(functions.frame["row"]))),
        parts=parts_of(trace, cycles, _threads(trace)),
        resources=pl.concat([whole, by_function(counters, functions, cycles["cycle"], trace.spans, whole)]),
        counters=inside,
        workload=workload_of(trace, functions, own, cycles["is_complete"].to_numpy()),
        remarks=(*remarks, *cycle_remarks(cycles), *counter_remarks(trace.counters, inside, cycles, trace.issues)),
        python_functions=None if main is None else main.functions,
        python_lines=None if main is None else main.lines,
        lock_held=lock_held(trace, pid, low, last_step_ns(steps)),
        setup=setup_of(trace),
        steps=steps,
        worked=TIMED_STEPS.empty() if main is None else main.worked,
        answers=None if main is None else main.answers,
        run_resources=run_resources(trace, pid, pids, steps),
    )


def _threads(trace: Trace) -> pl.Series:
    """Tracks of the threads that do the job's own work: those with steps (else most operators), and autograd's."""
    spans = trace.spans
    names = spans["name"].unique()
    autograd = names.filter(names.cast(pl.String).str.starts_with("autograd::").fill_null(value=False))
    marked = spans["track_id"].filter(spans["category"] == "step")
    if marked.is_empty():
        busiest = spans["track_id"].filter(spans["category"].is_in(("operator", "runtime", "python", "user_range")))
        marked = busiest.mode().sort().head(1)
    backward = spans["track_id"].filter(spans["name"].is_in(autograd.implode()))
    return pl.concat([marked.unique(), backward.unique()]).unique()


def workload_of(trace: Trace, functions: Functions, own: Own, is_complete: NDArray[np.bool_]) -> pl.DataFrame:
    """WORKLOAD of the complete cycles, longest first; `is_complete` has one value per cycle.

    A product of matrices that calls another one, as `aten::linear` calls `aten::addmm`, has no shapes: its work is
    that of the inner product and counts once.
    """
    n_cycles = int(is_complete.sum())
    chosen = is_complete[functions.frame["row"].to_numpy()[functions.group]]
    rows, groups = functions.events[chosen], functions.group[chosen]
    if n_cycles == 0:
        return WORKLOAD.empty()
    events = pl.DataFrame(
        {
            "span_id": rows.astype(np.uint32),
            "device": functions.frame["device"].gather(groups),
            "name": functions.frame["name"].gather(groups),
            "category": trace.spans["category"].gather(rows),
            "dur_ns": trace.spans["dur_ns"].gather(rows),
            "self_ns": own.self_ns[rows],
        }
    )
    sums = {
        "calls_per_cycle": pl.len() / n_cycles,
        "total_ns_per_cycle": pl.col("dur_ns").sum() / n_cycles,
        "self_ns_per_cycle": pl.col("self_ns").sum() / n_cycles,
    }
    sizes = trace.ops.select("span_id", "input_shapes", "input_types")
    is_outer = pl.col("span_id").is_in(_calls_product(trace.spans, sizes).implode())
    sizes = sizes.with_columns(input_shapes=pl.when(~is_outer).then("input_shapes"))
    operators = filtered(events, events["category"] == "operator")
    shapes, types = of_ids(sizes, operators["span_id"])
    operators = operators.with_columns(shapes=shapes, types=types)
    operators = operators.group_by("device", "name", "shapes", "types").agg(**sums)
    launches = trace.kernels.select("span_id", *_AXES)
    kernels = filtered(events, events["category"] == "kernel")
    kernels = kernels.with_columns(of_ids(launches, kernels["span_id"]))
    kernels = kernels.group_by("device", "name", *_AXES).agg(**sums)
    grid = pl.format("grid {}×{}×{}, block {}×{}×{}", *_AXES)
    kernels = kernels.with_columns(shapes=grid, self_ns_per_cycle=None)
    both = pl.concat([WORKLOAD.conform(operators), WORKLOAD.conform(kernels)])
    text = pl.col("device", "name", "shapes", "types").cast(pl.String)
    return both.sort(-pl.col("total_ns_per_cycle"), text, nulls_last=True)


def _is_product(name: str) -> bool:
    return re.search(MATRIX_PRODUCTS, name) is not None


def _calls_product(spans: pl.DataFrame, sizes: pl.DataFrame) -> pl.Series:
    """Ids of the products of matrices that call another one whose shapes are known."""
    is_product = _named(spans["name"], spans["category"] == "operator", _is_product)
    sized = sizes.filter(pl.col("input_shapes").is_not_null())["span_id"]
    rows = np.flatnonzero(is_product & spans["span_id"].is_in(sized.implode()))
    around = at_or_around(spans, is_product.to_numpy(), rows, itself=False)
    return pl.Series(around[around >= 0], dtype=pl.UInt32())


def parts_of(trace: Trace, cycles: pl.DataFrame, threads: pl.Series) -> pl.DataFrame:
    """PARTS of the cycles; `threads` are the tracks whose host work counts. Parts that take no time are left out."""
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    parts = _divided(trace, threads, lows, highs)
    on_host = trace.spans["track_id"].is_in(threads.implode()).any()
    parts[PYTHON if on_host else IDLE] = parts.pop("other")
    tables = [
        pl.DataFrame({"cycle": cycles["cycle"], "total_ns": total}).with_columns(part=pl.lit(name))
        for name, total in parts.items()
        if total.any()
    ]
    return pl.concat([PARTS.conform(table) for table in tables]) if tables else PARTS.empty()


def _divided(trace: Trace, threads: pl.Series, lows: Ints, highs: Ints) -> dict[str, Ints]:
    """The parts of each window [low, high): the mean of those of each device."""
    if not trace.spans["category"].is_in(DEVICE_WORK).any():
        return divided(_host_levels(trace, threads, on_device=False), lows, highs)
    work = device_work(trace.spans, trace.tracks, needed_by="compare")
    host = _host_levels(trace, threads, on_device=True)
    each = []
    for _, mine in by_device(work):
        times = occupied(mine)
        device = [(COMPUTATION, times.computation), (COMMUNICATION, times.kernels), (MEMCPY, times.busy)]
        each.append(divided([*device, *host], lows, highs))
    return mean_of(each, each[0])


def _host_levels(trace: Trace, threads: pl.Series, *, on_device: bool) -> list[tuple[str, Intervals]]:
    spans = trace.spans
    is_mine = spans["track_id"].is_in(threads.implode())
    category, names = spans["category"], spans["name"]
    calls = is_mine & category.is_in(("runtime", "driver"))
    waits = calls & _named(names, calls, is_sync_call)
    levels = [
        (LOADING, open_time(spans, is_mine & (category == "dataloader"))),
        (SYNC, open_time(spans, waits)),
        (LAUNCH, open_time(spans, calls)),
        (OPERATORS, computing_on_host(spans, is_mine)),
    ]
    if not on_device:
        levels.append((COMMUNICATION, open_time(spans, collectives_on_host(spans))))
    return levels


def _named(names: pl.Series, among: pl.Series, fits: Callable[[str], bool]) -> pl.Series:
    distinct = names.filter(among).unique()
    wanted = distinct.filter(map_names(distinct, fits, pl.Boolean()))
    return names.is_in(wanted.implode()) if wanted.len() else among & False
