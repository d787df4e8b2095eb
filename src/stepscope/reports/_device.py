"""Where the devices' time went: the parts of the steps, and the largest costs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.collective_calls import named_calls
from stepscope.analyses.common.device_work import (
    COMMUNICATION,
    COMPUTATION,
    MEMCPY,
    by_device,
    device_work,
    hidden_ns,
    label_devices,
    occupancy,
    occupied,
)
from stepscope.analyses.common.span_lookup import in_rows, of_ids, of_spans
from stepscope.core import step_parts
from stepscope.core.arrays import distinct_values, numbered
from stepscope.core.collectives import UNNAMED, label_of
from stepscope.core.intervals import covered
from stepscope.core.names import is_tensor_core, kernel_class, map_names, shorten
from stepscope.core.patterns import regex
from stepscope.core.remedies import remedy
from stepscope.core.report import Note
from stepscope.core.table import filtered
from stepscope.core.trace import extent_ns
from stepscope.core.units import duration, percent, rate, shares, size, sum_of
from stepscope.reports._idle import idle_costs
from stepscope.reports._summary import TALK, Cost
from stepscope.reports.at_a_glance import host_while_idle
from stepscope.store.column_files import settle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.core.remedies import Recording
    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

_SHARED = ", at the same time as others: they share the cost"
_UNSHARED = 0.9  # a smaller part of the kernels' time is shared with kernels of other streams
_MOST_OF_RECORDING = 0.95  # where device work reaches over more, there is no head or tail to speak of
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
    "span_id", "track_id", "rank", "device_id", "ts_ns", "end_ns", "dur_ns", "name", "category", "sort", "launch_id",
    "op_id", "step",
)  # fmt: skip
#: Matrix products and convolutions that NVIDIA's libraries do in float32 without matrix units.
_PLAIN_FP32 = regex(r"sgemm|scudnn|gemmSN_|(?:^|_)ffma_|simt_s", re.IGNORECASE)
_SINCE_AMPERE = r"^(?:void )?(?:sm(?:[89]|1[0-9])\d|ampere)_"
_DIRECTIONS = {
    "HtoD": "from host to device",
    "DtoH": "from device to host",
    "DtoD": "within the device",
    "PtoP": "between devices",
    "HtoH": "within the host",
}


class DeviceTime(msgspec.Struct, frozen=True, eq=False):
    """What the devices did in the scope: `parts` sum to its length, `while_idle` is the host in the idle part."""

    work: pl.DataFrame
    parts: Mapping[str, int]
    by_window: Mapping[str, NDArray[np.int64]]
    busy: Mapping[str, float]
    while_idle: Mapping[str, int]
    costs: tuple[Cost, ...]
    notes: tuple[Note, ...]


def work_of(trace: Trace) -> pl.DataFrame:
    """What the devices did. Raises MissingTable if that is nothing."""
    return device_work(trace.spans, trace.tracks, needed_by="report").select(_COLUMNS)


def device_time(trace: Trace, scope: Scope, work: pl.DataFrame) -> DeviceTime:
    """Time of the trace's devices in the scope, their mean if there are several. `work` is that of `work_of`."""
    means, n_devices = occupancy(work, *scope.windows)
    scope = replace(scope, n_devices=n_devices)
    by_window = {part: means[column] for part, column in step_parts.DEVICE_COLUMNS.items()}
    parts = {name: int(lengths.sum()) for name, lengths in by_window.items()}
    inside = filtered(work, (work["ts_ns"] < scope.high) & (work["end_ns"] > scope.low))
    costs = [
        *_computation(inside, trace, scope, parts[step_parts.COMPUTATION]),
        *_communication(inside, trace, scope, parts[step_parts.COMMUNICATION], int(means["communication_ns"].sum())),
        *_copies(inside, trace, scope, parts[step_parts.MEMCPY]),
        *idle_costs(work, trace, scope, parts[step_parts.IDLE]),
    ]
    is_kernel = inside["category"] == "kernel"
    computes = is_kernel & (inside["sort"] != COMMUNICATION)  # collectives last long, as ranks wait in them
    notes, n_kernels = [], int(computes.sum())
    if is_kernel.any():
        noun = "kernel" if n_kernels == is_kernel.sum() else "computing kernel"
        text = scope.amount(n_kernels, noun, ns=sum_of(inside["dur_ns"].filter(computes)))
        notes.append(Note(text, "kernels", "show kernels"))
    notes += _between(work, scope)
    busy = {key: occupied(mine).busy for key, mine in by_device(work)}
    settle(trace.spans.height)
    while_idle = host_while_idle(trace.spans, list(busy.values()), scope) if parts[step_parts.IDLE] else {}
    whole = max(scope.whole_ns, 1)
    ratios = {key: float(covered(iv, *scope.windows).sum()) / whole for key, iv in busy.items()}
    labels = _labels(list(busy), trace.devices)
    return DeviceTime(
        work, parts, by_window, dict(zip(labels, ratios.values(), strict=True)), while_idle, tuple(costs), tuple(notes)
    )


def _between(work: pl.DataFrame, scope: Scope) -> list[Note]:
    """Of a recording without steps: how busy devices are from their first to their last work, if that is much less."""
    low, high = (max(extent_ns(work)[0], scope.low), min(extent_ns(work)[1], scope.high))
    if scope.numbers or high <= low or high - low > _MOST_OF_RECORDING * scope.whole_ns:
        return []
    means, _ = occupancy(work, np.array([low]), np.array([high]))
    share = percent(int(means["busy_ns"][0]) / (high - low))
    text = f"busy {share} of the {duration(high - low)} from first to last device work"
    return [Note(text, "idle time", "show timeline")]


def _labels(keys: Sequence[tuple[int | None, int | None]], devices: pl.DataFrame) -> list[str]:
    """A name for each (rank, device_id), with the rank if the trace has several."""
    used = pl.DataFrame(keys, schema={"rank": pl.Int32, "device_id": pl.UInt32}, orient="row")
    several = used["rank"].n_unique() > 1
    return [
        (f"rank {rank} " if several and rank is not None else "")
        + (label or ("device" if device_id is None else f"device {device_id}"))
        for rank, device_id, label in label_devices(used, devices).select("rank", "device_id", "device").iter_rows()
    ]


def _computation(work: pl.DataFrame, trace: Trace, scope: Scope, computation_ns: int) -> list[Cost]:
    """A cost per class of kernels. Concurrent kernels share their time, so that classes add up to all computation."""
    work = filtered(work[["name", "dur_ns", "op_id"]], work["sort"] == COMPUTATION)
    summed = int(work["dur_ns"].sum())
    if not summed:
        return []
    first, number = numbered(work["name"].to_physical().to_numpy())
    named = pl.DataFrame({"name": in_rows(work["name"], first), **_sums(number, work["dur_ns"], first.size)})
    named = named.hstack([map_names(named["name"], _group_of, pl.String()).alias("group")])
    names = named.sort("dur_ns", "name", descending=[True, False])
    groups = names.group_by("group", maintain_order=True).agg(pl.col("n").sum(), pl.col("dur_ns").sum())
    tops = _operators_of(work, named["group"], number, trace.spans)
    costs = []
    timed = filtered(groups, groups["dur_ns"] > 0)  # damaged times may leave kernels without any
    for group, n, ns in timed.sort("dur_ns", "group", descending=[True, False]).head(4).iter_rows():
        cost_ns = computation_ns * ns / summed
        mine = filtered(names, names["group"] == group)
        operators = shares([(op, op_ns / ns) for op, op_ns in tops.get(group, ())[:3]], at_least=0.1)
        largest, _, largest_ns, _ = mine.row(0)
        detail = scope.amount(n, "kernel", ns=ns) + (_SHARED if cost_ns * scope.n_devices < _UNSHARED * ns else "")
        if mine.height > 1:
            part = percent(largest_ns / ns)
            detail += (
                f"; nearly all {shorten(largest)}"
                if largest_ns > 0.99 * ns
                else f"; largest {shorten(largest)}, {part}"
            )
        title = f"{_TITLES[group]}: {operators}" if operators else _TITLES[group]
        command = "show operators" if operators else "show kernels"
        advice = _advice(group, mine, n, ns, trace.devices, scope.about)
        costs.append(Cost(f"compute {group}", title, cost_ns, (detail, *advice), command))
    return costs


def _sums(number: NDArray[np.integer], ns: pl.Series, n: int) -> dict[str, NDArray[np.int64]]:
    """How many rows each of n numbers has, and their time."""
    # Sums of whole nanoseconds are exact in a double up to 104 days.
    return {"n": np.bincount(number, minlength=n), "dur_ns": np.bincount(number, ns, n).astype(np.int64)}


def _operators_of(
    work: pl.DataFrame, groups: pl.Series, number: NDArray[np.uint32], spans: pl.DataFrame
) -> dict[str, list[tuple[str, int]]]:
    """For each group the operators of its kernels with their device time in ns, the costliest first.

    `groups` are those of kernels' names, of which each row of `work` has the `number`.
    """
    ops = of_spans(spans, work["op_id"], "name")
    known = ops.is_not_null()
    rows = np.flatnonzero(known.to_numpy())
    first, op = numbered(ops.filter(known).to_physical().to_numpy())
    keys = number[rows].astype(np.int64) * first.size + op
    pairs = distinct_values(keys)
    ns = _sums(np.searchsorted(pairs, keys), work["dur_ns"].filter(known), pairs.size)["dur_ns"]
    name, op = np.divmod(pairs, max(first.size, 1))
    sums: dict[tuple[str, str], int] = {}
    of_pairs = zip(groups[name].to_list(), in_rows(ops, rows[first[op]]).to_list(), ns.tolist(), strict=True)
    for group, operator, own_ns in of_pairs:
        sums[group, operator] = sums.get((group, operator), 0) + own_ns
    tops: dict[str, list[tuple[str, int]]] = {}
    for (group, operator), own_ns in sorted(sums.items(), key=lambda item: (-item[1], item[0][1])):
        tops.setdefault(group, []).append((operator, own_ns))
    return tops


def _group_of(name: str) -> str:
    return group_of(kernel_class(name))


def group_of(kernel_class: str) -> str:
    """The group of costs that kernels of a class belong to."""
    group = _GROUPS.get(kernel_class, kernel_class)
    return group if group in _TITLES else "other"


def _advice(
    group: str, names: pl.DataFrame, n: int, ns: int, devices: pl.DataFrame, about: Recording
) -> tuple[str, ...]:
    """Advice on making this computation cheaper, if names and numbers suggest any."""
    if group in ("gemm", "convolution"):
        plain = map_names(names["name"], lambda k: bool(_PLAIN_FP32.search(k)) and not is_tensor_core(k), pl.Boolean())
        ratio = sum_of(names["dur_ns"].filter(plain)) / ns
        if ratio > 0.3:
            capability = devices["compute_capability"].drop_nulls().str.extract(r"^(\d+)\.").cast(pl.Int32).min()
            topic = "float32" if isinstance(capability, int) and capability >= 8 else "float32_old"
            if capability is None:  # kernels for Ampere and later run on nothing older
                newer = names["name"].cast(pl.String).str.contains(_SINCE_AMPERE).any()
                topic = "float32" if newer else "float32_unknown"
            instead = remedy(topic, about)
            return (f"→ {percent(ratio)} of it runs in float32 without tensor cores: {instead}",)
    if group == "pointwise" and n > 50:
        fused = names["dur_ns"].filter(names["name"].cast(pl.String).str.starts_with("triton_")).sum() / ns
        if fused < 0.3:
            return (f"→ {remedy('fuse', about)}",)
    return ()


def _communication(work: pl.DataFrame, trace: Trace, scope: Scope, exposed_ns: int, whole: int) -> list[Cost]:
    """A cost for communication while nothing computes; `whole` is all communication, hidden or not, in ns."""
    calls = filtered(work, work["sort"] == COMMUNICATION)
    if calls.is_empty() or exposed_ns <= 0:
        return []
    hidden = hidden_ns(work, calls, "computation")
    callers = calls.select("span_id", caller=pl.coalesce("launch_id", "op_id"))
    what = map_names(named_calls(callers, trace.spans, trace.collectives)["collective"], label_of, pl.String())
    calls = calls.with_columns(what=what, exposed=pl.col("dur_ns") - hidden)
    by_kind = calls.group_by("what").agg(pl.len().alias("n"), pl.col("dur_ns", "exposed").sum())
    by_kind = by_kind.sort("exposed", "what", descending=[True, False])
    summed = by_kind["exposed"].sum()
    by_share = [(what, exposed / summed) for what, _, _, exposed in by_kind.iter_rows()] if summed else []
    lead = shares([part for part in by_share if part[0] != UNNAMED], at_least=0.1)
    detail = scope.amount(calls.height, "call", ns=sum_of(calls["dur_ns"]))
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
    return [Cost(TALK, title, exposed_ns, (detail, advice), "show overlap --by collective")]


def _copies(work: pl.DataFrame, trace: Trace, scope: Scope, exposed_ns: int) -> list[Cost]:
    copies = filtered(work[["span_id", "rank", "device_id", "ts_ns", "end_ns", "dur_ns"]], work["sort"] == MEMCPY)
    if copies.is_empty() or exposed_ns <= 0:
        return []
    hidden = hidden_ns(work, copies, "kernels")
    copies = copies[["span_id", "dur_ns"]].hstack([(copies["dur_ns"] - hidden).alias("exposed")])
    side = trace.transfers[["span_id", "bytes", "kind", "src", "dst"]]
    copies = copies.hstack(of_ids(side, copies["span_id"])).cast(dict.fromkeys(("kind", "src", "dst"), pl.String))
    pageable = (pl.col("src") == "Pageable") | (pl.col("dst") == "Pageable")
    kinds = copies.group_by("kind").agg(
        pl.col("exposed").sum(),
        pageable=pl.col("exposed").filter(pageable).sum(),
    )
    kind, exposed, from_pageable = kinds.sort("exposed", "kind", descending=[True, False]).row(0)
    ns, n_bytes = sum_of(copies["dur_ns"]), sum_of(copies["bytes"])
    detail = scope.amount(copies.height, "copy", "copies", ns=ns)
    if n_bytes and ns:
        detail += f", {size(n_bytes / scope.n / scope.n_devices)}{scope.each} at {rate(n_bytes / ns * 1e9)}"
    details = [detail]
    if exposed and from_pageable / exposed > 0.5 and kind == "HtoD":
        details.append(f"→ {remedy('to_device', scope.about)}")
    elif exposed and from_pageable / exposed > 0.5:
        details.append(
            "→ they go to pageable memory, and the host waits for each: copy less often, or into pinned memory"
        )
    mostly = "mostly " if kinds.height > 1 else ""
    title = f"Copies while no kernel runs, {mostly}{_DIRECTIONS.get(kind, 'of unknown direction')}"
    return [Cost("memcpy", title, exposed_ns, tuple(details), "show transfers --by memory")]
