"""Where the devices' time went: the parts of the steps, and the largest costs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common import step_parts
from stepscope.analyses.common.collective_calls import named_calls
from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    COMPUTATION,
    MEMCPY,
    device_work,
    label_devices,
    occupied,
)
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.core.collectives import UNNAMED, label_of
from stepscope.core.intervals import covered, union
from stepscope.core.names import is_tensor_core, kernel_class, map_names, shorten
from stepscope.core.report import Note
from stepscope.core.units import percent, rate, size
from stepscope.reports._idle import idle_costs
from stepscope.reports._phrases import per_step, shares, sum_of
from stepscope.reports._summary import TALK, Cost
from stepscope.reports.at_a_glance import host_while_idle

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.analyses.common.device_work import Occupied
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

#: Kernel classes that are shown as one group, and the groups' titles.
_GROUPS = {
    **dict.fromkeys(("elementwise", "copy", "reduction", "random", "rope"), "pointwise"),
    **dict.fromkeys(("norm", "softmax"), "norm"),
}
_TITLES = {
    "gemm": "Matrix products",
    "convolution": "Convolutions",
    "attention": "Attention kernels",
    "pointwise": "Elementwise, reduction and copy kernels",
    "norm": "Normalisation and softmax kernels",
    "embedding": "Embedding kernels",
    "sort": "Sorting and selection",
    "optimizer": "Optimizer kernels",
    "quantization": "Quantization kernels",
    "moe": "Expert routing kernels",
    "memory": "Fills of memory",
    "other": "Other kernels",
}
_COLUMNS = (
    "span_id", "rank", "device_id", "ts_ns", "end_ns", "dur_ns", "name", "category", "sort", "launch_id", "op_id",
    "step",
)  # fmt: skip
#: Matrix products and convolutions that NVIDIA's libraries do in float32 without matrix units.
_PLAIN_FP32 = re.compile(r"sgemm|scudnn|gemmSN_|(?:^|_)ffma_|simt_s", re.IGNORECASE)
_DIRECTIONS = {
    "HtoD": "from host to device",
    "DtoH": "from device to host",
    "DtoD": "within the device",
    "PtoP": "between devices",
    "HtoH": "within the host",
}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTime:
    """What the devices did in the scope. `parts` add up to the length of its windows.

    `while_idle` is what the host did in the idle part.
    """

    work: pl.DataFrame
    parts: Mapping[str, int]
    by_window: Mapping[str, NDArray[np.int64]]
    busy: Mapping[str, float]
    while_idle: Mapping[str, int]
    costs: tuple[Cost, ...]
    notes: tuple[Note, ...]


def device_time(trace: Trace, scope: Scope) -> DeviceTime:
    """Time of all devices of the trace in the scope. Raises MissingTable without device work."""
    work = device_work(trace.spans, trace.tracks, needed_by="report").select(_COLUMNS)
    times = occupied(work)
    computation, kernels, busy = (covered(iv, *scope.windows) for iv in (times.computation, times.kernels, times.busy))
    by_window = {
        step_parts.COMPUTATION: computation,
        step_parts.COMMUNICATION: kernels - computation,
        step_parts.MEMCPY: busy - kernels,
        step_parts.IDLE: scope.highs - scope.lows - busy,
    }
    parts = {name: int(lengths.sum()) for name, lengths in by_window.items()}
    inside = work.filter((pl.col("ts_ns") < scope.high) & (pl.col("end_ns") > scope.low))
    costs = [
        *_computation(inside, trace, scope, parts[step_parts.COMPUTATION]),
        *_communication(inside, times, trace, scope, parts[step_parts.COMMUNICATION]),
        *_copies(inside, times, trace, scope, parts[step_parts.MEMCPY]),
        *idle_costs(work, trace, scope, parts[step_parts.IDLE]),
    ]
    n_kernels = int((inside["category"] == "kernel").sum())
    notes = []
    if n_kernels:
        summed = sum_of(inside["dur_ns"].filter(inside["category"] == "kernel"))
        text = per_step(n_kernels, summed, scope.n, "kernel", stepped=bool(scope.numbers))
        notes.append(Note(text, "kernels", "show kernels"))
    busy_by_device = _busy(work, times, trace.devices, scope)
    while_idle = host_while_idle(trace.spans, times.busy, scope) if parts[step_parts.IDLE] else {}
    return DeviceTime(work, parts, by_window, busy_by_device, while_idle, tuple(costs), tuple(notes))


def _busy(work: pl.DataFrame, times: Occupied, devices: pl.DataFrame, scope: Scope) -> dict[str, float]:
    used = label_devices(work.select("device_id").unique().sort("device_id"), devices)
    ratios = {}
    for device_id, label in used.select("device_id", "device").iter_rows():
        own = work.filter(pl.col("device_id").eq_missing(pl.lit(device_id, pl.UInt32))) if used.height > 1 else None
        busy = times.busy if own is None else union(own["ts_ns"].to_numpy(), own["end_ns"].to_numpy())
        ratio = float(covered(busy, *scope.windows).sum()) / scope.whole_ns if scope.whole_ns else 0.0
        ratios[label or f"device {device_id}"] = ratio
    return ratios


def _computation(work: pl.DataFrame, trace: Trace, scope: Scope, computation_ns: int) -> list[Cost]:
    """A cost per class of kernels. Concurrent kernels share their time, so that classes add up to all computation."""
    work = work.filter(pl.col("sort") == COMPUTATION).select("name", "dur_ns", "op_id")
    summed = int(work["dur_ns"].sum())
    if not summed:
        return []
    names = work.group_by("name").agg(pl.len().alias("n"), pl.col("dur_ns").sum())
    names = names.with_columns(group=map_names(names["name"], _group_of, pl.String())).sort("dur_ns", descending=True)
    groups = names.group_by("group", maintain_order=True).agg(pl.col("n").sum(), pl.col("dur_ns").sum())
    costs = []
    timed = groups.filter(pl.col("dur_ns") > 0)  # damaged times may leave kernels without any
    for group, n, ns in timed.sort("dur_ns", descending=True).head(4).iter_rows():
        cost_ns = computation_ns * ns / summed
        mine = names.filter(pl.col("group") == group)
        its = work.filter(work["name"].is_in(mine["name"].implode()))
        ops = pl.DataFrame({"op": of_spans(trace.spans, its["op_id"], "name"), "ns": its["dur_ns"]}).drop_nulls()
        tops = ops.group_by("op").agg(pl.col("ns").sum()).sort("ns", descending=True).head(3)
        operators = shares([(str(op), op_ns / ns) for op, op_ns in tops.iter_rows()], at_least=0.1)
        largest, _, largest_ns, _ = mine.row(0)
        detail = per_step(n, ns, scope.n, "kernel", stepped=bool(scope.numbers))
        if mine.height > 1:
            part = percent(largest_ns / ns)
            detail += (
                f"; nearly all {shorten(largest)}"
                if largest_ns > 0.99 * ns
                else f"; largest {shorten(largest)}, {part}"
            )
        title = f"{_TITLES[group]}: {operators}" if operators else _TITLES[group]
        command = "show operators" if operators else "show kernels"
        advice = _advice(group, mine, n, ns, trace.devices)
        costs.append(Cost(f"compute {group}", title, cost_ns, (detail, *advice), command))
    return costs


def _group_of(name: str) -> str:
    group = kernel_class(name)
    group = _GROUPS.get(group, group)
    return group if group in _TITLES else "other"


def _advice(group: str, names: pl.DataFrame, n: int, ns: int, devices: pl.DataFrame) -> tuple[str, ...]:
    """Advice on making this computation cheaper, if names and numbers suggest any."""
    if group in ("gemm", "convolution"):
        plain = names.filter(
            map_names(names["name"], lambda k: bool(_PLAIN_FP32.search(k)) and not is_tensor_core(k), pl.Boolean())
        )
        ratio = sum_of(plain["dur_ns"]) / ns
        if ratio > 0.3:
            capability = devices["compute_capability"].drop_nulls().str.extract(r"^(\d+)\.").cast(pl.Int32).min()
            newer = isinstance(capability, int) and capability >= 8
            instead = "autocast to bfloat16, or allow TF32" if newer else "autocast to float16"
            return (f"→ {percent(ratio)} of it runs in float32 without tensor cores: {instead}",)
    if group == "pointwise" and n > 50:
        fused = names.filter(names["name"].cast(pl.String).str.starts_with("triton_"))["dur_ns"].sum() / ns
        if fused < 0.3:
            return ("→ torch.compile or fused operators would merge many and save trips to memory: show fusion",)
    return ()


def _communication(work: pl.DataFrame, times: Occupied, trace: Trace, scope: Scope, exposed_ns: int) -> list[Cost]:
    calls = work.filter(pl.col("sort") == COMMUNICATION).select(
        "span_id", "ts_ns", "end_ns", "dur_ns", caller=pl.coalesce("launch_id", "op_id")
    )
    if calls.is_empty() or exposed_ns <= 0:
        return []
    hidden = covered(times.computation, calls["ts_ns"].to_numpy(), calls["end_ns"].to_numpy())
    named = named_calls(calls, trace.spans, trace.collectives)["collective"]
    what = map_names(named, label_of, pl.String())
    calls = calls.with_columns(what=what, exposed=pl.col("dur_ns") - pl.Series(hidden))
    by_kind = calls.group_by("what").agg(pl.len().alias("n"), pl.col("dur_ns", "exposed").sum())
    by_kind = by_kind.sort("exposed", descending=True)
    summed = by_kind["exposed"].sum()
    by_share = [(what, exposed / summed) for what, _, _, exposed in by_kind.iter_rows()] if summed else []
    lead = shares([part for part in by_share if part[0] != UNNAMED], at_least=0.1)
    whole = int(covered(times.communication, *scope.windows).sum())
    detail = per_step(calls.height, sum_of(calls["dur_ns"]), scope.n, "call", stepped=bool(scope.numbers))
    if whole:
        hidden_ratio = max(1 - exposed_ns / whole, 0.0)
        detail += (
            f"; {percent(hidden_ratio)} of communication is hidden"
            if hidden_ratio > 0.001
            else "; none of it is hidden"
        )
    advice = (
        "→ start it earlier or overlap it (gradient buckets, prefetching), or send less; check for ranks that come late"
    )
    title = "Exposed communication, while nothing computes" + (f": {lead}" if lead else "")
    return [Cost(TALK, title, exposed_ns, (detail, advice), "show overlap --by name")]


def _copies(work: pl.DataFrame, times: Occupied, trace: Trace, scope: Scope, exposed_ns: int) -> list[Cost]:
    copies = work.filter(pl.col("sort") == MEMCPY).select("span_id", "ts_ns", "end_ns", "dur_ns")
    if copies.is_empty() or exposed_ns <= 0:
        return []
    hidden = covered(times.kernels, copies["ts_ns"].to_numpy(), copies["end_ns"].to_numpy())
    copies = copies.with_columns(exposed=pl.col("dur_ns") - pl.Series(hidden))
    side = trace.transfers.select("span_id", "bytes", "kind", "src", "dst")
    copies = copies.join(side, on="span_id", how="left").with_columns(pl.col("kind", "src", "dst").cast(pl.String))
    pageable = (pl.col("src") == "Pageable") | (pl.col("dst") == "Pageable")
    kinds = copies.group_by("kind").agg(
        pl.len().alias("n"),
        pl.col("exposed", "dur_ns", "bytes").sum(),
        pageable=pl.col("exposed").filter(pageable).sum(),
    )
    kind, n, exposed, ns, n_bytes, from_pageable = kinds.sort("exposed", descending=True).row(0)
    detail = per_step(n, ns, scope.n, "copy", stepped=bool(scope.numbers), plural="copies")
    if n_bytes and ns:
        detail += f", {size(n_bytes / scope.n)}{' a step' if scope.numbers else ''} at {rate(n_bytes / ns * 1e9)}"
    details = [detail]
    if exposed and from_pageable / exposed > 0.5 and kind == "HtoD":
        details.append(
            "→ the source is pageable memory: pin_memory=True and .to(device, non_blocking=True) would hide them"
        )
    elif exposed and from_pageable / exposed > 0.5:
        details.append(
            "→ they go to pageable memory, and the host waits for each: copy less often, or into pinned memory"
        )
    title = f"Copies while no kernel runs, mostly {_DIRECTIONS.get(kind, 'of unknown direction')}"
    return [Cost("memcpy", title, exposed_ns, tuple(details), "show transfers --by memory")]
