"""Summaries of what is no profile: counters, scheduling and Python stacks; and kernels whose order alone is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.costs.fusion import fusion
from stepscope.analyses.kernels.kernel_classes import KERNEL_CLASS_SUMMARY, kernel_classes
from stepscope.analyses.kernels.kernels import kernels
from stepscope.analyses.kernels.utilisation import utilisation, with_limits
from stepscope.analyses.program.python_stacks import PYTHON_STACKS, python_stacks
from stepscope.analyses.program.scheduling import SCHEDULING, scheduling
from stepscope.analyses.resources.counters import COUNTER_SUMMARY, counters
from stepscope.core.errors import MissingTable
from stepscope.core.names import shorten
from stepscope.core.remedies import Recording, remedy
from stepscope.core.report import Block, Note
from stepscope.core.units import counted, duration, percent
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._serving import cache_costs, facts_of_requests, request_blocks
from stepscope.reports._summary import Cost, Lack, Summary, of_whole_run
from stepscope.reports._tables import kernel_block

if TYPE_CHECKING:
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope


_THREAD_COLUMNS = ("process", "tid", "thread", "oncpu_ns", "runq_ns", "waiting_ratio", "behind", "behind_is_own")
_MOST_THREADS = 5
PYTHON_TITLE = "Python: where its threads were"
_FUNCTIONS_SHOWN = 30
_STACKS_COMMAND = "show python-stacks --by function"
_NOTHING = Lack("no_spans", "The trace holds no spans with times: there is nothing to report.")
_ONLY = Lack("only_counters", "Only counters were recorded: what ran, and when, is unknown.")
_SCHEDULED = Lack("only_counters", "Counters and scheduling were recorded: when threads ran, not what they did.")
_NO_PROFILE = Lack(
    "no_profile", "Counters and Python stacks were recorded, no profile: steps and operators are unknown."
)
_PER_SECOND = 1_000_000_000
_STARVED = 0.1  # of the time, from which on waiting for a core is worth a finding
_RUNNING = "process_oncpu_time"
#: Counters of time in which a process could not run although it was ready: what that is, and the topic of the remedy.
_STARVING = {
    "process_runq_time": ("The CPU is starved: threads are ready to run and wait for a core", "starved"),
    "cgroup_cpu_throttled_time": ("The CPU is starved: the container's quota stops its threads", "throttled"),
}
_RESOURCE_COLUMNS = ("device", "metric", "unit", "mean", "p95", "max")


def only_scheduled(trace: Trace) -> bool:
    """Whether the only spans of the trace are those of scheduling."""
    return 0 < trace.spans.height == trace.sched.height


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


def summary_of_counters(trace: Trace) -> Summary:
    """Mean and peak of each resource that was used at all; without counters, a summary that says so."""
    waits = scheduling_blocks(trace)
    if trace.counters.is_empty():
        lack = _SCHEDULED if waits else _NOTHING
        return Summary(trace.meta, recorded_ns=0, tables=tuple(waits), quality=(lack,), issues=trace.issues)
    frame = counters(trace.counters).filter(pl.col("max") != 0).select(_RESOURCE_COLUMNS)
    first, last = trace.counters.select(low=pl.col("ts_ns").min(), high=pl.col("ts_ns").max()).row(0)
    block = Block("Resources that were used", COUNTER_SUMMARY, frame, "show counters")
    python = python_block(trace)
    lack = _NO_PROFILE if python else _SCHEDULED if waits else _ONLY
    tables = (*request_blocks(trace), *python, *waits, block)
    costs = (*_starved(trace, last - first), *cache_costs(trace))
    return Summary(
        trace.meta,
        recorded_ns=last - first,
        windows_ns=(last - first,) if costs else (),
        costs=costs,
        tables=tables,
        quality=(lack, *lacks_of_issues(trace.issues)),
        issues=trace.issues,
        facts=(*facts_of_requests(trace), *filter(None, [of_whole_run(trace)])),
    )


def _starved(trace: Trace, recorded_ns: int) -> tuple[Cost, ...]:
    """A cost for each reason for which a process did not get the cores that it was ready to use."""
    known = trace.counters.with_columns(pl.col("metric").cast(pl.String))
    used = counters(known.filter(pl.col("metric").is_in([*_STARVING, _RUNNING])).filter(pl.col("ts_ns").is_not_null()))
    running = dict(used.filter(pl.col("metric").cast(pl.String) == _RUNNING).select("device", "mean").iter_rows())
    host = counters(known.filter((pl.col("metric") == "host_cpu_usage") & (pl.col("device").cast(pl.String) == "host")))
    costs = []
    for metric, (title, topic) in _STARVING.items():
        mine = used.filter(pl.col("metric").cast(pl.String) == metric).sort("mean", descending=True)
        if mine.is_empty() or mine["mean"][0] < _STARVED * _PER_SECOND:
            continue
        device, mean, most = mine.select("device", "mean", "p95").row(0)
        facts = [f"{device}: {duration(mean)} of each second (95th percentile {duration(most)})"]
        if device in running:
            facts.append(f"it runs for {duration(running[device])} of each")
        if host.height:
            facts.append(f"the host's cores are busy {percent(host['mean'][0] / 100)} of the time")
        details = ("; ".join(facts), f"→ {remedy(topic, Recording())}")
        # Several threads can wait at a time.
        cost_ns = min(mean / _PER_SECOND, 1.0) * recorded_ns
        costs.append(Cost(f"starved {metric}", title, cost_ns, details, "show counters"))
    return tuple(costs)


_NO_CLOCK = "The file knows in which order kernels ran, but not when: idle time, overlap and steps are unknown."
_LOW, _LEAST_LOW = 0.1, 0.005
_LEAST_SAVED = 0.01
_JUDGED = 3
_LIMITS = {"memory": "memory-bound", "compute": "compute-bound", "latency": "latency-bound"}
_CLASSES, _OTHER = 6, "other"
_RATIOS = {"tensor_ratio": "tensor cores busy", "dram_ratio": "memory bandwidth used", "sm_ratio": "SMs busy"}


def summary_without_clock(trace: Trace, quality: tuple[Lack, ...]) -> Summary:
    """Kernel time by class, hardware use, and the costliest kernels. `quality` lists what else the data lacks."""
    lacks = (Lack("no_clock", _NO_CLOCK), *quality)
    n = trace.spans.height
    devices = tuple(trace.devices["name"].drop_nulls().to_list())
    try:
        classes = kernel_classes(trace.spans, trace.kernel_metrics)
    except MissingTable:  # no kernel or no durations, which the reader has reported
        return Summary(trace.meta, 0, devices, quality=lacks, issues=trace.issues, n_launches=n)
    whole = int(classes["total_ns"].sum())
    vague = int(classes["vague_calls"].sum())
    if vague:
        what = f"{counted(vague, 'launch', 'launches')} with a name cut short, as Kernel, counted as matrix products."
        lacks = (*lacks, Lack("vague_names", what))
    shown = classes.select("kernel_class", "calls", "total_ns", "share_ratio")
    costly = kernel_block(kernels(trace.spans, trace.tracks, trace.kernels))
    return Summary(
        trace.meta,
        recorded_ns=whole,
        devices=devices,
        windows_ns=(whole,),
        costs=_verdicts(trace),
        parts=parts_by_class(classes),
        notes=(*hardware_use(trace), *_fusible(trace, whole)),
        tables=(Block("Classes of kernels", KERNEL_CLASS_SUMMARY, shown, "show kernel-classes"), costly),
        quality=lacks,
        issues=trace.issues,
        n_launches=n,
    )


def _verdicts(trace: Trace) -> tuple[Cost, ...]:
    """A cost for each of the kernels that take most time: what limits it, and what would help."""
    if trace.kernel_metrics.is_empty():
        return ()
    try:
        used = utilisation(trace.spans, trace.kernel_metrics, by="name")
    except MissingTable:
        return ()
    costs: list[Cost] = []
    for row in with_limits(used.sort("total_ns", descending=True).head(_JUDGED)).iter_rows(named=True):
        limit = row["limit"]
        if limit is None or not row["total_ns"]:
            continue
        facts = [f"{what} {percent(row[ratio])}" for ratio, what in _RATIOS.items() if row[ratio] is not None]
        name = str(row["name"])
        title = f"{shorten(name)}: {_LIMITS[limit]}" + (", near its limit" if row["near_limit"] else "")
        advice = f"→ {remedy(f'{limit}_bound', Recording())}"
        given = any(advice in cost.details for cost in costs)  # once is enough
        details = (", ".join(facts),) if given else (", ".join(facts), advice)
        costs.append(Cost(f"kernel {name}", title, row["total_ns"], details, "show utilisation --by name"))
    return tuple(costs)


def parts_by_class(classes: pl.DataFrame) -> dict[str, int]:
    """The time of the costliest classes and of all the rest together. `classes` are sorted, longest first."""
    times = dict(classes.select("kernel_class", "total_ns").iter_rows())
    parts = {name: times.pop(name) for name in list(times)[:_CLASSES] if name != _OTHER}
    return parts | {_OTHER: sum(times.values())}


def hardware_use(trace: Trace) -> tuple[Note, ...]:
    """Notes on how much of the hardware was used; none if it was not measured."""
    if trace.kernel_metrics.is_empty():
        return ()
    try:
        used = utilisation(trace.spans, trace.kernel_metrics, low=_LOW).row(0, named=True)
    except MissingTable:
        return ()
    facts = [f"{what} {percent(used[ratio])}" for ratio, what in _RATIOS.items() if used[ratio] is not None]
    if (used["low_ratio"] or 0.0) >= _LEAST_LOW:
        facts.append(f"tensor cores and memory both under {percent(_LOW)}: {percent(used['low_ratio'])} of the time")
    return tuple(Note(fact, "hardware use", "show utilisation") for fact in facts)


def _fusible(trace: Trace, whole_ns: int) -> tuple[Note, ...]:
    """A note on what fusing memory-bound kernels would save; none if their traffic is not known."""
    tables = (trace.spans, trace.tracks, trace.ops, trace.kernel_metrics, trace.devices, trace.kernels)
    saving = fusion(*tables, by="all").row(0, named=True)
    low, high = saving["saved_low_ns"], saving["saved_high_ns"]
    if not whole_ns or high is None or high < _LEAST_SAVED * whole_ns:
        return ()
    text = f"fusing runs of memory-bound kernels would save {percent(low / whole_ns)} to {percent(high / whole_ns)}"
    return (Note(text, "fusion", "show fusion"),)
