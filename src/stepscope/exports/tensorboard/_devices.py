"""How well each device was used: busy time, multiprocessors, occupancy, tensor cores.

The overview shows the figures; the trace view shows utilization and multiprocessor efficiency as counter tracks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.exports.tensorboard import _order
from stepscope.exports.tensorboard._distributed import device_info
from stepscope.exports.tensorboard._events import KERNEL, TRACE
from stepscope.exports.tensorboard._roles import Ranges, amounts, intersected, merged, summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Dialect, Events, Launches
    from stepscope.exports.tensorboard._forest import Costs, Forest
    from stepscope.exports.tensorboard._roles import Steps

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Times = NDArray[Any]
    from collections.abc import Iterator

    Event = dict[str, Any]


_MOST_DEVICES = 64
_ABOUT_BUSY = (
    "{noun} Utilization:\n"
    "{noun} busy time / All steps time. The higher, the better. "
    "{noun} busy time is the time during which there is at least one {noun} kernel running on it. "
    "All steps time is the total time of all profiler steps(or called as iterations).\n"
)
_ABOUT_EFFICIENCY = (
    "Est. SM Efficiency:\n"
    "Estimated Stream Multiprocessor Efficiency. The higher, the better. "
    "This metric of a kernel, SM_Eff_K = min(blocks of this kernel / SM number of this {noun}, 100%). "
    "This overall number is the sum of all kernels' SM_Eff_K weighted by kernel's execution duration, "
    "divided by all steps time.\n"
)
_ABOUT_OCCUPANCY = (
    "Est. Achieved Occupancy:\n"
    "For most cases such as memory bandwidth bounded kernels, the higher the better. "
    "Occupancy is the ratio of active warps on an SM to the maximum number of active warps supported by the SM. "
    "The theoretical occupancy of a kernel is upper limit occupancy of this kernel, limited by multiple factors such "
    "as kernel shape, kernel used resource, and the {noun} compute capability.\n"
    "Est. Achieved Occupancy of a kernel, OCC_K = "
    "min(threads of the kernel / SM number / max threads per SM, theoretical occupancy of the kernel). "
    "This overall number is the weighted average of all kernels' OCC_K using kernel's execution duration as weight. "
    "It shows fine-grained low-level {noun} utilization.\n"
)
_ABOUT_TENSOR_CORES = (
    "Kernel using Tensor Cores:\nTotal {noun} Time for Tensor Core kernels / Total {noun} Time for all kernels.\n"
)
_ABOUT_NO_TENSOR_CORES = "It is always 0.0 On {noun} devices because {noun} does not using Tensor Cores.\n"


class DeviceUse(msgspec.Struct, frozen=True):
    """Use of one device that ran kernels. Ratios are of the window from the first step's start to the last one's end.

    `busy` has the times at which kernels ran. `sm_start`, `sm_end` (µs) and `sm_ratio` are the ranges in which blocks
    per multiprocessor are known for the running kernels: their sum, at most 1. They are None if nothing in the window
    has them. `occupancy_percent` is the recorded one, weighted by duration. `tensor_core_ratio` counts kernels that
    operators queued; it is None if no device has any.
    """

    device: int
    busy: Ranges
    busy_ratio: float
    sm_start: Times
    sm_end: Times
    sm_ratio: Floats
    sm_efficiency_ratio: float | None
    occupancy_percent: float | None
    tensor_core_ratio: float | None


class _Kernels(msgspec.Struct, frozen=True):
    """Kernels of one device by time. Values that are not recorded are NaN."""

    start: Times
    end: Times
    blocks: Floats
    occupancy: Floats


def find_devices(events: Events, launches: Launches, forest: Forest, steps: Steps, uses_tc: Bools) -> list[DeviceUse]:
    """Use of each device by number. `uses_tc` says for each item of `launches.work` whether it uses tensor cores.

    Units: µs, ratios.
    Source: the plugin. It does not know device numbers above 63.
    """
    rows = events.rows(KERNEL)
    device = _device_of(events, rows)
    blocks, occupancy = _launch_values(events, rows)
    on_tc = _tensor_core_ratios(events, launches, forest, uses_tc)
    uses = []
    for number in distinct_values(device[(device >= 0) & (device < _MOST_DEVICES)]).tolist():
        own = np.flatnonzero(device == number)
        start, end = events.ts[rows[own]], events.end[rows[own]]
        ratio = None if on_tc is None else on_tc.get(number, 0.0)
        uses.append(_use(number, _Kernels(start, end, blocks[own], occupancy[own]), steps, ratio))
    return uses


def eligible_ratio(events: Events, launches: Launches, forest: Forest, costs: Costs) -> float:
    """Share of operators' kernel time that was queued by innermost operators that can use tensor cores."""
    is_kernel = events.kind[launches.work] == KERNEL
    length = np.where(is_kernel, events.end[launches.work] - events.ts[launches.work], 0)
    own = np.zeros(forest.row.size, length.dtype)
    np.add.at(own, forest.claim_node, launches.summed(length)[forest.claim_call])
    eligible = costs.eligible.astype(np.int64)
    innermost = costs.eligible & (_order.below(eligible, _order.last_descendant(forest.parent)) == eligible)
    total = own[forest.is_op].sum()
    return float(own[innermost].sum() / total) if total > 0 else 0.0


def device_metrics(
    devices: list[DeviceUse], properties: list[dict[str, Any]], dialect: Dialect
) -> dict[str, Any] | None:
    """The overview's table of devices: title, rows, tooltip. None where no device ran kernels."""
    if not devices:
        return None
    rows: list[dict[str, str]] = []
    for use in devices:
        if rows:
            rows.append({"title": "<hr/>", "value": ""})
        rows.append({"title": f"{dialect.noun} {use.device}:", "value": ""})
        rows += [{"title": k, "value": v} for k, v in _described(use.device, properties, dialect).items()]
        rows += [{"title": k, "value": f"{v} %"} for k, v in _measured(use, dialect).items()]
    about = [_ABOUT_BUSY]
    if not dialect.is_mlu:
        about += [_ABOUT_EFFICIENCY] * any(use.sm_efficiency_ratio is not None for use in devices)
        about += [_ABOUT_OCCUPANCY] * any(use.occupancy_percent is not None for use in devices)
    if any(use.tensor_core_ratio is not None for use in devices):
        about.append(_ABOUT_TENSOR_CORES + (_ABOUT_NO_TENSOR_CORES if dialect.is_mlu else ""))
    tooltip = "\n".join(("The {noun} usage metrics:\n", *about)).format(noun=dialect.noun)
    return {"title": f"{dialect.noun} Summary", "data": rows, "tooltip": tooltip}


def _described(device: int, properties: list[dict[str, Any]], dialect: Dialect) -> dict[str, str]:
    info = device_info(properties, device) or {}
    keys = ("Name", "Memory") if dialect.is_mlu else ("Name", "Memory", "Compute Capability")
    return {key: info[key] for key in keys if key in info}


def _measured(use: DeviceUse, dialect: Dialect) -> dict[str, float]:
    """Figures in percent by title, as shown. The fork for MLU has neither multiprocessors nor occupancy."""
    figures = {f"{dialect.noun} Utilization": round(use.busy_ratio * 100, 2)}
    if use.sm_efficiency_ratio is not None and not dialect.is_mlu:
        figures["Est. SM Efficiency"] = round(use.sm_efficiency_ratio * 100, 2)
    if use.occupancy_percent is not None and not dialect.is_mlu:
        figures["Est. Achieved Occupancy"] = round(use.occupancy_percent, 2)
    if use.tensor_core_ratio is not None:
        figures["Kernel Time using Tensor Cores"] = round(use.tensor_core_ratio * 100, 2)
    return figures


def _device_of(events: Events, rows: Ints) -> Ints:
    """The framework's number of the device on which each span lies, −1 for spans of the host."""
    devices = events.trace.devices.select("device_id", "index")
    tracks = events.trace.tracks.sort("track_id").select("device_id")
    joined = tracks.join(devices, on="device_id", how="left", maintain_order="left")
    number: Ints = joined["index"].cast(pl.Int64).fill_null(-1).to_numpy()
    device: Ints = number[events.trace.spans["track_id"].to_numpy()[rows]]
    return device


def _launch_values(events: Events, rows: Ints) -> tuple[Floats, Floats]:
    """Blocks per multiprocessor and occupancy (percent) of each kernel; NaN where unknown."""
    kernels = events.trace.table("kernels").select("span_id", "blocks_per_sm", "est_occupancy_ratio")
    spans = pl.DataFrame({"span_id": rows.astype(np.uint32)})
    launched = spans.join(kernels, on="span_id", how="left", maintain_order="left")
    # Rounding restores the digits that were recorded, before they became a ratio.
    return launched["blocks_per_sm"].to_numpy(), (launched["est_occupancy_ratio"] * 100).round(10).to_numpy()


def _use(device: int, kernels: _Kernels, steps: Steps, tensor_core_ratio: float | None) -> DeviceUse:
    low, high = steps.start[:1], steps.end[-1:]
    whole = (high - low).item()
    busy = merged(kernels.start, kernels.end)
    starts, ends = intersected(busy, (low, high))
    known = kernels.blocks > 0
    sm_start, sm_end, sm_ratio = swept(kernels.start[known], kernels.end[known], kernels.blocks[known])
    inside = (sm_end > low) & (sm_start < high)
    lengths = np.minimum(sm_end, high)[inside] - np.maximum(sm_start, low)[inside]
    # The plugin fails if all steps together last no time.
    return DeviceUse(
        device=device, busy=busy, busy_ratio=summed(ends - starts) / whole if whole else 0.0, sm_start=sm_start,
        sm_end=sm_end, sm_ratio=sm_ratio, sm_efficiency_ratio=summed(sm_ratio[inside] * lengths) / whole
        if whole and lengths.size else None, occupancy_percent=_occupancy(kernels, low, high),
        tensor_core_ratio=tensor_core_ratio,
    )  # fmt: skip


def _occupancy(kernels: _Kernels, low: Times, high: Times) -> float | None:
    lengths = np.minimum(kernels.end, high) - np.maximum(kernels.start, low)
    counts = (kernels.occupancy >= 0) & (lengths > 0)
    if not counts.any():
        return None
    return summed(kernels.occupancy[counts] * lengths[counts]) / summed(lengths[counts])


def swept(start: Times, end: Times, value: Floats) -> tuple[Times, Times, Floats]:
    """The sum of the values of all ranges over time, at most 1: starts, ends and values of the pieces above 0.

    Ranges are sorted by start. As in the plugin, the level is one running sum with a rounding error: after all ranges
    have ended it may be slightly above 0. At equal times starts come first; starts, and ends, are in the order of the
    ranges.
    """
    by_end = np.argsort(end, kind="stable")
    times = np.concatenate((start, end[by_end]))
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.cumsum(np.concatenate((value, -value[by_end]))[order])
    piece = np.flatnonzero((times[1:] > times[:-1]) & (level[:-1] > 0))
    return times[piece], times[piece + 1], np.minimum(level[piece], 1.0)


def _tensor_core_ratios(events: Events, launches: Launches, forest: Forest, uses_tc: Bools) -> dict[int, float] | None:
    """Per device the share of operators' kernel time that used tensor cores; None if operators queued no kernels."""
    _, work = launches.work_of(forest.claim_call[forest.is_op[forest.claim_node]])
    work = work[events.kind[launches.work[work]] == KERNEL]
    if not work.size:
        return None
    rows = launches.work[work]
    device = _device_of(events, rows)
    length = (events.end[rows] - events.ts[rows]).astype(np.float64)
    known = device >= 0
    total = np.bincount(device[known], length[known])
    # On MLU no kernel uses tensor cores, whatever its name.
    on_tc = known & uses_tc[work] & (not events.dialect.is_mlu)
    used = np.bincount(device[on_tc], length[on_tc], minlength=total.size)
    return {i: used[i].item() / total[i].item() for i in np.flatnonzero(total > 0).tolist()}


_MOST_BUCKETS = 100
_RECORDING = "PyTorch Profiler (0)"
_CHUNK = 1 << 14


def trace_counters(events: Events, devices: list[DeviceUse]) -> Iterator[Event]:
    """Counter events of all devices, one at a time: a large trace has a million of them.

    First comes the utilization of each device: the busy share of each of up to a hundred buckets, then 0. Then, except
    on MLU, comes its efficiency: for each range of one value an event at its start, and 0 at its end. Both begin with a
    1 and a 0, which set the scale.

    Units: µs, ratios.
    Source: the plugin.
    """
    buckets = buckets_of(events)
    for use in devices:
        yield from utilization(use.device, *_shares(use.busy, buckets), events.dialect)
    if not events.dialect.is_mlu:
        for use in devices:
            yield from _efficiency(use, buckets, events.dialect)


def buckets_of(events: Events) -> Ranges:
    """At most a hundred equal parts of the recording, of 1, 10, 100 … µs; the last one may be longer."""
    rows = events.rows(TRACE)
    whole = rows[events.where(_RECORDING.__eq__, rows)][-1:]
    if whole.size:
        low, high = events.ts[whole[0]], events.end[whole[0]]
    elif events.order.size:
        low, high = events.ts[events.order[0]], events.end[events.order].max()
    else:
        return events.ts[:0], events.end[:0]
    size = 1
    while (high - low) / size > _MOST_BUCKETS:
        size *= 10
    # A recording of less than 1 µs has no bucket, and the plugin fails.
    starts = low + np.arange(int((high - low) / size)) * size
    return starts, np.append(starts[1:], high)[: starts.size]


def _shares(busy: Ranges, buckets: Ranges) -> tuple[list[float], list[float]]:
    """Times and values of the utilization's events."""
    starts, ends = buckets
    shares = np.array(amounts(busy, buckets), np.float64) / (ends - starts)
    return [*starts.tolist(), *ends[-1:].tolist()], [*shares.tolist(), *[0] * bool(starts.size)]


def utilization(device: int, times: list[float], values: list[float], dialect: Dialect) -> Iterator[Event]:
    """The events of one device's utilization, after a 1 and a 0 that set the scale."""
    name, key = f"{dialect.noun} {device} Utilization", f"{dialect.noun} Utilization"
    yield from _scale(device, name, key, times)
    for ts, value in zip(times, values, strict=True):
        yield _event(device, name, ts, key, value)


def _efficiency(use: DeviceUse, buckets: Ranges, dialect: Dialect) -> Iterator[Event]:
    name, key = f"{dialect.noun} {use.device} Est. SM Efficiency", "Est. SM Efficiency"
    if use.sm_ratio.size:
        yield from _scale(use.device, name, key, buckets[0].tolist())
    for low in range(0, use.sm_ratio.size, _CHUNK):
        piece = slice(low, low + _CHUNK)
        columns = (values[piece].tolist() for values in (use.sm_start, use.sm_end, use.sm_ratio))
        for start, end, value in zip(*columns, strict=True):
            yield _event(use.device, name, start, key, value)
            yield _event(use.device, name, end, key, 0)


def _scale(device: int, name: str, key: str, times: list[float]) -> Iterator[Event]:
    return (_event(device, name, ts, key, value) for ts in times[:1] for value in (1, 0))


def _event(device: int, name: str, ts: float, key: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": device, "ts": ts, "args": {key: value}}
