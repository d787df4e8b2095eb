"""The report of a job: what was recorded, where the time of a step went, what costs most, and what the data lacks."""

from __future__ import annotations

import re
import statistics
from functools import partial
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope import store
from stepscope.analyses.advice.recommendations import Facts
from stepscope.analyses.common.device_work import label_devices, on_devices
from stepscope.analyses.common.windows import recorded
from stepscope.analyses.critical_path.predictions import gains, replayed_program, tables_of
from stepscope.analyses.kernels.kernels import kernel_times
from stepscope.analyses.program.operators import operators
from stepscope.analyses.resources.memory import device_memory
from stepscope.core import files
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.machine import threads_for
from stepscope.core.names import KERNEL_CLASSES
from stepscope.core.remedies import remedy
from stepscope.core.report import Note, Report
from stepscope.core.schema import DEVICE_WORK, SERIALISED
from stepscope.core.step_parts import IDLE
from stepscope.core.table import is_any_of
from stepscope.core.trace import Opener, Results, Trace
from stepscope.core.units import counted, duration, percent, size
from stepscope.reports._device import device_time, group_of, work_of
from stepscope.reports._headline_and_bars import overview_of_ranks
from stepscope.reports._host import has_host_work, host_time
from stepscope.reports._job import job_of
from stepscope.reports._quality import lacks_of_issues, quality
from stepscope.reports._serving import Serving
from stepscope.reports._stragglers import MOST_CALLS, packed_calls
from stepscope.reports._summary import (
    AHEAD,
    SLOWEST_STEPS,
    TALK,
    Cost,
    Memory,
    Scope,
    Summary,
    of_whole_run,
    only_scheduled,
    scope_of,
    slowed_by_profiler,
)  # fmt: skip
from stepscope.reports._tables import kernel_block, name_block, operator_block, track_block
from stepscope.reports.at_a_glance import advice_costs, hardware_use, mfu_at_a_glance, use_of
from stepscope.store.column_files import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.analyses.critical_path.replay import Program
    from stepscope.core.machine import Start
    from stepscope.core.report import Block
    from stepscope.core.trace import Run
    from stepscope.reports._device import DeviceTime
    from stepscope.reports._host import HostTime

    Outcome = Summary | Report | StepscopeError
    Each = Callable[[Callable[[str], Outcome], Sequence[str]], list[Outcome]]

__all__ = ["WHAT", "overview", "overview_of_ranks", "summarise", "summarise_file"]

#: Of what steps add to the memory that tensors hold, so much must be left in the end to be called growth.
_LASTING_RATIO = 0.5
_MEBIBYTE = 1 << 20
_OF_PEAK = ["device_id", "device", "peak_allocated_bytes", "peak_reserved_bytes"]
_NAMED = 4  # folders of several jobs that an error names
#: Of jobs with more files only summaries are cached: writing all traces takes a tenth of the reading time, and they
#: would displace entries that are used more often.
_MOST_CACHED = 64
_SLOW = 1.3  # times the median
_LEAST_SHARE = 0.02  # of all steps' time: less is noise
WHAT = "summary"


def overview(source: Trace | Run, *, each: Each | None = None) -> Report:
    """The report of one trace, or of all traces of a run, with one of them in memory at a time.

    `each` applies a function to the files of a run; without it they are read here, one after the other. The report
    names files that cannot be read, missing ranks, and ranks with several files. Raises StepscopeError if no file can
    be read.
    """
    if isinstance(source, Trace):
        return _own_report(source) or overview_of_ranks([summarise(source)])
    n_files = len(source.paths)
    most_calls = MOST_CALLS // n_files if n_files > 1 else 0
    one = partial(summarise_file, source.open_trace, most_calls=most_calls, keep_trace=n_files <= _MOST_CACHED)
    known = [_cached(source.open_trace, path, most_calls) if n_files <= _MOST_CACHED else None for path in source.paths]
    rest = [path for path, summary in zip(source.paths, known, strict=True) if summary is None]
    made = iter((each or _in_turn)(one, rest) if rest else ())
    outcomes: list[Outcome] = [next(made) if summary is None else summary for summary in known]
    own = [one for one in outcomes if isinstance(one, Report)]
    hangs = [one for one in own if "memory" not in one.more]
    if len(hangs) > 1:
        names = [str(path) for path, one in zip(source.paths, outcomes, strict=True) if one in hangs]
        folders = ", ".join(files.split(name)[0] for name in names[:_NAMED])
        raise StepscopeError(f"dumps of {len(hangs):,} jobs: {folders}", "name the folder of one of them")
    if hangs:
        return hangs[0]
    if len(own) == n_files:
        return _with_memory(None, own)
    pairs = [(path, one) for path, one in zip(source.paths, outcomes, strict=True) if not isinstance(one, Report)]
    job = job_of([path for path, _ in pairs], [one for _, one in pairs])
    report = overview_of_ranks(job.summaries, *job.sentences())
    report = replace(report, meta={**report.meta, **job.facts()})
    report = _with_memory(report, own) if own else report
    has_hung = report.issues is not None and "hang" in report.issues["code"].cast(pl.String)
    return _with_hangs(report, source) if has_hung else report


def _own_report(trace: Trace) -> Report | None:
    """The report of a job that stands still or of a memory snapshot, which have no timeline."""
    if not (trace.group_status.is_empty() and trace.processes.is_empty()):
        from stepscope.reports._hang import hang_report

        return hang_report(trace)
    if trace.is_memory_snapshot:
        from stepscope.reports._memory import memory_report

        return memory_report(trace)
    return None


def _with_hangs(report: Report, source: Run) -> Report:
    from stepscope.reports._hang import with_hangs

    return with_hangs(report, source)


def _with_memory(report: Report | None, snapshots: Sequence[Report]) -> Report:
    from stepscope.reports._memory import with_memory

    return with_memory(report, snapshots)


def summarise_file(
    open_trace: Callable[[str], Trace], path: str, *, most_calls: int = 0, keep_trace: bool = True
) -> Outcome:
    """The summary of one file, or the error that prevents it; of dumps and memory snapshots, their report.

    The summary is cached. With `most_calls` it holds so many collective calls. Without `keep_trace` the trace itself is
    not cached.
    """
    try:
        key = _key(open_trace, path, most_calls)
        cached = None if key is None else store.cached_value(key, Summary)
        if cached is not None:
            return cached
        trace = open_trace.once(path) if isinstance(open_trace, Opener) and not keep_trace else open_trace(path)
        report = _own_report(trace)
        if report is not None:
            return report  # not cached: that of dumps depends on all files of a folder
        summary = summarise(trace, most_calls)
    except StepscopeError as error:
        return error.with_traceback(None)
    if key is not None:
        store.cache_value(key, summary, summary.meta, what=WHAT)
    return summary


def _key(open_trace: Callable[[str], Trace], path: str, most_calls: int) -> store.CacheKey | None:
    depends = open_trace.depends(path) if isinstance(open_trace, Opener) else None
    return None if depends is None else store.value_key(WHAT, path, (most_calls, *depends))


def _cached(open_trace: Callable[[str], Trace], path: str, most_calls: int) -> Summary | None:
    """The summary of a file if it is in the cache: no process is started for it."""
    try:
        key = _key(open_trace, path, most_calls)
        return None if key is None else store.cached_value(key, Summary)
    except StepscopeError:  # it cannot be read: reading it says why
        return None


def _in_turn(function: Callable[[str], Outcome], paths: Sequence[str]) -> list[Outcome]:
    return [function(path) for path in paths]


def summarise(trace: Trace, most_calls: int = 0) -> Summary:
    """The summary of one trace, with so many of its collective calls."""
    other = _without_profile(trace)
    if other is not None:
        return replace(other, calls=packed_calls(trace, most_calls)) if most_calls else other
    spans = trace.spans
    own_work = work_of(trace) if is_any_of(spans["category"], DEVICE_WORK).any() else None
    with threads_for(spans.height) as start:
        summary = _summary_of_profile(trace, own_work, start)
    return replace(summary, calls=packed_calls(trace, most_calls, own_work)) if most_calls else summary


def _summary_of_profile(trace: Trace, own_work: pl.DataFrame | None, start: Start) -> Summary:
    """The summary of a trace with a timeline; `start` begins what needs nothing of the rest.

    `own_work` is that of `work_of`; None without any.
    """
    spans, scope = trace.spans, scope_of(trace, own_work)
    program = start(replayed_program, tables_of(trace), own_work)
    of_operators = start(_operators, trace)
    settle(spans.height)
    if own_work is not None:
        of_mfu = start(mfu_at_a_glance, trace, own_work, scope)
    divided: DeviceTime | HostTime | None
    divided = device = None if own_work is None else device_time(trace, scope, own_work)
    serving = Serving.of(trace)
    settle(spans.height)
    per_operator = of_operators()
    settle(spans.height)
    of_requests, of_cache = _of_requests(trace)
    tables: list[Block] = [*([] if serving is None else [serving.block()]), *of_requests]
    tables += [] if per_operator is None else [operator_block(per_operator)]
    if device is not None:
        tables += _kernel_tables(device.work)
    elif has_host_work(spans) and (per_operator is not None or scope.numbers):
        divided = host_time(trace, per_operator, scope)
    if not tables:
        tables = [track_block(trace), name_block(trace)]
    tables += _of_threads(trace, scope)
    memory = None if trace.allocations.is_empty() else device_memory(trace.allocations, trace.steps)
    costs = [] if divided is None else [*divided.costs, *outlier_costs(divided.by_window, scope)]
    if memory is not None:
        costs += _growth(memory, scope)
    settle(spans.height)
    use, facts = ({}, Facts()) if device is None else use_of(trace, device.work, scope)
    settle(spans.height)
    mfu, no_mfu = ({}, ()) if device is None else of_mfu()
    costs += advice_costs(facts, memory, trace.devices, costs)
    if (trace.issues["code"] == SERIALISED).any():  # the recorder made the device wait, and not the program
        costs = [cost for cost in costs if not cost.kind.startswith(("idle", "rule device_underused"))]
    costs = [*(costs if serving is None else serving.costs(costs)), *of_cache]
    settle(spans.height)
    idle_ns = 0 if divided is None else divided.parts.get(IDLE, 0)
    costs = _with_gains(program, costs, scope, scope.least_ns(idle_ns))
    first, last = recorded(spans)
    lacks = quality(trace, scope, None if device is None else device.work)
    return Summary(
        meta=trace.meta,
        recorded_ns=last - first,
        devices=_devices(trace, device),
        places=_places(trace, device),
        pids=_pids(trace),
        numbers=scope.numbers,
        windows_ns=tuple((scope.highs - scope.lows).tolist()),
        host_ns=scope.host_ns,
        parts={} if divided is None else divided.parts,
        busy={} if device is None else device.busy,
        use={**use, **mfu},
        while_idle={} if device is None else device.while_idle,
        memory=None if memory is None else _peak(trace, memory),
        notes=(
            *_whole_run(trace, scope, device),
            *(() if device is None else (*device.notes, *_late(scope), *hardware_use(trace))),
        ),
        costs=tuple(costs),
        tables=tuple(tables),
        quality=(*(lack for lack in lacks if serving is None or lack.kind != "no_steps"), *no_mfu),
        issues=trace.issues,
        facts=() if serving is None else serving.facts(),
    )


def _without_profile(trace: Trace) -> Summary | None:
    """The summary of sums, requests, experts, counters, or kernels without times; None if there is a timeline."""
    if isinstance(trace, Results) and trace.spans.is_empty():
        from stepscope.reports._results import summarise_results

        return summarise_results(trace)
    if trace.spans.is_empty() and _has_requests(trace) and trace.meta.format != "counters":
        from stepscope.reports._requests import summary_of_requests

        return summary_of_requests(trace)
    if trace.spans.is_empty() and not trace.expert_tokens.is_empty():
        from stepscope.reports._requests import summary_of_experts

        return summary_of_experts(trace)
    if trace.spans.is_empty() or only_scheduled(trace):
        from stepscope.reports._counters import summary_of_counters

        return summary_of_counters(trace)
    if not trace.has_clock:
        from stepscope.reports._without_clock import summary_without_clock

        return summary_without_clock(trace, lacks_of_issues(trace.issues))
    return None


def _has_requests(trace: Trace) -> bool:
    return not (trace.requests.is_empty() and trace.histograms.is_empty())


def _of_requests(trace: Trace) -> tuple[list[Block], list[Cost]]:
    """Tables of the requests that were recorded with a profile, and the cost of too small a KV cache."""
    if not _has_requests(trace) and trace.counters.is_empty():
        return [], []
    from stepscope.reports._requests import cache_costs, request_blocks

    return request_blocks(trace), cache_costs(trace)


def _of_threads(trace: Trace, scope: Scope) -> list[Block]:
    """Tables of the Python stacks and of the scheduling that were recorded with a profile."""
    if trace.stack_samples.is_empty() and trace.sched.is_empty():
        return []
    from stepscope.reports._threads import python_block, scheduling_blocks

    return [*python_block(trace, scope), *scheduling_blocks(trace)]


#: What mends a cost of each kind, as `predict` asks it.
_MENDED = {
    "idle data_loading": ("loader: hidden",),
    "loading": ("loader: hidden",),
    "idle sync": ("sync: removed",),
    "idle launching": ("launch: graphs",),
    "memcpy": ("copies: free",),
    "serving host": ("host: free", "launch: free"),
    "serving graphs": ("launch: graphs",),
    "serving padding": ("padding: removed",),
    "serving prefill": ("prefill: removed",),
    "serving sampling": ("sampling: free",),
}


def _mended(kind: str) -> tuple[str, ...]:
    """The changes that mend a cost of this kind; none if it is not known what would."""
    subject, _, name = kind.partition(" ")
    if kind == TALK:
        return ("comm: free",)
    if subject == "compute":
        classes = [one for one in KERNEL_CLASSES if one != "collective"]  # that is no computation
        return tuple(f"class {one}: 2x" for one in classes if group_of(one) == name)
    if subject == "operator":
        return (f"self ~ ^{re.escape(name)}$: 2x",)
    return _MENDED.get(kind, ())


def _with_gains(
    program: Callable[[], Program | None], costs: Sequence[Cost], scope: Scope, least_ns: float
) -> list[Cost]:
    """The costs with what it is worth to mend each that takes `least_ns`, in relation to a mean step."""
    kinds = {cost.kind: _mended(cost.kind) for cost in costs if cost.ns is None or cost.ns >= least_ns}
    questions = {kind: changes for kind, changes in kinds.items() if changes}
    step_ns = scope.whole_ns / max(len(scope.lows), 1)
    try:
        answers = gains(program(), list(questions.values()), step_ns)
    except MissingTable:  # nothing was recorded of the host
        return list(costs)
    of_kind = dict(zip(questions, answers, strict=True))
    return [replace(cost, gain=of_kind.get(cost.kind)) for cost in costs]


def _operators(trace: Trace) -> pl.DataFrame | None:
    try:
        return operators(trace.spans, trace.ops, trace.stacks)
    except MissingTable:
        return None


def _kernel_tables(work: pl.DataFrame) -> list[Block]:
    times = kernel_times(work)
    return [] if times.is_empty() else [kernel_block(times)]  # copies and fills alone are no kernels


def _devices(trace: Trace, device: DeviceTime | None) -> tuple[str, ...]:
    """The product name, or else the type, of each device that worked."""
    if device is None:
        return ()
    described = {
        number: (name, kind) for number, name, kind in trace.devices[["device_id", "name", "type"]].iter_rows()
    }
    named = [described.get(number, (None, "unknown device")) for number in _used(device)]
    return tuple(kind.upper().replace("ROCM", "ROCm") if name is None else name for name, kind in named)


def _places(trace: Trace, device: DeviceTime | None) -> tuple[str, ...]:
    """The labels of the devices that worked, in the order of `_devices`, and of the trace's other accelerators."""
    accelerators = [number for number, kind in trace.devices[["device_id", "type"]].iter_rows() if kind != "cpu"]
    numbers = dict.fromkeys([*(_used(device) if device is not None else ()), *accelerators])
    named = pl.DataFrame({"device_id": list(numbers)}, schema={"device_id": pl.UInt32})
    return tuple(label or "device" for label in label_devices(named, trace.devices)["device"])


def _pids(trace: Trace) -> tuple[int, ...]:
    """The processes whose host work was recorded."""
    of_host = {
        pid
        for device_id, process, pid in trace.tracks[["device_id", "process", "pid"]].iter_rows()
        # XLA numbers its planes, as /host:CPU, and writes no process ids.
        if device_id is None and not (process or "").startswith("/")
    }
    # Kineto gives tracks without a process the numbers 0 and -1.
    return tuple(sorted(pid for pid in of_host if pid is not None and pid > 0))


def _used(device: DeviceTime) -> list[int | None]:
    return on_devices(device.work)["device_id"].unique(maintain_order=True).to_list()


def _peak(trace: Trace, memory: pl.DataFrame) -> Memory | None:
    """The accelerator with the highest peak of memory; the host if no accelerator was recorded."""
    described = {number: rest for number, *rest in trace.devices[["device_id", "type", "memory_bytes"]].iter_rows()}
    peaks = [
        (kind != "cpu", peak, label, reserved, capacity)
        for number, label, peak, reserved in label_devices(memory, trace.devices)[_OF_PEAK].iter_rows()
        for kind, capacity in (described.get(number, ("cpu", None)),)
        if peak is not None
    ]
    _, peak, label, reserved, capacity = max(peaks, key=lambda one: one[:2], default=(False, 0, None, None, None))
    return Memory(label, peak, reserved, capacity) if peak > 0 else None


def _growth(memory: pl.DataFrame, scope: Scope) -> list[Cost]:
    """A cost if tensors hold more memory after each step, by amounts that matter."""
    if len(scope.numbers) < 4 or "growth_bytes_per_step" not in memory.columns:
        return []
    least = pl.max_horizontal(pl.lit(_MEBIBYTE), pl.col("peak_allocated_bytes") * 0.001)
    rise = pl.col("growth_bytes_per_step")
    # What is freed again every few steps grows in most steps, and not in all of them together.
    lasts = pl.col("growth_bytes") >= _LASTING_RATIO * rise * (len(scope.numbers) - 1)
    growing = memory.filter((rise > least) & lasts).sort("growth_bytes_per_step", descending=True)
    if growing.is_empty():
        return []
    most, peak = growing.select("growth_bytes_per_step", "peak_allocated_bytes").row(0)
    title = f"Memory held by tensors grows by {size(most)} with every step ({percent(most / peak)} of the peak)"
    advice = "→ look for tensors kept across steps: losses summed with their graph, growing lists, caches"
    return [Cost("growth", title, None, (advice,), "show memory --by operator")]


def _whole_run(trace: Trace, scope: Scope, device: DeviceTime | None) -> tuple[Note, ...]:
    lengths = scope.highs - scope.lows if scope.numbers else scope.highs[:0]
    slowed = slowed_by_profiler(trace, lengths, () if device is None else tuple(device.busy.values()))
    return tuple(Note(text, "steps", "show step_times") for text in (of_whole_run(trace), slowed) if text)


def _late(scope: Scope) -> tuple[Note, ...]:
    if not scope.late_ns or scope.late_ns > (1 - AHEAD) * scope.whole_ns:  # the bar says so then
        return ()
    text = f"device done {duration(scope.late_ns)} after the step's end on the host"
    return (Note(text, "steps", SLOWEST_STEPS),)


def outlier_costs(by_window: Mapping[str, NDArray[np.int64]], scope: Scope) -> list[Cost]:
    """One cost for all slow steps: their time beyond the median. It says which part grew in the slowest step.

    `by_window` has the parts of each step's time. Fewer than 4 steps are too few to call one unusual.
    """
    lengths = scope.highs - scope.lows
    if len(scope.numbers) < 4:
        return []
    median = statistics.median(lengths.tolist())
    if median <= 0:
        return []
    slow = lengths > _SLOW * median
    excess = float((lengths[slow] - median).sum())
    if excess < _LEAST_SHARE * scope.whole_ns or excess <= 0:
        return []
    worst = int(lengths.argmax())
    more = {name: int(values[worst]) - statistics.median(values.tolist()) for name, values in by_window.items()}
    grown = max(more, key=lambda name: more[name])
    detail = f"{duration(more[grown])} of the difference is {grown}, which other costs include"
    n_more = int(slow.sum()) - 1
    if n_more:
        detail += f"; {counted(n_more, 'other step')} took more than {_SLOW} × the median"
    if worst == 0:
        detail += "; it is the first one recorded: " + remedy("warm_up", scope.about)
    times = f"{lengths[worst] / median:.1f} × the median"
    title = f"Step {scope.numbers[worst]} took {duration(float(lengths[worst]))}, {times}"
    return [Cost("outlier", title, excess, (detail,), "show steps")]
