"""Counter tracks that the plugin adds to the trace: each device's utilization, and its multiprocessors' efficiency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard._events import TRACE
from stepscope.exports.tensorboard._ranges import Ranges, amounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._devices import DeviceUse
    from stepscope.exports.tensorboard._dialect import Dialect
    from stepscope.exports.tensorboard._events import Events

    Times = NDArray[Any]
    Event = dict[str, Any]

_MOST_BUCKETS = 100
_RECORDING = "PyTorch Profiler (0)"
_CHUNK = 1 << 14


def trace_counters(events: Events, devices: list[DeviceUse]) -> Iterator[Event]:
    """Counter events of all devices, one at a time: a large trace has a million of them.

    First the utilization of every device: the busy part of each of up to a hundred buckets, then 0. Then its
    efficiency, but for MLU: for each range of one value an event where it starts, and 0 where it ends. A 1 and a 0 at
    the start give both their scale.

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
    """Parts of the recording, of 1, 10, 100 … µs, a hundred at most; the last may be longer."""
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
    """The events of one device's utilization, after a 1 and a 0 for scale."""
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
