"""What the data lacks: sentences that a reader needs before trusting the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.collective_calls import collectives_on_host
from stepscope.analyses.common.device_work import on_devices
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.steps.timeline import timeline
from stepscope.core.collectives import library_of
from stepscope.core.names import is_graph_launch, is_launch_call, map_names
from stepscope.core.patterns import regex
from stepscope.core.remedies import remedy
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import filtered, is_any_of
from stepscope.core.trace import Results, extent_ns
from stepscope.core.units import count, counted, duration, percent, sum_of
from stepscope.reports._summary import NO_DEVICE, Lack

if TYPE_CHECKING:
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

_SHARE_SAYS_MORE = ("no_launch", "no_operator")  # shown by their share of time instead, which says more than the count
_ALWAYS_SHOWN = ("counters_stitched",)  # an info, but it says which share of kernel time has counters
_LEAST_SHARE = 0.001
#: The recorder's times of steps and ours, by column; what is no copy; and differences that matter.
_SAME_TIMES = {
    "computation_ns": "computing", "exposed_communication_ns": "exposed communication", "idle_ns": "free time",
}  # fmt: skip
_NOT_COPIES = tuple(kind for kind in DEVICE_WORK if kind != "memcpy")
_LEAST_DIFFERENCE, _MOST_STEPS = 0.01, 100
#: Libraries of collectives that move data between devices only, and Python's own calls of a device.
_DEVICE_LIBRARIES = ("nccl", "rccl", "hccl", "mccl", "cncl", "xccl", "bccl")
_DEVICE_FUNCTION = regex(r"^<built-in (?:function|method) _?(?:cuda|hip|npu|xpu|mlu|musa)_?synchronize")


def quality(trace: Trace, scope: Scope, work: pl.DataFrame | None) -> tuple[Lack, ...]:
    """Missing links, unmarked or incomplete steps, and what the reader dropped. `work` is from `device_work`."""
    lacks: list[Lack] = []
    if work is not None:
        lacks += _links(trace, scope, work)
        lacks += _unplaced(work)
        lacks += _edges(scope, work)
    elif _uses_device(trace):
        lacks.append(Lack(NO_DEVICE, "The host used a device, but none of the device's work was recorded."))
    lacks += _steps(trace, scope)
    lacks += _step_times(trace)
    lacks += lacks_of_issues(trace.issues)
    return tuple(lacks)


def _uses_device(trace: Trace) -> bool:
    """Whether the host launched device work, waited for it, or called a library that communicates on devices."""
    category = trace.spans["category"]
    calls = trace.spans["name"].filter(category.is_in(["runtime", "driver"])).unique()
    functions = trace.spans["name"].filter(category == "python").unique()
    collectives = trace.spans["name"].filter(collectives_on_host(trace.spans)).unique()
    return bool(
        map_names(calls, is_launch_call, pl.Boolean()).any()
        or map_names(functions, lambda name: _DEVICE_FUNCTION.search(name) is not None, pl.Boolean()).any()
        or map_names(collectives, lambda name: library_of(name) in _DEVICE_LIBRARIES, pl.Boolean()).any()
    )


def _links(trace: Trace, scope: Scope, work: pl.DataFrame) -> list[Lack]:
    whole = sum_of(work["dur_ns"])
    if not whole:
        return []
    if not is_any_of(trace.spans["category"], ("operator", "runtime", "driver")).any():
        what = (
            "No launches or operators are in the trace: what launched the device work, and why it waited, is unknown."
        )
        return [Lack("no_host", what)]
    lacks = []
    loose = work["launch_id"].is_null()
    ratio = sum_of(work["dur_ns"].filter(loose)) / whole
    if ratio > _LEAST_SHARE:
        pieces = counted(int(loose.sum()), "piece")
        what = f"No launch record of {pieces} of device work ({percent(ratio)} of device time)."
        lacks.append(Lack("no_launch", what))
    if not (trace.spans["category"] == "operator").any():
        has_ranges = (trace.spans["category"] == "user_range").any()
        advice = "show user-ranges says whose the kernels are" if has_ranges else remedy("operators", scope.about)
        if not trace.hlo_ops.is_empty():
            advice = "show hlo_ops says which operation of XLA each kernel is, and its source"
        what = f"No operators are in the trace: {advice}." if advice else "No operators are in the trace."
        return [*lacks, Lack("no_operators", what)]
    linked = filtered(work[["dur_ns", "launch_id"]], ~loose & work["op_id"].is_null())
    ratio = sum_of(linked["dur_ns"]) / whole
    if ratio > 0.01:
        calls = of_spans(trace.spans, linked["launch_id"], "name")
        replayed = sum_of(linked["dur_ns"].filter(map_names(calls, is_graph_launch, pl.Boolean()))) / whole
        why = "" if replayed < ratio / 2 else ": replayed graphs do not say by which operators they were captured"
        lacks.append(Lack("no_operator", f"{percent(ratio)} of device time belongs to no operator{why}."))
    return lacks


def _unplaced(work: pl.DataFrame) -> list[Lack]:
    n = work.height - on_devices(work).height
    if not n:
        return []
    verb = "is" if n == 1 else "are"
    text = f"{counted(n, 'piece')} of device work could be of any of several devices and {verb} in no bar."
    return [Lack("no_device_named", text)]


def _edges(scope: Scope, work: pl.DataFrame) -> list[Lack]:
    after = int(work["end_ns"].to_numpy().max()) - scope.high
    if len(scope.numbers) < 2 or after < 0.02 * scope.whole_ns:
        return []
    what = f"Device work goes on for {duration(after)} after the last step's end, which is in no step's breakdown."
    return [Lack("after_steps", what)]


def _steps(trace: Trace, scope: Scope) -> list[Lack]:
    spans = trace.spans
    if not scope.numbers:
        advice = remedy("steps", scope.about)
        if not (spans["category"] == "operator").any():
            return []
        return [Lack("no_steps", f"No steps are marked: {advice}." if advice else "No steps are marked.")]
    first, last = extent_ns(spans)
    recorded = last - first
    ratio = scope.whole_ns / recorded if recorded else 1.0
    if ratio > 0.7:
        return []
    what = f"Steps cover {percent(ratio)} of the recording; bars and costs are of steps alone."
    return [Lack("outside_steps", what)]


def _step_times(trace: Trace) -> list[Lack]:
    """Where the recorder's own times of steps differ from ours: Ascend's, to which copies are free time."""
    if not isinstance(trace, Results) or "step_trace_time" not in trace.results:
        return []
    theirs = trace.result("step_trace_time")
    is_only = theirs.height == 1
    theirs = theirs if is_only else theirs.drop_nulls("step").head(_MOST_STEPS)
    work = trace.spans.filter(pl.col("category").is_in(_NOT_COPIES))
    worst: tuple[float, str] = (_LEAST_DIFFERENCE, "")
    for row in theirs.iter_rows(named=True):
        of_step = work if is_only else work.filter(pl.col("step") == row["step"])
        if of_step.is_empty():
            continue
        ours = timeline(of_step, trace.tracks).row(0, named=True)
        for column, name in _SAME_TIMES.items():
            wanted, own = row[column], ours[column]
            if wanted is None or not (stage := row["stage_ns"] or ours["total_ns"]):
                continue
            # Of its own size, as long as it is not a trifle of the step.
            off = abs(own - wanted) / max(wanted, own, 0.01 * stage, 1)
            if off > worst[0]:
                where = "" if row["step"] is None else f" in step {row['step']}"
                worst = off, f"{name}{where} {duration(wanted)}; here it is {duration(own)}"
    if not worst[1]:
        return []
    return [Lack("step_times", f"The profiler's own step times differ: it has {worst[1]} (show step_trace_time).")]


def lacks_of_issues(issues: pl.DataFrame) -> tuple[Lack, ...]:
    """The reader's warnings on what it dropped, guessed or repaired, and the result of joining kernel counters."""
    if issues.is_empty():
        return ()
    is_loud = (pl.col("severity") != "info") & ~pl.col("code").is_in(_SHARE_SAYS_MORE)
    loud = issues.filter(pl.col("code").is_in(_ALWAYS_SHOWN) | is_loud)
    lacks = []
    for code, _, n, example in loud.iter_rows():
        text = (example or code.replace("_", " ")).rstrip(". ")
        times = f" ({count(n)} ×)" if n > 1 and code not in _ALWAYS_SHOWN else ""
        end = "" if not times and text.endswith(("?", "!", "…")) else "."
        lacks.append(Lack(code, f"{text[:1].upper()}{text[1:]}{times}{end}"))
    return tuple(lacks)
