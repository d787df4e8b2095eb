"""The summary of one trace: all that a report needs, small enough to hold one for each of many ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.windows import queued_work, recorded, step_windows
from stepscope.core.remedies import Recording, recording_of
from stepscope.core.report import PACE_UNKNOWN, Block, Gain, Note
from stepscope.core.trace import Meta, Trace
from stepscope.core.units import counted, duration, number, percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.intervals import Intervals

    Ints = NDArray[np.int64]


#: The kind of the cost of communication with other ranks.
TALK = "communication"
#: The kind of the cost of time before the first and after the last device work.
ENDS = "idle ends"
#: The kind of the lack of device work that the host launched.
NO_DEVICE = "no_device"
#: A host that needs less of the step than this runs ahead of the device.
AHEAD = 0.9
SLOWEST_STEPS = "show steps --sort -window_ns"
#: Of the steps, or of the time between the first and the last device work: a cost that is a smaller part is not shown.
LEAST_SHARE = 0.01
#: Of that, as one rank's cost may be small where the mean over all is not.
_OF_ONE_RANK = 0.5


class Cost(msgspec.Struct, frozen=True):
    """Something that took time: how much over the whole scope, with a title and details.

    `kind` is the same on every rank, so that costs of several ranks become one finding. Costs of one summary do not
    overlap, except `outlier`, which says when time was lost and not where. `covered_by` are kinds that say it better: a
    report that shows one of them leaves this cost out. `gain` is what it is worth to mend it, if that can be said.
    """

    kind: str
    title: str
    ns: int | float | None  # an int comes as one out of the cache
    details: tuple[str, ...] = ()
    command: str = ""
    covered_by: tuple[str, ...] = ()
    gain: Gain | None = None


class Lack(msgspec.Struct, frozen=True):
    """A sentence on what the data lacks. `kind` is the same on every rank; numbers in `text` are the rank's own."""

    kind: str
    text: str


class Memory(msgspec.Struct, frozen=True):
    """The device with the highest peak of memory."""

    device: str | None
    peak_bytes: int
    reserved_bytes: int | None
    capacity_bytes: int | None


class Scope(msgspec.Struct, frozen=True, eq=False):
    """The part of a recording that a summary covers: the windows of steps, else everything that was recorded."""

    lows: Ints
    highs: Ints
    numbers: tuple[int, ...] = ()  # of the steps, in the order of the windows
    n_devices: int = 1  # that worked, and whose mean the parts are
    host_ns: tuple[int, ...] = ()  # how long each step took on the host
    about: Recording = msgspec.field(default_factory=Recording)  # what remedies depend on
    late_ns: int = 0  # device work of the only step after its end on the host, which the window includes

    @property
    def windows(self) -> Intervals:
        """The windows as disjoint intervals."""
        return self.lows, self.highs

    @property
    def whole_ns(self) -> int:
        """Summed length of the windows."""
        return int((self.highs - self.lows).sum())

    @property
    def low(self) -> int:
        """Start of the first window."""
        return int(self.lows[0])

    @property
    def high(self) -> int:
        """End of the last window."""
        return int(self.highs[-1])

    @property
    def n(self) -> int:
        """What totals are divided by to give a cost per step; 1 without steps."""
        return max(len(self.numbers), 1)

    def least_ns(self, idle_ns: float) -> float:
        """A cost of less is not shown, be it of this rank alone or the mean of all: nobody asks for its details.

        `idle_ns` is the time in which no device works. A recording without steps may be long before and after the work.
        """
        return _OF_ONE_RANK * LEAST_SHARE * (self.whole_ns - (0 if self.numbers else idle_ns))

    @property
    def each(self) -> str:
        """' a step', ' a device', ' a step and device': what amounts are given for; empty if for the whole."""
        parts = ["step"] * bool(self.numbers) + ["device"] * (self.n_devices > 1)
        return f" a {' and '.join(parts)}" if parts else ""

    def amount(self, n: int, noun: str, plural: str = "", *, ns: float | None = None) -> str:
        """'20 kernels a step, mean 5.2 µs', '4 gaps in 5 steps': of n on all devices in all steps, which took ns."""
        share = n / self.n / self.n_devices
        amount = counted(share, noun, plural) + self.each
        if 0 < share < 1 and not amount.startswith("1 "):
            amount = counted(n, noun, plural) + (f" in {self.n} steps" if self.n > 1 else "")
            amount += f" on {self.n_devices} devices" if self.n_devices > 1 else ""
        if ns is None or not n:
            return amount
        return f"{amount}, {'' if n == 1 else 'mean '}{duration(ns / n)}"


class Summary(msgspec.Struct, frozen=True, eq=False):
    """All that a report needs of one trace."""

    meta: Meta
    recorded_ns: int
    devices: tuple[str, ...] = ()  # product or kind of each device that worked
    places: tuple[str, ...] = ()  # those devices, as in cuda:0, and after them the others that the trace names
    pids: tuple[int, ...] = ()  # processes on the host
    numbers: tuple[int, ...] = ()  # of the steps
    windows_ns: tuple[int, ...] = ()  # length of each step; without steps, of the scope's one window
    host_ns: tuple[int, ...] = ()  # length of each step on the host
    parts: Mapping[str, int] = msgspec.field(default_factory=dict)  # parts of the windows, summed over them
    busy: Mapping[str, float] = msgspec.field(default_factory=dict)  # share of the windows in which each device worked
    # Of `device-utilisation`, means over devices; of `mfu`.
    use: Mapping[str, float] = msgspec.field(default_factory=dict)
    while_idle: Mapping[str, int] = msgspec.field(default_factory=dict)  # what the host did while no device worked
    memory: Memory | None = None
    notes: tuple[Note, ...] = ()
    costs: tuple[Cost, ...] = ()
    tables: tuple[Block, ...] = ()
    quality: tuple[Lack, ...] = ()
    issues: pl.DataFrame | None = None
    n_launches: int | None = None  # of kernels whose order is known and whose times are not
    calls: bytes | None = None  # its collective calls, packed
    name: str = ""  # of its file among those of a report
    facts: tuple[str, ...] = ()  # what the headline says besides: of batches and requests

    @property
    def n(self) -> int:
        """What totals are divided by to give a cost per step; 1 without steps."""
        return max(len(self.numbers), 1)

    @property
    def label(self) -> str:
        """A name for the trace among the traces of its job."""
        return self.name if self.meta.rank is None else f"rank {self.meta.rank}"


def scope_of(trace: Trace, work: pl.DataFrame | None = None) -> Scope:
    """The scope of a trace, which has at least one span: the windows of its steps, else the whole recording.

    `work` is what `device_work` returns, if that is known already.
    """
    spans, about = trace.spans, recording_of(trace.meta, trace.spans, trace.devices)
    if trace.steps.is_empty():
        low, high = recorded(spans)
        return Scope(np.array([low]), np.array([high]), about=about)
    windows = step_windows(trace.steps, queued_work(spans, trace.tracks) if work is None else work)
    host, late = windows["host_window_ns"].to_numpy(), windows["late_ns"]
    return Scope(
        windows["ts_ns"].to_numpy(),
        windows["end_ns"].to_numpy(),
        tuple(windows["step"].to_list()),
        host_ns=tuple(host.tolist()),
        about=about,
        late_ns=max(late[0] or 0, 0) if windows.height == 1 else 0,
    )


#: Steps that grow by less of their length over the run are as good as even.
_GROWTH = 0.1


#: Profiled steps that take so many times as long as the others say less of them.
_SLOWED = 1.15


def _steps_of_run(trace: Trace) -> pl.DataFrame | None:
    """TIMED_STEPS of the first process that has enough of them; None without one."""
    if trace.step_times.is_empty():
        return None
    from stepscope.comparison.whole_run import LEAST_STEPS, timed_steps

    each = (timed_steps(trace, pid) for pid in trace.step_times["pid"].unique().sort())
    return next((frame for frame in each if int(frame["n_steps"].sum()) >= LEAST_STEPS), None)


def slowed_by_profiler(trace: Trace, windows_ns: NDArray[np.int64], busy: Sequence[float]) -> str:
    """How much longer the profiled steps take than the others, and how idle the device is without that; '' if not.

    `windows_ns` are the lengths of the profiled steps, `busy` the shares of them in which each device works. A profiler
    slows the host, and kernels hardly: the device idles for less of an undisturbed step than of a profiled one.
    """
    steps = _steps_of_run(trace)
    if steps is None or not windows_ns.size:
        return ""
    usual, profiled = float(np.median(steps["dur_ns"].to_numpy())), float(windows_ns.mean())
    times = profiled / usual if usual else 0.0
    if times < _SLOWED:
        return ""
    text = f"the profiled steps take {number(times)} times as long: the profiler, or the run's start, slows the host"
    if len(busy) == 1 and 0 < busy[0] * times <= 1:
        text += f"; in a typical step the device idles for about {percent(1 - busy[0] * times)}"
    return text


def of_whole_run(trace: Trace) -> str:
    """What the steps of the whole run were like, which `stepscope record` timed besides the profile; '' without any."""
    steps = _steps_of_run(trace)
    if steps is None:
        return ""
    from stepscope.comparison.whole_run import STEADY, growth, mean_step_ns, tail

    mean = mean_step_ns(steps)
    usual = f"{duration(mean)} on average, {duration(float(np.median(steps['dur_ns'].to_numpy())))} typically"
    text = f"{int(steps['n_steps'].sum()):,} steps of the whole run: {usual}"
    slow, (rise, steadiness) = tail(steps), growth(steps)
    if slow.every is not None:
        text += f"; every {slow.every} steps one takes {duration(slow.each_ns)} more"
    elif slow.is_spread:
        text += f"; {percent(slow.n_slow / slow.n_steps)} of them take {duration(slow.each_ns)} more than that"
    if steadiness >= STEADY and rise >= _GROWTH * mean:
        text += f"; they grow by {duration(rise)} from the first quarter to the last"
    return text


#: A smaller gain is none.
_NO_GAIN, _LEAST_SHOWN = 0.005, 0.001


#: What sets the length of a step, where the name of the part does not say it alone.
_BINDS = {
    "host": "the host thread's own time", "memcpy": "copying", "data loader": "the data loader",
    "launch queue": "the full launch queue", "gaps between work": "the time between kernels",
}  # fmt: skip


def what_changes(kind: str, gain: Gain) -> str:
    """What a gain is the gain of, as the sentence about a cost of this kind begins with it."""
    if gain.question.endswith(": 2x"):
        return "Twice as fast"
    if gain.question == "launch: graphs":
        return "With its launches as graphs"
    return "Without it" if kind == TALK else "Fixing it"


def gain_text(gain: Gain, what: str) -> str:
    """'Fixing it: 161 ms → 131 ms, −19 %, between −17 % and −20 %' for `what` 'Fixing it'."""

    def change(ns: float) -> str:
        # What is fixed makes no step longer; beyond that the interval says how much runs of one program differ.
        saved = 1 - ns / gain.step_ns
        return f"−{percent(saved)}" if saved >= _LEAST_SHOWN else "no change"

    if abs(gain.gain_ratio) < _NO_GAIN:
        instead = _BINDS.get(gain.binds_next or "", gain.binds_next or "something else")
        return f"{what}: saves less than {percent(_NO_GAIN)} of the step, whose length {instead} sets"
    lead = f"{duration(gain.step_ns)} → {duration(gain.predicted_ns)}, {change(gain.predicted_ns)}"
    if gain.reason == PACE_UNKNOWN:
        return f"{what}: {lead}, if the data loader keeps up"
    if gain.reason:
        return f"{what}: at best {lead}, as {gain.reason}"
    return f"{what}: {lead}, between {change(gain.high_ns)} and {change(gain.low_ns)}"


def only_scheduled(trace: Trace) -> bool:
    """Whether the only spans of the trace are those of scheduling."""
    return 0 < trace.spans.height == trace.sched.height
