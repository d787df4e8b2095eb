"""The plugin's steps, and what each moment of a step was spent on. Where roles overlap, the first by priority counts.

A step is annotated on the host and extended to the end of the device work that it queued.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.exports.tensorboard._events import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, PYTHON, RUNTIME, STEP
from stepscope.exports.tensorboard._names import is_collective, is_data_loading

if TYPE_CHECKING:
    from stepscope.exports.tensorboard._events import Events

    Ints = NDArray[np.int64]
    from stepscope.exports.tensorboard._events import Launches


Times = NDArray[Any]
#: A set of time ranges: starts and ends in order of time, in the recorder's own numbers. Unlike those of
#: `stepscope.core.intervals`, it keeps what the plugin keeps: an empty range stays unless another range touches it, and
#: subtracting it splits a range in two. Both affect whether a role occurs, and the last digit of a sum of doubles.
Ranges = tuple[Times, Times]


def merged(starts: Times, ends: Times) -> Ranges:
    """The same points as ranges that do not touch each other.

    >>> merged(np.array([0, 5, 10, 30]), np.array([3, 10, 12, 30]))
    (array([ 0,  5, 30]), array([ 3, 12, 30]))
    """
    if not starts.size:
        return starts, ends
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.append(0, first)], reach[np.append(first - 1, -1)]


def intersected(a: Ranges, b: Ranges) -> Ranges:
    """The points in both, by range of `a`. `a` may be in any order; `b` is in order of time without overlaps."""
    of_a, of_b = _pairs(a, b)
    return np.maximum(a[0][of_a], b[0][of_b]), np.minimum(a[1][of_a], b[1][of_b])


def subtracted(a: Ranges, b: Ranges) -> Ranges:
    """The points of `a` that are not in `b`, both in order of time without overlaps."""
    of_a, of_b = _pairs(a, b)
    # A range of `a` that meets n ranges of `b` leaves n + 1 pieces: before the first, between them, after the last.
    met = np.bincount(of_a, minlength=a[0].size)
    starts, ends = (np.empty(of_a.size + met.size, a[0].dtype) for _ in range(2))
    last = np.cumsum(met + 1) - 1
    is_first, is_last = np.zeros(starts.size, bool), np.zeros(starts.size, bool)
    is_first[last - met] = is_last[last] = True
    starts[is_first], starts[~is_first] = a[0], b[1][of_b]
    ends[is_last], ends[~is_last] = a[1], b[0][of_b]
    stays = (ends > starts) | (is_first & is_last)
    return starts[stays], ends[stays]


def amounts(ranges: Ranges, windows: Ranges) -> list[float]:
    """How much of each window the ranges cover, summed in order of time; the integer 0 without ranges."""
    of_window, of_range = _pairs(windows, ranges)
    starts, ends = windows[0][of_window], windows[1][of_window]
    lengths = np.minimum(ends, ranges[1][of_range]) - np.maximum(starts, ranges[0][of_range])
    sums = np.zeros(windows[0].size, lengths.dtype)
    np.add.at(sums, of_window, lengths)  # one after the other, as a loop does
    met = np.bincount(of_window, minlength=sums.size)
    return [value if n else 0 for value, n in zip(sums.tolist(), met.tolist(), strict=True)]


def summed(values: Times) -> float:
    """The sum in the order of the values, as a loop adds. NumPy's and Python's sums may differ in the last digit."""
    total: float = np.cumsum(values)[-1].item() if values.size else 0
    return total


def _pairs(a: Ranges, b: Ranges) -> tuple[Ints, Ints]:
    """Indices of all pairs of ranges that have points in common. An empty range counts as a point."""
    low = np.searchsorted(b[1], a[0], side="right")
    high = np.where(a[1] > a[0], np.searchsorted(b[0], a[1], side="left"), np.searchsorted(b[0], a[0], side="right"))
    counts = high - low
    of_a = np.repeat(np.arange(counts.size), counts)
    return of_a, np.arange(of_a.size) + np.repeat(low - (np.cumsum(counts) - counts), counts)


#: A last step with less than this share of the work of the step before was probably cut off by the recording's end.
_TRUNCATED = 0.8


class Steps(msgspec.Struct, frozen=True):
    """Steps that are shown, in order; times in µs. The window of the recording's figures is [start[0], end[-1])."""

    start: Times
    end: Times
    names: list[str]


def find_steps(events: Events, launches: Launches) -> Steps:
    """The steps of a trace; one called "0" where none is annotated. There is always at least one.

    A step ends when the last device work that a call wholly inside it queued has ended. The next step begins then.
    Trailing steps that queued nothing are left out. So is a last step that queued less than 0.8 of the work of the step
    before it. Annotations on the device's lane make additional steps of the same names, as in the plugin.

    Units: µs.
    Source: the plugin.
    """
    low, high, names = _on_host(events)
    step_of = _steps_of_calls(events, launches, low, high)
    inside = np.flatnonzero(step_of >= 0)
    place, work = launches.work_of(inside)
    if not work.size:
        return Steps(low, high, names)
    begin, finish = events.ts[launches.work[work]], events.end[launches.work[work]]
    bounds = np.searchsorted(step_of[inside][place], np.arange(low.size + 1)).tolist()
    previous = low[0]
    if bounds[1]:
        # Work queued before the first step delays it.
        early = np.ones(launches.work.size, bool)
        early[work] = False
        done = events.end[launches.work[early]]
        previous = done[done < begin[: bounds[1]].min()].max(initial=previous)
    start, end = low.copy(), high.copy()
    for i, (first, stop) in enumerate(pairwise(bounds)):
        start[i] = max(previous, low[i])
        end[i] = previous = finish[first:stop].max(initial=max(start[i], high[i]))
    shown = _complete(np.diff(bounds))
    return Steps(start[:shown], end[:shown], names[:shown])


def _on_host(events: Events) -> tuple[Times, Times, list[str]]:
    """Starts, ends and names of the steps as annotated."""
    rows = events.rows(STEP)
    if rows.size:
        return events.ts[rows], events.end[rows], [_number(events.names[i]) for i in events.name[rows].tolist()]
    # The fork for MLU counts the user's ranges as host work, too.
    host = events.rows(OPERATOR, PYTHON, *((ANNOTATION,) if events.dialect.is_mlu else ()))
    # Without host work the plugin's step lasts from its largest to its smallest integer, which makes its figures
    # useless. Here the step is the whole recording.
    host = host if host.size else events.order
    if not host.size:
        nothing = np.zeros(1, events.ts.dtype)
        return nothing, nothing, ["0"]
    return events.ts[host[:1]], events.end[host].max(keepdims=True), ["0"]


def _number(name: str) -> str:
    # The plugin fails if it is not a number.
    text = name.split("#")[1]
    return str(int(text)) if text.strip().isdecimal() else text


def _steps_of_calls(events: Events, launches: Launches, low: Times, high: Times) -> Ints:
    """Step of each call; −1 if no step wholly holds it. Once a call starts after a step, that step is done."""
    begin, finish = events.ts[launches.calls], events.end[launches.calls]
    reach = np.maximum.accumulate(high)
    after, at = (np.searchsorted(reach, begin, side=side) for side in ("right", "left"))
    step = np.maximum.accumulate(np.where(begin == finish, at, after))  # an empty call may lie on the end
    place = np.minimum(step, low.size - 1)
    inside = (step < low.size) & (begin >= low[place]) & (finish <= high[place])
    return np.where(inside, step, -1)


def _complete(work: Ints) -> int:
    """How many of the first steps to show, given how much work each step queued. At least one step queued some."""
    last = int(np.flatnonzero(work)[-1])
    return last if last and work[last - 1] * _TRUNCATED > work[last] else last + 1


#: Roles in order of priority, as the view calls them. What none of them covers is "Other".
ROLES = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec")
OTHER = "Other"


class Flags(msgspec.Struct, frozen=True):
    """Whether there is any such work, inside or outside of steps. Kernels of collectives are communication."""

    has_runtime: bool
    has_kernel: bool
    has_communication: bool
    has_memcpy_or_memset: bool

    @property
    def has_device(self) -> bool:
        """Whether an accelerator was used."""
        return self.has_runtime or self.has_kernel or self.has_memcpy_or_memset


class StepCosts(msgspec.Struct, frozen=True):
    """Time of each role in each step, and their total. Units: µs, integers if the trace's times are integers."""

    parts: dict[str, list[float]]
    total: list[float]

    def mean(self, role: str | None = None) -> float:
        """Mean over the steps of a role, or of the whole step."""
        values = self.total if role is None else self.parts[role]
        return summed(np.array(values, np.float64)) / len(values)


class Overlap(msgspec.Struct, frozen=True):
    """Time per step of kernels (host work if there are none), communication, both at once, neither. Units: µs."""

    computation: Times
    communication: Times
    overlap: Times
    other: Times


def find_roles(events: Events) -> dict[str, Ranges]:
    """When each role's work ran, as merged ranges, even where other work ran too. Units: µs.

    A kernel with the external id of a collective's host operator is communication; on MLU so is a copy. A missing id
    counts as an id of its own, as in the plugin.
    """
    host = events.rows(OPERATOR, PYTHON, ANNOTATION)
    collective, loading = events.where(is_collective, host), events.where(is_data_loading, host)
    loading &= events.kind[host] != PYTHON
    kernels, copies = events.rows(KERNEL), events.rows(MEMCPY)
    moving = [host[collective]]
    ids = events.external[host[collective]]
    if ids.size:
        of_collective = np.isin(events.external[kernels], ids)
        moving.append(kernels[of_collective])
        kernels = kernels[~of_collective]
    if ids.size and events.dialect.is_mlu:
        of_collective = np.isin(events.external[copies], ids)
        moving.append(copies[of_collective])
        copies = copies[~of_collective]
    rows = (
        kernels, copies, events.rows(MEMSET), np.concatenate(moving), events.rows(RUNTIME), host[loading],
        host[~collective & ~loading],
    )  # fmt: skip
    return {role: merged(events.ts[r], events.end[r]) for role, r in zip(ROLES, rows, strict=True)}


def flags_of(roles: dict[str, Ranges]) -> Flags:
    """What kinds of work there are."""
    has = {role: bool(ranges[0].size) for role, ranges in roles.items()}
    return Flags(has["Runtime"], has["Kernel"], has["Communication"], has["Memcpy"] or has["Memset"])


def step_costs(roles: dict[str, Ranges], steps: Steps) -> StepCosts:
    """How long each role prevailed in each step.

    Units: µs.
    Source: the plugin, with its defect: once roles have claimed all time of all steps, the next role starts as if
    nothing had been claimed. The parts of a step may then add up to more than the step.
    """
    prevailing: dict[str, Ranges] = {}
    free: Ranges = (steps.start[:0], steps.end[:0])
    for role, ranges in roles.items():
        if free[0].size:
            prevailing[role] = intersected(free, ranges)
        else:
            prevailing[role] = ranges
            free = merged(steps.start, steps.end)
        free = subtracted(free, prevailing[role])
    prevailing[OTHER] = free
    windows = steps.start, steps.end
    parts = {role: amounts(ranges, windows) for role, ranges in prevailing.items()}
    return StepCosts(parts, (steps.end - steps.start).tolist())


def overlap_costs(roles: dict[str, Ranges], steps: Steps) -> Overlap:
    """How long communication and computation overlapped in each step; time may count in both. Units: µs."""
    computing = roles["Kernel"] if roles["Kernel"][0].size else roles["CPU Exec"]
    moving = roles["Communication"]
    windows = steps.start, steps.end
    both, computation, communication = (
        np.array(amounts(ranges, windows)) for ranges in (intersected(computing, moving), computing, moving)
    )
    other = steps.end - steps.start + both - computation - communication
    return Overlap(computation, communication, both, other)
