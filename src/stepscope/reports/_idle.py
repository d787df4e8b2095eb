"""The causes of a device's idle time, and what to do about each."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.host_spans import open_time
from stepscope.analyses.common.occupancy import by_device
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.steps.idle import caused_gaps
from stepscope.core.intervals import covered
from stepscope.core.names import is_sync_call, map_names, shorten
from stepscope.core.units import duration, percent
from stepscope.reports._phrases import counted, sum_of
from stepscope.reports._summary import Cost
from stepscope.reports.enclosing_spans import during, most_of

if TYPE_CHECKING:
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


def idle_costs(work: pl.DataFrame, trace: Trace, scope: Scope, idle_ns: int) -> list[Cost]:
    """A cost for each cause of gaps in device work, and one for the idle time at the ends of the scope."""
    if idle_ns <= 0:
        return []
    work = work.select("rank", "device_id", "span_id", "ts_ns", "end_ns", "launch_id", "op_id", "step")
    gaps = caused_gaps(work, trace.spans, trace.tracks, ("rank", "device_id"))
    starts = gaps["ts_ns"].to_numpy()
    inside = covered(scope.windows, starts, starts + gaps["dur_ns"].to_numpy())
    gaps = gaps.with_columns(ns=pl.Series(inside)).filter(pl.col("ns") > 0)
    cost_of_cause = {
        "host_late": _host_late, "sync": _sync, "data_loading": _loading, "kernel_wait": _short, "other": _other,
        "unlinked": _unlinked,
    }  # fmt: skip
    costs = [
        cost_of_cause[str(cause)](mine, trace, scope)
        for (cause,), mine in gaps.partition_by("cause", as_dict=True).items()
    ]
    # A gap of one device is a part of the mean of all.
    costs = [replace(cost, ns=(cost.ns or 0) / scope.n_devices) for cost in costs]
    return [*costs, *_ends(work, trace, scope, idle_ns - round(sum_of(gaps["ns"]) / scope.n_devices))]


def _ends(work: pl.DataFrame, trace: Trace, scope: Scope, ns: int) -> list[Cost]:
    """Idle time before the first and after the last device work."""
    extents = [
        (int(mine["ts_ns"].to_numpy().min()), int(mine["end_ns"].to_numpy().max())) for _, mine in by_device(work)
    ]
    first = round(fmean(max(begin - scope.low, 0) for begin, _ in extents))
    last = round(fmean(max(scope.high - end, 0) for _, end in extents))
    if ns <= 0 or not first + last:
        return []
    whole = "recorded steps" if len(scope.numbers) > 1 else "step" if scope.numbers else "recording"
    parts = [
        f"the {word} {duration(length)}" for word, length in (("first", first), ("last", last)) if length > 0.1 * ns
    ]
    low, high = (scope.low, scope.low + first) if first >= last else (scope.high - last, scope.high)
    doing = during(trace.spans, low, high)
    details = (f"The host spends most of that in {doing}",) if doing else ()
    return [Cost("idle ends", f"No device work in {' and '.join(parts)} of the {whole}", ns, details, "show steps")]


def _often(gaps: pl.DataFrame, scope: Scope) -> str:
    amount = counted(gaps.height / scope.n / scope.n_devices, "gap") + scope.each
    lengths = gaps["ns"].to_numpy()
    return f"{amount}, mean {duration(float(lengths.mean()))}, longest {duration(float(lengths.max()))}"


def _place(gaps: pl.DataFrame, trace: Trace) -> str:
    """The part of the program that launched most of the work after the gaps; empty if no part stands out."""
    for categories, lead in ((("python",), "at"), (("user_range",), "in"), (("module",), "in")):
        place = most_of(trace.spans, gaps["launch_id"], gaps["ns"], categories)
        if place is not None and place[1] >= 0.3:
            return f"{percent(place[1])} of it {lead} {place[0]}"
    return ""


def _host_late(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    low = gaps["ts_ns"].to_numpy()
    high = low + gaps.select(pl.min_horizontal("late_ns", "dur_ns")).to_series().to_numpy()
    active = covered(open_time(trace.spans, trace.spans["category"] == "operator"), low, high)
    outside = 1 - active.sum() / max((high - low).sum(), 1)
    details = [_often(gaps, scope)]
    place = _place(gaps, trace)
    if place:
        details[0] += f"; {place}"
    many = gaps.height / scope.n / scope.n_devices >= _MANY
    if outside > 0.5:
        details.append(f"In {percent(outside)} of that time no operator was running on the host: Python, or waiting")
    if many and _is_launching(gaps):
        details.append(
            "→ fewer, larger launches: torch.compile, CUDA or HIP graphs, fused or foreach operators, a larger batch"
        )
    else:
        details.append(_longest(gaps, trace, scope))
    title = "The device waits for the host to launch work"
    return Cost("idle host_late", title, sum_of(gaps["ns"]), tuple(details), "show idle")


def _longest(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> str:
    """The longest gap: the operator or kernel that ended it, and what the host did meanwhile."""
    gap = gaps.sort("ns", descending=True).row(0, named=True)
    ids = pl.Series([gap["op_id"], gap["after_id"]], dtype=pl.UInt32)
    op, kernel = of_spans(trace.spans, ids, "name")
    after = op or shorten(kernel)
    when = f" in step {gap['step']}" if gap["step"] is not None and len(scope.numbers) > 1 else ""
    doing = during(trace.spans, gap["ts_ns"], gap["ts_ns"] + min(gap["late_ns"], gap["dur_ns"]))
    host = f": the host was in {doing}" if doing and doing != after else ""
    return f"→ look at the longest gap{when}, before {after}{host}"


def _is_launching(gaps: pl.DataFrame) -> bool:
    """Whether most idle time is in gaps so short that only launches fit into them."""
    short = sum_of(gaps.filter(pl.col("dur_ns") < 100_000)["ns"])
    return short > 0.5 * sum_of(gaps["ns"])


def _sync(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    spans = trace.spans
    calls = spans.filter(spans["category"].is_in(["runtime", "driver"]))
    calls = calls.filter(map_names(calls["name"], is_sync_call, pl.Boolean()))
    calls = calls.select("span_id", "name", "op_id", end=pl.col("ts_ns") + pl.col("dur_ns")).sort("end")
    launched = (gaps["ts_ns"] + gaps["late_ns"]).to_numpy()
    at = np.searchsorted(calls["end"].to_numpy(), launched, side="right") - 1
    blamed = calls[np.maximum(at, 0)].with_columns(ns=gaps["ns"])
    blamed = blamed.with_columns(op=of_spans(spans, blamed["op_id"], "name"))
    top = blamed.group_by("name", "op").agg(pl.col("ns").sum()).sort("ns", descending=True).row(0)
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
    advice = (
        "→ keep values on the device and read them rarely; copy with non_blocking=True; drop explicit synchronize()"
    )
    title = "The device runs dry because the host waits for it before launching more"
    return Cost("idle sync", title, sum_of(gaps["ns"]), (f"{_often(gaps, scope)}; {detail}", advice), "show idle")


def _loading(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    title = "The device waits for the next batch from the data loader"
    details = (_often(gaps, scope), loader_advice(trace))
    return Cost("idle data_loading", title, sum_of(gaps["ns"]), details, "show steps")


def loader_advice(trace: Trace) -> str:
    """What to change in the data loader, whose name says how it works."""
    names = trace.spans["name"].filter(trace.spans["category"] == "dataloader").unique().cast(pl.String).to_list()
    if any("SingleProcess" in name for name in names):
        return "→ batches are made in the training process itself: DataLoader(num_workers=…, pin_memory=True)"
    if any("MultiProcessing" in name for name in names):
        return "→ its workers are not ahead: more num_workers, prefetch_factor, persistent_workers, cheaper transforms"
    return "→ prepare batches ahead of time, in other processes or threads"


def _short(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:  # noqa: ARG001  all causes have one signature
    title = "Short gaps between kernels that were queued in time"
    details = [_often(gaps, scope)]
    if gaps.height / scope.n / scope.n_devices > 100:
        details.append("→ fewer kernels: torch.compile or fused operators; captured graphs shorten these gaps too")
    return Cost("idle kernel_wait", title, sum_of(gaps["ns"]), tuple(details), "show idle")


def _other(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:
    title = "Work was queued in time but starts late, as behind another stream, an event or a slow launch"
    details = (_often(gaps, scope), _longest(gaps, trace, scope))
    return Cost("idle other", title, sum_of(gaps["ns"]), details, "show idle --by gap")


def _unlinked(gaps: pl.DataFrame, trace: Trace, scope: Scope) -> Cost:  # noqa: ARG001  all causes have one signature
    title = "Idle before work whose launch is not in the trace: the cause is unknown"
    return Cost("idle unlinked", title, sum_of(gaps["ns"]), (_often(gaps, scope),), "show idle --by gap")
