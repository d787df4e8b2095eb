"""The causes of a device's idle time, and what to do about each."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.device_work import by_device, label_devices
from stepscope.analyses.common.span_lookup import during, most_called, most_of, of_spans
from stepscope.analyses.steps.idle import LAUNCHING, caused_gaps
from stepscope.core.intervals import covered, union
from stepscope.core.names import shorten
from stepscope.core.remedies import remedy
from stepscope.core.table import filtered, is_any_of
from stepscope.core.units import count, counted, duration, percent, shares, sum_of
from stepscope.reports._summary import ENDS, Cost

if TYPE_CHECKING:
    from stepscope.core.remedies import Recording
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

#: Operators in which the host waits for the device, as they are written in a program.
_WAITS = {
    "aten::_local_scalar_dense": ".item(), or a tensor used as a number or a condition",
    "aten::item": ".item(), or a tensor used as a number or a condition",
    "aten::is_nonzero": "a tensor used as a condition",
    "aten::copy_": "a copy to the host, as .cpu(), .tolist() or .to() do",
    "aten::_to_copy": "a copy to the host, as .cpu(), .tolist() or .to() do",
    "aten::nonzero": "nonzero(), or indexing with a mask",
    "aten::unique": "unique()",
    "aten::_unique2": "unique()",
}
_MANY = 20  # with more gaps a step, launching itself is slow, and not one place in the program
_SHORT_NS = 1_000_000  # a gap in which the host launches one piece of work after another is not longer
_UNEVEN = 1.2  # times its even share of a cause, from which on a device is named
_LITTLE = 0.05  # a device that works for a smaller part of the time is hardly used
_NOTABLE = 0.1  # share of an end of the recording from which on a call is named
_NAMED = 0.3  # share of the time from which on a call or a place is named
#: What the host does in the gaps of each cause: the title of the finding, and the topic of its remedy.
_HOST = {
    "garbage_collection": ("The device waits while Python collects garbage", "garbage_collection"),
    "communication": ("The device waits while the host communicates with other ranks", "communication"),
    "compilation": ("The device waits while the host compiles", "compilation"),
    "allocator": ("The device waits for memory to be allocated or freed", "allocator"),
    "first_use": ("The device waits for calls that load a kernel or set the device up: first use", "first_use"),
    "slow_launch": ("The device waits for launches that take long", "slow_launch"),
    "blocking_call": ("The device waits while a call holds the host up", "blocking_call"),
    "operator": ("The device waits for operators on the host", ""),
    "runtime": ("The device waits for calls of the runtime on the host", ""),
    "host_idle": ("The device waits because the host does", "host_idle"),
    "python": ("The device waits for Python on the host", "python"),
    "unrecorded": ("The device waits for the host, in code that was not recorded", "with_stack"),
}
_SMALL = "Idle time too short to be looked into"
_IN_A_RANGE = "The device waits for the host, in a range of the program without operators"
#: An end of the recording that is a smaller part of the idle time at both ends is not named.
_SMALL_END = 0.005
_DOING = {"operator": "operators", "runtime": "runtime calls", "python": "Python", "unrecorded": "code not recorded"}


def idle_costs(work: pl.DataFrame, trace: Trace, scope: Scope, idle_ns: int) -> list[Cost]:
    """A cost for each cause of gaps in device work, and one for the idle time at the ends of the scope.

    Gaps are those that `show idle` has, as far as they lie in steps.
    """
    if idle_ns <= 0:
        return []
    work = work[["rank", "device_id", "span_id", "ts_ns", "end_ns", "launch_id", "op_id", "step", "name"]]
    begin = scope.low if scope.numbers else None
    least_ns = scope.n_devices * scope.least_ns(idle_ns)
    gaps = caused_gaps(work, trace.spans, trace.tracks, ("rank", "device_id"), calls_from_ns=least_ns, begin_ns=begin)
    starts = gaps["ts_ns"].to_numpy()
    inside = covered(scope.windows, starts, starts + gaps["dur_ns"].to_numpy())
    gaps = filtered(gaps.hstack([pl.Series("ns", inside)]), pl.Series(inside > 0))
    at_head = gaps["before_id"].is_null()
    head_ns = sum_of(gaps["ns"].filter(at_head))
    costs = []
    is_launching = is_any_of(gaps["cause"], LAUNCHING) & ~at_head
    launching = filtered(gaps, is_launching)
    if is_launch_bound(launching, scope.n * scope.n_devices):
        gaps, ns = filtered(gaps, ~is_launching), sum_of(launching["ns"])
        is_small = ns < least_ns
        costs.append(Cost("idle launching", _SMALL, ns) if is_small else _launching(launching, trace, scope))
    cost_of_cause = {
        "sync": _sync, "data_loading": _loading, "kernel_wait": _short, "other": _other, "unlinked": _unlinked,
    }  # fmt: skip
    for (cause,), mine in gaps.partition_by("cause", as_dict=True).items():
        if sum_of(mine["ns"]) < least_ns:
            costs.append(Cost(f"idle {cause}", _SMALL, sum_of(mine["ns"])))
        else:
            cost = cost_of_cause.get(str(cause), _by_host)(mine, trace, scope)
            costs.append(_with_device(cost, mine, work, trace, scope))
    # A gap of one device is a part of the mean of all.
    costs = [replace(cost, ns=(cost.ns or 0) / scope.n_devices) for cost in costs]
    at_ends = idle_ns - round(sum(cost.ns or 0 for cost in costs))
    return [*costs, *_ends(work, trace, scope, at_ends, head_ns, is_small=at_ends < scope.least_ns(idle_ns))]


def _with_device(cost: Cost, gaps: pl.DataFrame, work: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    """The cost, which says on which of several devices most of these gaps are, if they are not alike."""
    if scope.n_devices < _UNEVEN or not cost.details:
        return cost
    by_time = gaps.group_by("device_id").agg(pl.col("ns").sum()).sort("ns", "device_id", descending=[True, False])
    ratio = by_time["ns"][0] / max(sum_of(by_time["ns"]), 1)
    if ratio * scope.n_devices < _UNEVEN:
        return cost
    label = label_devices(by_time.head(1), trace.devices)["device"][0] or f"device {by_time['device_id'][0]}"
    its = work.filter(pl.col("device_id").eq_missing(by_time["device_id"][0]))
    busy = union(its["ts_ns"].to_numpy(), its["end_ns"].to_numpy())
    little = covered(busy, *scope.windows).sum() / max(scope.whole_ns, 1)
    which = f", which works for {percent(little)} of the time" if little < _LITTLE else ""
    return replace(cost, details=(f"{cost.details[0]}; {percent(ratio)} of it on {label}{which}", *cost.details[1:]))


def is_launch_bound(gaps: pl.DataFrame, n: int) -> bool:
    """Whether these gaps, in `n` steps, are those of a host that launches too slowly: many of them, most time in short.

    `gaps` have `dur_ns`, and causes of LAUNCHING.
    """
    short = sum_of(gaps["dur_ns"].filter(gaps["dur_ns"] < _SHORT_NS))
    return gaps.height >= _MANY * n and 2 * short > sum_of(gaps["dur_ns"])


def _ends(work: pl.DataFrame, trace: Trace, scope: Scope, ns: int, head_ns: int, *, is_small: bool) -> list[Cost]:
    """Idle time before the first and after the last device work, without the time of gaps at the head of devices."""
    extents = [
        (int(mine["ts_ns"].to_numpy().min()), int(mine["end_ns"].to_numpy().max())) for _, mine in by_device(work)
    ]
    length = scope.high - scope.low  # a device may work before or after the steps alone
    heads = [min(max(begin - scope.low, 0), length) for begin, _ in extents]
    tails = [min(max(scope.high - end, 0), length - head) for head, (_, end) in zip(heads, extents, strict=True)]
    first, last = round(fmean(heads) - head_ns / scope.n_devices), round(fmean(tails))
    if ns <= 0 or not first + last:
        return []
    if is_small:
        return [Cost(ENDS, _SMALL, ns)]
    whole = "recorded steps" if len(scope.numbers) > 1 else "step" if scope.numbers else "recording"
    parts = [
        f"the {word} {duration(part)}" for word, part in (("first", first), ("last", last)) if part > _SMALL_END * ns
    ]
    low, high = (scope.low, scope.low + first) if first >= last else (scope.high - last, scope.high)
    doing = during(trace.spans, low, high)
    command = "show steps" if scope.numbers else "show timeline"
    details = (f"The host spends most of that in {doing}",) if doing else ()
    calls = None if doing else most_called(trace.spans, low, high)
    if calls is not None and calls[2] >= _NOTABLE * (high - low):
        name, n, taken = calls
        details = (f"{duration(taken)} of that is in {counted(n, 'call')} of {shorten(name)}",)
    return [Cost(ENDS, f"No device work in {' and '.join(parts)} of the {whole}", ns, details, command)]


def _often(gaps: pl.DataFrame, scope: Scope) -> str:
    lengths = gaps["ns"]
    if len(lengths) == 1:
        return f"1 gap of {duration(lengths[0])}"
    return f"{scope.amount(len(lengths), 'gap', ns=sum_of(lengths))}, longest {duration(lengths.to_numpy().max())}"


def _place(gaps: pl.DataFrame, trace: Trace) -> str:
    """The part of the program in which most of the gaps arose; empty if no part stands out.

    It is the part around the call that filled a gap, or where there is none around the launch that ended it.
    """
    ids = gaps.select(pl.coalesce("call_id", "launch_id")).to_series()
    for categories, lead in ((("python",), "at"), (("user_range",), "in"), (("module",), "in")):
        place = most_of(trace.spans, ids, gaps["dur_ns"], categories, gaps["ts_ns"])
        if place is not None and place[1] >= _NAMED:
            return f"{percent(place[1])} of it {lead} {place[0]}"
    return ""


def _launching(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    """Many short gaps: the host launches less fast than the device works."""
    by_cause = gaps.group_by("cause").agg(pl.col("ns").sum()).sort("ns", "cause", descending=[True, False])
    whole = sum_of(gaps["ns"])
    doing = f"; the host is in {shares([(_DOING[str(cause)], ns / whole) for cause, ns in by_cause.iter_rows()])}"
    place = _place(gaps, trace)
    details = (_often(gaps, scope) + doing + (f"; {place}" if place else ""), f"→ {remedy('launching', scope.about)}")
    title = "Launch-bound: the device has done its work before the host launches more"
    return Cost("idle launching", title, whole, details, "show idle")


def _by_host(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    """Gaps of one cause on the host: what filled them, and where in the program."""
    cause = str(gaps["cause"][0])
    title, topic = _HOST[cause]
    whole = sum_of(gaps["ns"])
    first = [_often(gaps, scope)]
    call = _call(gaps, trace, scope)
    if call:
        first.append(call)
        title = _IN_A_RANGE if cause == "unrecorded" else title
    place = "" if cause in ("python", "unrecorded") and call else _place(gaps, trace)
    if place:
        first.append(place)
    details = ["; ".join(first), _longest(gaps, trace, scope)]
    advice = remedy(topic, scope.about) if topic and not (cause == "unrecorded" and call) else ""
    if advice:
        details.append(f"→ {advice}")
    return Cost(f"idle {cause}", title, whole, tuple(details), _gaps_of(cause))


def _gaps_of(cause: str) -> str:
    return f"show idle --by gap --where \"cause = '{cause}'\" --sort -dur_ns"


def _call(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> str:
    """'331 ms of it in hipLaunchKernel in aten::mm': the call that filled most, if it is a good part of these gaps.

    The time is that of one step and device, as the cost is.
    """
    names = of_spans(trace.spans, gaps["call_id"], "name").cast(pl.String)
    ops = of_spans(trace.spans, of_spans(trace.spans, gaps["call_id"], "op_id"), "name").cast(pl.String)
    named = gaps[["call_id", "call_ns"]].with_columns(name=names, op=ops).drop_nulls("name")
    if named.is_empty():
        return ""
    # Ranges of a program often have a number in their name, that of a batch or a layer.
    kind = pl.col("name").str.replace_all(r"\d+", "#") if gaps["cause"][0] == "unrecorded" else pl.col("name")
    longest = pl.col("name").sort_by("call_ns").last()
    sums = named.group_by(kind.alias("kind"), "op").agg(
        longest, pl.col("call_ns").sum(), n=pl.col("call_id").n_unique()
    )
    name, op, ns, n = sums.sort("call_ns", "name", descending=[True, False]).select("name", "op", "call_ns", "n").row(0)
    if ns < _NAMED * sum_of(gaps["ns"]):
        return ""
    part = f"{duration(ns / scope.n / scope.n_devices)} of it"
    if gaps["cause"][0] == "unrecorded":
        return f"{part} in {'the range' if n == 1 else f'{count(n)} ranges such as'} {name}"
    if ".py" in name:  # a function has no arguments to leave out
        return f"{part} at {name}"
    call = shorten(name) + (f" in {shorten(op)}" if op and op != name else "")
    return f"{part} in {'one ' if n == 1 else ''}{call}" + ("" if n == 1 else f", {counted(n, 'call')}")


def _longest(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> str:
    """The longest gap: when it was, and the operator or kernel that ended it."""
    gap = gaps.sort("ns", "ts_ns", descending=[True, False]).row(0, named=True)
    ids = pl.Series([gap["op_id"], gap["after_id"]], dtype=pl.UInt32)
    op, kernel = of_spans(trace.spans, ids, "name")
    when = f" in step {gap['step']}" if gap["step"] is not None and len(scope.numbers) > 1 else ""
    return f"The longest is{when} at {duration(gap['ts_ns'])}, before {op or shorten(kernel)}"


def _sync(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    spans = trace.spans
    blamed = gaps.select("ns", span_id="call_id", name=of_spans(spans, gaps["call_id"], "name"))
    blamed = blamed.with_columns(op=of_spans(spans, of_spans(spans, gaps["call_id"], "op_id"), "name"))
    top = (
        blamed.group_by("name", "op")
        .agg(pl.col("ns").sum())
        .sort("ns", "name", "op", descending=[True, False, False])
        .row(0)
    )
    call, op, ns = top
    mine = blamed.filter((pl.col("name") == call) & pl.col("op").eq_missing(pl.lit(op, blamed.schema["op"])))
    ratio = ns / sum_of(gaps["ns"])
    means = _WAITS.get(str(op), "")
    detail = f"{percent(ratio)} of it after {call}" + (f" in {op}" if op else "") + (f": {means}" if means else "")
    place = most_of(spans, mine["span_id"], mine["ns"], ("python",)) or most_of(
        spans, mine["span_id"], mine["ns"], ("user_range",)
    )
    if place is not None:
        detail += f", at {place[0]}" + (f" ({percent(place[1])})" if place[1] < 0.95 else "")
    advice = f"→ {remedy('sync', scope.about)}"
    title = "The device runs dry because the host waits for it before launching more"
    return Cost("idle sync", title, sum_of(gaps["ns"]), (f"{_often(gaps, scope)}; {detail}", advice), "show idle")


def _loading(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    title = "The device waits for the next batch from the data loader"
    details = (_often(gaps, scope), loader_advice(trace, scope.about))
    return Cost("idle data_loading", title, sum_of(gaps["ns"]), details, "show steps")


def loader_advice(trace: Trace, about: Recording) -> str:
    """What to change in the data loader, whose name says how it works."""
    names = trace.spans["name"].filter(trace.spans["category"] == "dataloader").unique().cast(pl.String).to_list()
    topic = "loader"
    if any("SingleProcess" in name for name in names):
        topic = "one_process_loader"
    elif any("MultiProcessing" in name for name in names):
        topic = "workers_loader"
    return f"→ {remedy(topic, about)}"


def _short(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:  # noqa: ARG001  one signature
    title = "Short gaps between kernels that were queued in time"
    details = [_often(gaps, scope)]
    if gaps.height / scope.n > 100:
        details.append(f"→ {remedy('fewer_kernels', scope.about)}")
    return Cost("idle kernel_wait", title, sum_of(gaps["ns"]), tuple(details), "show idle")


def _other(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    title = "Work was queued in time but starts late: the cause is not recorded"
    details = (_often(gaps, scope), _longest(gaps, trace, scope))
    return Cost("idle other", title, sum_of(gaps["ns"]), details, _gaps_of("other"))


def _unlinked(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:  # noqa: ARG001  one signature
    title = "Idle before work whose launch is not in the trace: the cause is unknown"
    return Cost("idle unlinked", title, sum_of(gaps["ns"]), (_often(gaps, scope),), _gaps_of("unlinked"))
