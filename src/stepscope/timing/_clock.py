"""When work on a device is done: how to wait for it, and its own clock where it has one.

A call returns when its work is queued, not when it is done. So the host's clock is read only while the device has
nothing left to do. CUDA devices can do better: events on the stream are stamped by the device itself.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from stepscope.timing._arrays import TORCH_DEVICES
from stepscope.timing._blame import blamed
from stepscope.timing._leaves import framework_of_tensor, leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Clock:
    """How calls are timed: `waits` empty the devices; `event` makes one that records and tells the time between two."""

    name: str = "wall clock"
    device: str = "cpu"
    waits: tuple[Callable[[], object], ...] = ()
    event: Callable[[], Any] | None = None

    def wait(self) -> None:
        """Return when no device has work left."""
        for one in self.waits:
            one()


@dataclass(frozen=True, slots=True)
class Lap:
    """Time of one call in ns: of the clock that counts, and of the host's clock, all waiting included."""

    ns: float
    wall_ns: float


def clock_for(values: Any) -> Clock:
    """The clock for calls that take and give `values`, after a first call, when what it works with is loaded.

    Devices of torch and paddle are waited for if the process uses them. Events count if tensors among the values are
    on the CUDA device that is current: work elsewhere is not on their stream.
    """
    tensors = [value for _, value in leaves(values)]
    found = [
        make(module, [t for t in tensors if framework_of_tensor(t) == name])
        for name, make in (("torch", _torch), ("paddle", _paddle))
        if (module := sys.modules.get(name)) is not None
    ]
    clocks = [clock for clock in found if clock is not None]
    if not clocks:
        return Clock()
    best = next((clock for clock in clocks if clock.event), clocks[0])
    return Clock(best.name, best.device, tuple(wait for clock in clocks for wait in clock.waits), best.event)


def _torch(torch: Any, tensors: Sequence[Any]) -> Clock | None:
    used = {tensor.device.type for tensor in tensors}
    for kind in TORCH_DEVICES:
        module = getattr(torch, kind, None)
        # Waiting would set the device up, which takes memory on it: not for a process that does not use it.
        if module is None or not (kind in used or (hasattr(module, "is_initialized") and module.is_initialized())):
            continue
        name = f"wall clock after torch.{kind}.synchronize"
        if kind == "mps":
            return Clock(name, kind, (module.synchronize,))
        current = int(module.current_device())
        others = {t.device.index or 0 for t in tensors if t.device.type == kind} - {current}
        waits = tuple(partial(module.synchronize, at) for at in [current, *sorted(others)])
        if kind == "cuda" and kind in used and not others:
            return Clock("CUDA events of torch", f"cuda:{current}", waits, partial(module.Event, enable_timing=True))
        return Clock(name, f"{kind}:{current}", waits)
    return None


def _paddle(paddle: Any, tensors: Sequence[Any]) -> Clock | None:
    device = str(paddle.device.get_device())
    if device == "cpu":
        return None
    event = getattr(paddle.device, "Event", None)
    on_gpu = any(tensor.place.is_gpu_place() for tensor in tensors)
    if event is not None and on_gpu and device.startswith("gpu") and hasattr(event, "elapsed_time"):
        return Clock("CUDA events of paddle", device, (paddle.device.synchronize,), partial(event, enable_timing=True))
    return Clock("wall clock after paddle.device.synchronize", device, (paddle.device.synchronize,))


def lap(clock: Clock, call: Callable[[], object], n: int, what: str) -> Lap:
    """The time of a call, the mean of `n` in a row. Raises FunctionFailed; `what` says which function it was."""
    calls = repeat(None, n)
    with blamed(what):
        if not clock.waits:
            began = time.perf_counter_ns()
            for _ in calls:
                call()
            wall = (time.perf_counter_ns() - began) / n
            return Lap(wall, wall)
        events = [clock.event(), clock.event()] if clock.event else []
        clock.wait()
        began = time.perf_counter_ns()
        for event in events[:1]:
            event.record()
        for _ in calls:
            call()
        for event in events[1:]:
            event.record()
        clock.wait()
        wall = (time.perf_counter_ns() - began) / n
        # The events' time is in ms.
        return Lap(events[0].elapsed_time(events[1]) * 1e6 / n if events else wall, wall)
