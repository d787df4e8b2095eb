"""From scheduling events to spans: a thread on a core, or ready and waiting for one.

A thread has a core from the switch that gives it one to the switch that takes it away. It waits from its wake-up, or
from losing the core while it could have gone on, until it gets one. Wake-ups of a thread that has a core, or waits
already, say nothing new. Where events are missing in between there is no span, but for one sort: some kernels do not
tell of switches from an idle core (seen in a virtual machine with Linux 6.18, through tracefs and perf alike). A thread
that woke up and then lost a core got it unseen, so from idle, and had not to wait: it counts as got at the wake-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.core.intervals import union
from stepscope.readers.recorded.sched_events import IN, OUT, RUNNABLE, WAKE

if TYPE_CHECKING:
    from stepscope.readers.recorded.sched_events import Events

__all__ = ["AT_END", "PREEMPTED", "WOKEN", "Spans", "spans_of"]

Ints = NDArray[np.int64]

#: Why a wait began.
PREEMPTED, WOKEN = 0, 1
#: `state` of a thread that had the core when the recording ended.
AT_END = -1
_END = 3
#: Names of the kernel's own threads that come often and stay shortly.
_OF_KERNEL = re.compile(
    r"(?:kworker|ksoftirqd|migration|irq|cpuhp|watchdog|rcu_\w+|rcuo\w|kcompactd|kswapd|jbd2|khugepaged)(?:/|\d*$)"
)
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans in order of thread and start, on the monotonic clock. Units: ns.

    `core` is where it ran, or got to run after it had waited (-1: it did not). `state` is of time on a core: how the
    thread was when it lost it, or `AT_END`; `why` of a wait. `other` is who got the core after it or, after a wake-up,
    had it until the thread got it: 0 for nobody, -1 if not known. `n_gaps` is how often a thread lost, or was given, a
    core without an event for what must have been between; `n_from_idle` how often it got one from idle unseen.
    """

    tid: Ints
    start_ns: Ints
    end_ns: Ints
    is_wait: NDArray[np.bool_]
    core: Ints
    state: Ints
    why: Ints
    other: Ints
    n_gaps: int
    n_from_idle: int


def spans_of(events: Events) -> Spans:
    """The spans of all threads."""
    rows = _rows(events)
    unseen = _from_idle(rows)
    n = max(rows.ts.size - 1, 0)
    a, b = _Rows(*(column[:n] for column in rows.columns())), _Rows(*(column[1:] for column in rows.columns()))
    same = a.tid == b.tid
    runs = same & (a.what == IN) & (((b.what == OUT) & (a.core == b.core)) | (b.what == _END))
    waits = same & a.is_ready() & ((b.what == IN) | (b.what == _END))
    if unseen:  # so may have been what followed the last wake-up
        waits &= (a.what == OUT) | (b.what == IN)
    at = np.flatnonzero(runs | waits)
    # What follows must follow: a core is lost by who has one, and given to who has none.
    gaps = same & ~runs & ((b.what == OUT) | ((a.what == IN) & (b.what == IN)))
    is_wait, why = waits[at], np.where(a.what[at] == OUT, PREEMPTED, WOKEN)
    until_end = b.what[at] == _END
    # Who took the core is told when it is lost; who had it before, when it is got. A thread of the kernel takes it for
    # a moment: where one came first, the last one is more to blame.
    kernel = np.array([tid for tid, name in events.names.items() if _OF_KERNEL.match(name)], np.int64)
    brief = np.isin(a.other[at], kernel) & (b.what[at] == IN) & (b.other[at] > 0)
    told_first = is_wait & (why == PREEMPTED) & ~brief
    found = Spans(
        a.tid[at],
        a.ts[at],
        b.ts[at],
        is_wait,
        np.where(is_wait, np.where(until_end, -1, b.core[at]), a.core[at]),
        np.where(is_wait | until_end, AT_END, b.state[at]),
        why,
        np.where(told_first, a.other[at], np.where(until_end, -1, b.other[at])),
        int(gaps.sum()),
        unseen,
    )
    return _without_losses(found, events.losses)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Events in order of thread and time."""

    tid: Ints
    ts: Ints
    what: Ints
    core: Ints
    state: Ints
    other: Ints

    def columns(self) -> tuple[Ints, ...]:
        return self.tid, self.ts, self.what, self.core, self.state, self.other

    def take(self, rows: Ints) -> _Rows:
        return _Rows(*(column[rows] for column in self.columns()))

    def is_ready(self) -> NDArray[np.bool_]:
        """After which a thread waits for a core."""
        ready: NDArray[np.bool_] = ((self.what == OUT) & (self.state == RUNNABLE)) | (self.what == WAKE)
        return ready

    def ends(self) -> tuple[Ints, Ints]:
        """The first and the last row of each thread."""
        change = np.flatnonzero(np.diff(self.tid))
        rows = min(self.tid.size, 1)
        return np.append(np.zeros(rows, np.int64), change + 1), np.append(change, np.full(rows, self.tid.size - 1))


def _rows(events: Events) -> _Rows:
    """The events that change something, with those that the recording's start and end stand for.

    A thread that first lost a core had it from the start, if it was there then. At the end all begin to be unknown.
    """
    order = np.argsort(events.tid, kind="stable")
    columns = (events.tid, events.ts_ns, events.what, events.core, events.state, events.other)
    rows = _Rows(*(column[order].astype(np.int64) for column in columns))
    rows = rows.take(np.flatnonzero(~_is_idle_wake(rows)))
    first, last = rows.ends()
    heads = rows.take(first[rows.what[first] == OUT])
    began = np.array([events.began.get(tid, _NEVER) for tid in heads.tid.tolist()], np.int64)
    heads, began = heads.take(np.flatnonzero(began <= heads.ts)), began[began <= heads.ts]
    tails = rows.take(last)
    none = np.zeros(tails.tid.size, np.int64)
    parts = [
        (heads.tid, began, np.full(began.size, IN), heads.core, heads.state, heads.other),
        rows.columns(),
        (tails.tid, np.maximum(none + events.end_ns, tails.ts), none + _END, none - 1, none, none),
    ]
    whole = _Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return whole.take(np.argsort(whole.tid, kind="stable"))


def _from_idle(rows: _Rows) -> int:
    """Makes wake-ups that the loss of a core follows to what gave it, in place. How many those are."""
    woke = rows.what[:-1] == WAKE
    at = np.flatnonzero(woke & (rows.what[1:] == OUT) & (rows.tid[:-1] == rows.tid[1:]))
    rows.what[at], rows.core[at], rows.other[at] = IN, rows.core[at + 1], 0
    return int(at.size)


def _is_idle_wake(rows: _Rows) -> NDArray[np.bool_]:
    """Wake-ups of a thread that has a core or waits for one already."""
    is_wake = rows.what == WAKE
    place = np.arange(rows.tid.size)
    # The last row before each that is no wake-up, if it is of the same thread.
    before = np.maximum.accumulate(np.where(is_wake, -1, place))
    has = (before >= 0) & (rows.tid[before] == rows.tid)
    sleeps = ~has | ((rows.what[before] == OUT) & (rows.state[before] != RUNNABLE))
    follows = np.append(False, is_wake[:-1] & (rows.tid[:-1] == rows.tid[1:])) if place.size else is_wake
    idle: NDArray[np.bool_] = is_wake & (~sleeps | follows)
    return idle


def _without_losses(spans: Spans, losses: list[tuple[int, int, int]]) -> Spans:
    """Without time on a core of which events were lost meanwhile, and without waits during which any were."""
    if not losses:
        return spans
    cores, lows, highs = (np.array(column, np.int64) for column in zip(*losses, strict=True))
    bad = spans.is_wait & _overlaps(spans, lows, highs)
    for core in np.unique(cores).tolist():
        mine = cores == core
        bad |= ~spans.is_wait & (spans.core == core) & _overlaps(spans, lows[mine], highs[mine])
    keep = ~bad
    columns = {name: getattr(spans, name)[keep] for name in Spans.__slots__ if not name.startswith("n_")}
    return replace(spans, **columns)


def _overlaps(spans: Spans, lows: Ints, highs: Ints) -> NDArray[np.bool_]:
    low, high = union(lows, np.maximum(highs, lows + 1))
    at = np.searchsorted(high, spans.start_ns, side="right")
    found: NDArray[np.bool_] = np.append(low, np.iinfo(np.int64).max)[at] < spans.end_ns
    return found
