"""Clocks, and repeats of a call.

Calls are warmed up and run in inner loops where they are short. Functions take turns, so that drift affects all alike.
Device work is timed by events or by waiting for the device.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.timing._arrays import TORCH_DEVICES, framework_of_tensor, leaves
from stepscope.timing._function import blamed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.timing._statistics import Times


class Clock(msgspec.Struct, frozen=True):
    """How calls are timed: `waits` empty the devices; `event` makes one that records and tells the time between two."""

    name: str = "wall clock"
    device: str = "cpu"
    waits: tuple[Callable[[], object], ...] = ()
    event: Callable[[], Any] | None = None

    def wait(self) -> None:
        """Return when no device has work left."""
        for one in self.waits:
            one()


class Lap(msgspec.Struct, frozen=True):
    """Time of one call in ns, by the clock that counts and by the host's clock, which includes all waiting."""

    ns: float
    wall_ns: float


def clock_for(values: Any) -> Clock:
    """The clock for calls that take and give `values`, after a first call, when what it works with is loaded.

    Devices of torch and paddle are waited for if the process uses them. Events count if tensors among the values are
    on the CUDA device that is current: work elsewhere is not on their stream.
    """
    tensors = [value for _, value in leaves(values)]
    candidates = [
        make(module, [t for t in tensors if framework_of_tensor(t) == name])
        for name, make in (("torch", _torch), ("paddle", _paddle))
        if (module := sys.modules.get(name)) is not None
    ]
    clocks = [clock for clock in candidates if clock is not None]
    if not clocks:
        return Clock()
    best = next((clock for clock in clocks if clock.event), clocks[0])
    return Clock(best.name, best.device, tuple(wait for clock in clocks for wait in clock.waits), best.event)


def _torch(torch: Any, tensors: Sequence[Any]) -> Clock | None:
    used = {tensor.device.type for tensor in tensors}
    for kind in TORCH_DEVICES:
        module = getattr(torch, kind, None)
        # Waiting would initialise the device, which takes memory there. A process that does not use it must not do
        # that.
        if module is None or not (kind in used or (hasattr(module, "is_initialized") and module.is_initialized())):
            continue
        name = f"wall clock after torch.{kind}.synchronize"
        if kind == "mps":
            return Clock(name, kind, (module.synchronize,))
        current = int(module.current_device())
        other_devices = {t.device.index or 0 for t in tensors if t.device.type == kind} - {current}
        waits = tuple(partial(module.synchronize, at) for at in [current, *sorted(other_devices)])
        if kind == "cuda" and kind in used and not other_devices:
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


#: With seven repeats the interval of a median reaches 95 %, and that of a speedup too.
LEAST_REPEATS = 7
DEFAULT_SECONDS = 1.0
#: A call shorter than this is repeated in an inner loop that takes at least LOOP_NS. Reading the clock takes some
#: 50 ns: 0.5 % of the former, 0.05 % of the latter.
SHORT_NS = 10_000
LOOP_NS = 100_000
LONG_NS = 10_000_000
MOST_INNER = 1_000_000


class Budget(msgspec.Struct, frozen=True):
    """How much to measure: calls before it, then repeats, or seconds for each function of a case (1 if neither)."""

    warmup: int = 3
    repeats: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.repeats is not None and self.seconds is not None:
            raise StepscopeError("both repeats and seconds are given", "give one of them")
        for name, value, least in (("warmup", self.warmup, 0), ("repeats", self.repeats, 1)):
            if value is not None and value < least:
                raise StepscopeError(f"{name} is {value}", f"{least} is the least")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise StepscopeError(f"seconds is {self.seconds:g}", "give a number above 0")


class Job(msgspec.Struct, frozen=True):
    """A call without arguments, the clock that it needs, and what to call it in an error."""

    call: Callable[[], object]
    clock: Clock
    what: str


class Timings(msgspec.Struct, frozen=True, eq=False):
    """Times of the repeats of one function in ns a call, in the order in which they were measured.

    `wall_ns` is the host's clock, the waiting for the device included. With `n_inner` above 1, each repeat is the mean
    of that many calls in a row. `overhead_ns` is what the same call of a function that does nothing takes.
    """

    times_ns: Times
    wall_ns: Times
    n_inner: int
    overhead_ns: float


def measure(jobs: Sequence[Job], budget: Budget, overheads: Sequence[float]) -> tuple[Timings, ...]:
    """Time the jobs, one repeat of each in turn, every other round backwards. Raises FunctionFailed.

    Without a number of repeats they go on until the time is up, and for at least LEAST_REPEATS rounds.
    """
    for job in jobs:
        if budget.warmup:
            lap(job.clock, job.call, budget.warmup, job.what)
    inner = [inner_calls(job) for job in jobs]
    laps: list[list[tuple[float, float]]] = [[] for _ in jobs]
    until = time.perf_counter_ns() + round((budget.seconds or DEFAULT_SECONDS) * 1e9) * len(jobs)
    n_rounds = 0
    while _goes_on(n_rounds, budget, until):
        order = range(len(jobs)) if n_rounds % 2 == 0 else reversed(range(len(jobs)))
        for at in order:
            one = lap(jobs[at].clock, jobs[at].call, inner[at], jobs[at].what)
            laps[at].append((one.ns, one.wall_ns))
        n_rounds += 1
    times = [np.asarray(pair_ns, dtype=np.float64) for pair_ns in laps]
    return tuple(
        Timings(pair_ns[:, 0], pair_ns[:, 1], n, overhead)
        for pair_ns, n, overhead in zip(times, inner, overheads, strict=True)
    )


def _goes_on(n_done: int, budget: Budget, until: int) -> bool:
    if budget.repeats is not None:
        return n_done < budget.repeats
    return n_done < LEAST_REPEATS or time.perf_counter_ns() < until


def inner_calls(job: Job) -> int:
    """How many calls make a repeat: 1, or of short calls so many (1, 2, 5, 10, 20, …) that they take LOOP_NS.

    An event's time may be close to zero when the host's is not, so the loop also stops growing once it takes LONG_NS
    by the host's clock.
    """
    one = lap(job.clock, job.call, 1, job.what)
    if one.ns < 10 * SHORT_NS:  # it may be short: take the best of three, because a single one may be disturbed
        one = min(one, *(lap(job.clock, job.call, 1, job.what) for _ in range(2)), key=lambda measured: measured.ns)
    if one.ns >= SHORT_NS:
        return 1
    n = 1
    while one.ns * n < LOOP_NS and one.wall_ns * n < LONG_NS and n < MOST_INNER:
        n = _round_up(min(max(2 * n, LOOP_NS / max(one.ns, 1e-3)), 10 * n))
        one = lap(job.clock, job.call, n, job.what)
    return n


def _round_up(n: float) -> int:
    """The next of 1, 2, 5, 10, 20 and so on."""
    power = 1
    while True:
        for first in (1, 2, 5):
            if first * power >= n:
                return first * power
        power *= 10


def call_overhead_ns(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """What it takes to call a function that does nothing with these arguments, loop and clock included, in ns."""
    call = partial(_nothing, *args, **kwargs)
    return min(lap(Clock(), call, 1000, "a call of nothing").ns for _ in range(5))


def _nothing(*args: Any, **kwargs: Any) -> None:  # noqa: ARG001  as the function that is measured
    return None
