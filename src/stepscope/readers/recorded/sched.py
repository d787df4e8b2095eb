"""Scheduling recorded beside a trace by `stepscope record --sched`: when each thread had a core, or waited for one.

The spans lie on lanes of their own, a lane for each thread, since time on a core begins and ends anywhere within a
function. A trace with events of its own is not made longer by them: they are cut to its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SCHED, SPANS, TRACKS
from stepscope.core.trace import extent_ns
from stepscope.readers.common.issues import Notes
from stepscope.readers.recorded.sched_events import BLOCKED, ENDED, RUNNABLE, SLEEPS, STOPPED, Events, read_events
from stepscope.readers.recorded.sched_spans import PREEMPTED, Spans, spans_of
from stepscope.readers.recorded.side_files import SCHEDULING, recording_of, side_file, with_issues

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]


_WHEN_LOST = {RUNNABLE: "preempted", SLEEPS: "sleeps", BLOCKED: "blocked", STOPPED: "stopped", ENDED: "ended"}
_FAR = 2**62
#: Share of spans that lack from which on what is left says little of the whole.
_MANY = 0.05


def with_sched(trace: Trace, path: str) -> Trace:
    """The trace with the scheduling of its job that lies beside `path`, if it does: lanes, spans, table `sched`.

    What cannot be read or placed is in `issues`.
    """
    side = side_file(path, (SCHEDULING,))
    if side is None:
        return trace
    notes = Notes()
    try:
        events = read_events(side, notes)
    except StepscopeError as error:
        notes.add("sched_unreadable", "warning", 1, error.message)
        return with_issues(trace, notes)
    if trace.meta.origin_unix_ns is None:
        what = "scheduling events: the trace does not say when it began, in Unix time"
        notes.add("sched_unplaced", "warning", events.ts_ns.size, what)
        return with_issues(trace, notes)
    return with_issues(_joined(trace, events, _processes(trace, events, path), notes), notes)


def _joined(trace: Trace, events: Events, pids: set[int], notes: Notes) -> Trace:
    """The trace with spans of threads of these processes."""
    spans = spans_of(events)
    what = f"switches that the kernel did not tell of, of {events.ts_ns.size:,}: what threads did there is not known"
    notes.add("sched_gaps", "warning" if spans.n_gaps > _MANY * spans.tid.size else "info", spans.n_gaps, what)
    what = (
        "switches from an idle core that the kernel did not tell of: the thread counts as having it from its wake-up on"
    )
    notes.add("sched_from_idle", "info", spans.n_from_idle, what)
    first, last = (-_FAR, _FAR) if trace.spans.is_empty() else extent_ns(trace.spans)
    origin = trace.meta.origin_unix_ns or 0
    start = np.maximum(_unix_ns(events, spans.start_ns) - origin, first)
    end = np.minimum(_unix_ns(events, spans.end_ns) - origin, last)
    of_thread, process = np.unique(spans.tid), _process_of(events)
    wanted = np.array([process.get(tid, tid) in pids for tid in of_thread.tolist()], np.bool_)
    at = np.flatnonzero((end > start) & wanted[np.searchsorted(of_thread, spans.tid)])
    if not at.size:
        notes.add("sched_elsewhere", "warning", spans.tid.size, "no thread of the trace was scheduled while it lasts")
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
        sched=_sides(spans, at, ids, events),
    )


def _unix_ns(events: Events, times: Ints) -> Ints:
    """Unix time of times of the monotonic clock, between the moments at which both were read."""
    offsets = events.unix_ns - events.clock_ns
    # A double holds the offset's changes to the nanosecond, not the offset.
    moved: Ints = np.rint(np.interp(times, events.clock_ns, offsets - offsets[0])).astype(np.int64)
    found: Ints = times + offsets[0] + moved
    return found


def _process_of(events: Events) -> dict[int, int]:
    """The process of each thread; of one that lived too shortly to be listed, that of the thread that started it."""
    found = dict(events.process)
    for tid in events.parent:
        line = [tid]
        while line[-1] not in found and events.parent.get(line[-1], tid) not in line:
            line.append(events.parent.get(line[-1], tid))
        found.update(dict.fromkeys(line, found.get(line[-1], line[-1])))
    return found


def _processes(trace: Trace, events: Events, path: str) -> set[int]:
    """Processes of the job that belong to the trace.

    Its own, and those that have no profile of their own and descend from it before any other that has one. Where one
    process alone has a profile, all of the job.
    """
    process = _process_of(events)
    job = {process.get(tid, tid) for tid in (*events.began, *events.parent)}
    threads = trace.tracks.filter(pl.col("kind") == "thread")
    own = set(threads["pid"].drop_nulls().to_list()) & job
    told = recording_of(path).get("processes") or []
    profiled = {one["pid"] for one in told if one.get("torch") and one.get("steps")} & job
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
    seen: set[int] = set()
    while pid not in wanted:
        seen.add(pid)
        if above.get(pid, pid) in seen:
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
    seen: set[int] = set()
    while tid not in events.names and tid not in seen and tid in events.parent:
        seen.add(tid)
        tid = events.parent[tid]
    return events.names.get(tid)


def _names(spans: Spans, at: Ints, events: Events) -> pl.Series:
    """What stands on each span: the core, or behind whom it waits."""
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


def _sides(spans: Spans, at: Ints, ids: pl.Series, events: Events) -> pl.DataFrame:
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
