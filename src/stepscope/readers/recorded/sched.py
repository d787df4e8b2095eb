"""Scheduling that `stepscope record --sched` recorded with a trace: when each thread had a core, or waited for one.

The spans have lanes of their own, one for each thread, since time on a core begins and ends anywhere within a
function. A trace with events of its own is not made longer by them: they are cut to its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.core.arrays import distinct_values
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import union
from stepscope.core.patterns import regex
from stepscope.core.schema import SCHED, SPANS, TRACKS
from stepscope.core.trace import extent_ns
from stepscope.readers.common.source import IssueLog, with_issues
from stepscope.readers.recorded import SCHEDULING, recording_of, side_file
from stepscope.readers.recorded.sched_events import (
    BLOCKED,
    ENDED,
    IN,
    OUT,
    RUNNABLE,
    SLEEPS,
    STOPPED,
    WAKE,
    Events,
    read_events,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.core.trace import Trace
    from stepscope.readers.recorded.sched_events import Events


Ints = NDArray[np.int64]

#: Why a wait began.
PREEMPTED, WOKEN = 0, 1
#: `state` of a thread that had the core when the recording ended.
AT_END = -1
_END = 3
#: Names of the kernel's own threads that come often and stay shortly.
_OF_KERNEL = regex(
    r"(?:kworker|ksoftirqd|migration|irq|cpuhp|watchdog|rcu_\w+|rcuo\w|kcompactd|kswapd|jbd2|khugepaged)(?:/|\d*$)"
)
_NEVER = np.iinfo(np.int64).max
_WHEN_LOST = {RUNNABLE: "preempted", SLEEPS: "sleeps", BLOCKED: "blocked", STOPPED: "stopped", ENDED: "ended"}
_FAR = 2**62
#: Share of spans that lack from which on what is left says little of the whole.
_MANY = 0.05


class Spans(msgspec.Struct, frozen=True):
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
    n_without_event = _from_idle(rows)
    n = max(rows.ts.size - 1, 0)
    a, b = _Rows(*(column[:n] for column in rows.columns())), _Rows(*(column[1:] for column in rows.columns()))
    same = a.tid == b.tid
    runs = same & (a.what == IN) & (((b.what == OUT) & (a.core == b.core)) | (b.what == _END))
    waits = same & a.is_ready() & ((b.what == IN) | (b.what == _END))
    if n_without_event:  # so may have been what followed the last wake-up
        waits &= (a.what == OUT) | (b.what == IN)
    at = np.flatnonzero(runs | waits)
    # What follows must follow: a core is lost by who has one, and given to who has none.
    gaps = same & ~runs & ((b.what == OUT) | ((a.what == IN) & (b.what == IN)))
    is_wait, why = waits[at], np.where(a.what[at] == OUT, PREEMPTED, WOKEN)
    until_end = b.what[at] == _END
    # An event of losing the core names the next thread; an event of getting it names the previous one. A thread of
    # the kernel takes the core for a moment only: if one came first, the last one is more to blame.
    kernel = np.array([tid for tid, name in events.names.items() if _OF_KERNEL.match(name)], np.int64)
    brief = np.isin(a.other[at], kernel) & (b.what[at] == IN) & (b.other[at] > 0)
    preempted_first = is_wait & (why == PREEMPTED) & ~brief
    spans = Spans(
        a.tid[at],
        a.ts[at],
        b.ts[at],
        is_wait,
        np.where(is_wait, np.where(until_end, -1, b.core[at]), a.core[at]),
        np.where(is_wait | until_end, AT_END, b.state[at]),
        why,
        np.where(preempted_first, a.other[at], np.where(until_end, -1, b.other[at])),
        int(gaps.sum()),
        n_without_event,
    )
    return _without_losses(spans, events.losses)


class _Rows(msgspec.Struct, frozen=True):
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
    """The events that change something, with those at the recording's start and end.

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
    """Turns wake-ups that are followed by the loss of a core into getting it, in place. Returns their number."""
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
    """Drops time on a core, and waits, during which events were lost."""
    if not losses:
        return spans
    cores, lows, highs = (np.array(column, np.int64) for column in zip(*losses, strict=True))
    bad = spans.is_wait & _overlaps(spans, lows, highs)
    for core in distinct_values(cores).tolist():
        mine = cores == core
        bad |= ~spans.is_wait & (spans.core == core) & _overlaps(spans, lows[mine], highs[mine])
    keep = ~bad
    columns = {name: getattr(spans, name)[keep] for name in Spans.__struct_fields__ if not name.startswith("n_")}
    return replace(spans, **columns)


def _overlaps(spans: Spans, lows: Ints, highs: Ints) -> NDArray[np.bool_]:
    low, high = union(lows, np.maximum(highs, lows + 1))
    at = np.searchsorted(high, spans.start_ns, side="right")
    overlaps: NDArray[np.bool_] = np.append(low, np.iinfo(np.int64).max)[at] < spans.end_ns
    return overlaps


def with_sched(trace: Trace, path: str) -> Trace:
    """The trace with the scheduling recorded in the folder of `path`, if any; what is unreadable is in `issues`."""
    side = side_file(path, (SCHEDULING,))
    if side is None:
        return trace
    issues = IssueLog()
    try:
        events = read_events(side, issues)
    except StepscopeError as error:
        issues.add("sched_unreadable", "warning", 1, error.message)
        return with_issues(trace, issues)
    if trace.meta.origin_unix_ns is None:
        what = "scheduling events: the trace does not say when it began, in Unix time"
        issues.add("sched_unplaced", "warning", events.ts_ns.size, what)
        return with_issues(trace, issues)
    return with_issues(_joined(trace, events, _processes(trace, events, path), issues), issues)


def _joined(trace: Trace, events: Events, pids: set[int], issues: IssueLog) -> Trace:
    """The trace with spans of threads of these processes."""
    spans = spans_of(events)
    what = f"switches that the kernel did not report, of {events.ts_ns.size:,}: what threads did there is unknown"
    issues.add("sched_gaps", "warning" if spans.n_gaps > _MANY * spans.tid.size else "info", spans.n_gaps, what)
    what = "switches from an idle core that the kernel did not report: the thread counts as running from its wake-up on"
    issues.add("sched_from_idle", "info", spans.n_from_idle, what)
    first, last = (-_FAR, _FAR) if trace.spans.is_empty() else extent_ns(trace.spans)
    origin = trace.meta.origin_unix_ns or 0
    start = np.maximum(_unix_ns(events, spans.start_ns) - origin, first)
    end = np.minimum(_unix_ns(events, spans.end_ns) - origin, last)
    of_thread, process = distinct_values(spans.tid), _process_of(events)
    wanted = np.array([process.get(tid, tid) in pids for tid in of_thread.tolist()], np.bool_)
    at = np.flatnonzero((end > start) & wanted[np.searchsorted(of_thread, spans.tid)])
    if not at.size:
        issues.add("sched_elsewhere", "warning", spans.tid.size, "no thread of the trace was scheduled during it")
        return trace
    tids, lane = np.unique(spans.tid[at], return_inverse=True)
    tracks = _tracks(trace, tids.tolist(), process, events)
    n_before = trace.spans.height
    ids = pl.Series(np.arange(n_before, n_before + at.size), dtype=pl.UInt32)
    names = _names(spans, at, events)
    is_wait = pl.Series(spans.is_wait[at])
    rows = pl.DataFrame({
        "span_id": ids,
        "track_id": lane + trace.tracks.height,
        "ts_ns": start[at],
        "dur_ns": end[at] - start[at],
        "name": names,
    }).with_columns(
        category=pl.when(is_wait).then(pl.lit("sched_runq")).otherwise(pl.lit("sched_oncpu")),
        recorded_category=pl.when(is_wait).then(pl.lit("runq")).otherwise(pl.lit("oncpu")),
    )  # fmt: skip
    return trace.with_tables(
        tracks=pl.concat([TRACKS.conform(trace.tracks), tracks]),
        spans=pl.concat([SPANS.conform(trace.spans), SPANS.conform(rows)]),
        sched=_sched_table(spans, at, ids, events),
    )


def _unix_ns(events: Events, times: Ints) -> Ints:
    """Unix time of times of the monotonic clock, between the moments at which both were read."""
    offsets = events.unix_ns - events.clock_ns
    # A double holds the offset's changes to the nanosecond, not the offset.
    moved: Ints = np.rint(np.interp(times, events.clock_ns, offsets - offsets[0])).astype(np.int64)
    unix_ns: Ints = times + offsets[0] + moved
    return unix_ns


def _process_of(events: Events) -> dict[int, int]:
    """The process of each thread. A thread too short-lived to be listed has that of the thread that started it."""
    processes = dict(events.process)
    for tid in events.parent:
        line = [tid]
        while line[-1] not in processes and events.parent.get(line[-1], tid) not in line:
            line.append(events.parent.get(line[-1], tid))
        processes.update(dict.fromkeys(line, processes.get(line[-1], line[-1])))
    return processes


def _processes(trace: Trace, events: Events, path: str) -> set[int]:
    """Processes of the job that belong to the trace.

    Its own, and those that have no profile of their own and descend from it before any other that has one. Where one
    process alone has a profile, all of the job.
    """
    process = _process_of(events)
    job = {process.get(tid, tid) for tid in (*events.began, *events.parent)}
    threads = trace.tracks.filter(pl.col("kind") == "thread")
    own = set(threads["pid"].drop_nulls().to_list()) & job
    processes = recording_of(path).get("processes") or []
    profiled = {one["pid"] for one in processes if one.get("torch") and one.get("steps")} & job
    if not own or profiled <= own:
        return job
    above = {
        process.get(tid, tid): process.get(by, by)
        for tid, by in events.parent.items()
        if process.get(tid, tid) == tid  # the first thread of a process
    }
    return {pid for pid in job if _nearest(pid, above, own | profiled) in own}


def _nearest(pid: int, above: dict[int, int], wanted: Collection[int]) -> int | None:
    """The first of some processes on the way up from one."""
    visited: set[int] = set()
    while pid not in wanted:
        visited.add(pid)
        if above.get(pid, pid) in visited:
            return None
        pid = above[pid]
    return pid


def _tracks(trace: Trace, tids: list[int], process: dict[int, int], events: Events) -> pl.DataFrame:
    """A lane for each thread."""
    known = trace.tracks.drop_nulls("pid").unique("pid", keep="first", maintain_order=True)
    names = dict(known.select("pid", "process").iter_rows())
    rows = []
    for number, tid in enumerate(tids, trace.tracks.height):
        pid = process.get(tid, tid)
        rows.append(
            {
                "track_id": number,
                "rank": trace.rank,
                "host": trace.meta.host,
                "pid": pid,
                "tid": tid,
                "kind": "other",
                "process": names.get(pid) or _name(pid, events),
                "label": f"{_name(tid, events) or 'thread'} {tid} · cores",
            }
        )
    schema = {name: dtype for name, dtype in TRACKS.dtypes.items() if name in rows[0]}
    return TRACKS.conform(pl.DataFrame(rows, schema=schema))


def _name(tid: int, events: Events) -> str | None:
    """The name of a thread, or of the one that started it: it has that one's until it takes another."""
    visited: set[int] = set()
    while tid not in events.names and tid not in visited and tid in events.parent:
        visited.add(tid)
        tid = events.parent[tid]
    return events.names.get(tid)


def _names(spans: Spans, at: Ints, events: Events) -> pl.Series:
    """The name of each span: the core, or the thread that it waits for."""
    core, other, is_wait = spans.core[at], spans.other[at], spans.is_wait[at]
    keys, place = np.unique(np.where(is_wait, np.maximum(other, 0) * 2 + 1, core * 2), return_inverse=True)
    own = {*events.began, *events.parent}

    def text(key: int) -> str:
        if key % 2 == 0:
            return f"core {key // 2}"
        name = _name(key // 2, events) if key > 1 else None
        if name is None:
            return "waits for a core"
        return f"waits behind {'own ' if key // 2 in own else ''}{name}"

    return pl.Series([text(key) for key in keys.tolist()], dtype=pl.Categorical()).gather(place)


def _sched_table(spans: Spans, at: Ints, ids: pl.Series, events: Events) -> pl.DataFrame:
    """The table `sched`."""
    core, other, is_wait = spans.core[at], spans.other[at], spans.is_wait[at]
    known = pl.Series(other > 0)
    distinct, place = np.unique(other, return_inverse=True)
    names = pl.Series([_name(tid, events) for tid in distinct.tolist()], dtype=pl.String).gather(place)
    own = np.array([tid in events.began or tid in events.parent for tid in distinct.tolist()], np.bool_)
    reason = pl.Series(spans.state[at]).replace_strict(_WHEN_LOST, default=None, return_dtype=pl.String)
    why = pl.when(pl.Series(spans.why[at]) == PREEMPTED).then(pl.lit("preempted")).otherwise(pl.lit("woken"))
    frame = pl.DataFrame({"span_id": ids, "core": core, "other_tid": other, "reason": reason}).with_columns(
        core=pl.when(pl.col("core") >= 0).then("core"),
        reason=pl.when(pl.Series(is_wait)).then(why).otherwise("reason"),
        other=pl.when(known).then(names),
        other_tid=pl.when(known).then("other_tid"),
        other_is_own=pl.when(known).then(pl.Series(own).gather(place)),
    )
    return SCHED.conform(frame)
