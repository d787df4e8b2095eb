"""Device work as the critical path sees it: what each piece waited for before it began.

A piece may depend on the host call that queued it, on the work before it on its stream, and on work of other streams,
if a wait for an event was queued in between or if a graph holds both. Of these the last to happen held it up. Where
that leaves a long gap although other work ran on the device, it waited for that: for its end, or for room.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import of_spans
from stepscope.analyses.critical_path.threads import FAR_OFF, LONG_AGO, LONG_GAP_NS, Threads, last_ended, latest
from stepscope.core.intervals import Bools, Ints
from stepscope.core.names import map_names

_WAIT_CALL = re.compile(r"StreamWaitEvent|QueueWaitNotifier|EnqueueEventsWait")


#: What held up a piece of work: the work before it on its stream, work of another stream, its launch; or unknown.
BEFORE, ACROSS, LAUNCH, NOTHING = range(4)
#: What a gap before a piece of work is, of the kinds of pieces.
LAUNCH_DELAY, KERNEL_WAIT, UNEXPLAINED = range(3)
WAITS = ("launch_delay", "kernel_wait", "unexplained")


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels, copies and fills in order of track and start; times in ns, -1 where there is none."""

    row: Ints
    sort: Ints  # COMPUTATION, COMMUNICATION, MEMCPY
    track: Ints
    device: Ints
    start: Ints
    end: Ints
    call: Ints  # row of the host call that queued it
    thread: Ints  # of that call
    called: Ints  # when the call began, LONG_AGO if unknown
    returned: Ints  # when it ended
    before: Ints  # the work of its stream that holds it up: of all that began before, the one that ends last


@dataclass(frozen=True, slots=True)
class Held:
    """What held up each piece of work, and until when; times in ns."""

    by: Ints  # BEFORE, ACROSS, LAUNCH or NOTHING
    at: Ints  # LONG_AGO for NOTHING
    wait: Ints  # what the time from then to its start is: LAUNCH_DELAY, KERNEL_WAIT or UNEXPLAINED
    across: Ints  # the work of another stream that it may have waited for, -1 if none
    submitted: Ints  # when the call had queued it, as far as the trace tells; LONG_AGO if unknown


def path_work(work: pl.DataFrame, spans: pl.DataFrame, threads: Threads) -> Work:
    """`work`, which is what `device_work` returns in the order of `spans`, with its calls."""
    track, device, start, end, sort = (
        work[c].cast(pl.Int64).fill_null(-1).to_numpy() for c in ("track_id", "device_id", "ts_ns", "end_ns", "sort")
    )
    calls = [of_spans(spans, work["launch_id"], column) for column in ("ts_ns", "dur_ns")]
    lane = of_spans(spans, work["launch_id"], "track_id").cast(pl.Int64).fill_null(-1).to_numpy()
    thread = threads.codes(lane)
    # A call that lies on no thread tells nothing about the host.
    known = thread >= 0
    called, returned = (
        np.where(known, times.fill_null(0).to_numpy(), LONG_AGO) for times in (calls[0], calls[0] + calls[1])
    )
    call = np.where(known, rows_of(spans, work["launch_id"]), -1)
    row, before = rows_of(spans, work["span_id"]), _ends_last(track, end)
    return Work(row, sort, track, device, start, end, call, thread, called, returned, before)


def held_up(work: Work, spans: pl.DataFrame) -> Held:
    """Of what each piece of work depends on, what happened last.

    A launch happens when its call ends, or if the work began before that, as it begins. Only then, if the work before
    it ended after the call had begun, the call is taken to have queued it in time.
    """
    before = np.where(work.before >= 0, np.minimum(work.end[work.before], work.start), LONG_AGO)
    inside = np.where(before >= work.called, work.called, work.start)
    submitted = np.where(work.returned <= work.start, work.returned, inside)
    submitted = np.where(work.call >= 0, submitted, LONG_AGO)
    across = np.full(work.start.size, -1, np.int64)
    until = np.full(work.start.size, LONG_AGO)
    ready = np.maximum(before, submitted)
    rows = np.flatnonzero(_may_wait(work, spans))
    across[rows] = _ended_last(work, rows, until)
    until[rows] = np.append(work.end, LONG_AGO)[across[rows]]
    rows = np.flatnonzero((work.call >= 0) & (work.start - np.maximum(ready, until) >= LONG_GAP_NS))
    runs = _running(work, rows)
    found = np.where(runs >= 0, runs, _ended_last(work, rows, ready))
    rows, found = rows[found >= 0], found[found >= 0]
    across[rows], until[rows] = found, np.minimum(work.end[found], work.start[rows])
    choices = np.stack((before, until, submitted))
    at = choices.max(axis=0, initial=LONG_AGO)
    by = np.where(at > LONG_AGO, choices.argmax(axis=0), NOTHING)
    return Held(by, at, _waits(work, by, at), across, submitted)


def _waits(work: Work, by: Ints, at: Ints) -> Ints:
    """What the time until each piece began is. Work from before the recording may be in the way of a device's first."""
    is_short = (by != NOTHING) & (work.start - at < LONG_GAP_NS)
    began = np.full(int(work.device.max(initial=0)) + 2, FAR_OFF)
    np.minimum.at(began, work.device, work.start)
    is_launch = (by == LAUNCH) & (is_short | (work.start > began[work.device]))
    return np.select([is_launch, is_short & (work.call >= 0)], [LAUNCH_DELAY, KERNEL_WAIT], UNEXPLAINED)


def rows_of(spans: pl.DataFrame, ids: pl.Series) -> Ints:
    """The rows of the spans with these ids, -1 where the id is null."""
    have = spans["span_id"]
    if spans.height and have[0] == 0 and have[-1] == spans.height - 1 and have.is_sorted():
        rows = ids.cast(pl.Int64)  # ids are row numbers, unless someone has filtered the table
    else:
        rows = of_spans(spans.select("span_id", row=pl.int_range(pl.len(), dtype=pl.Int64)), ids, "row")
    return rows.fill_null(-1).to_numpy()


def calls_like(spans: pl.DataFrame, wanted: Callable[[str], bool]) -> Ints:
    """Rows of the calls of a runtime or driver whose name is wanted."""
    calls = np.flatnonzero(spans["category"].is_in(("runtime", "driver")).to_numpy())
    found: Ints = calls[map_names(spans["name"].gather(calls), wanted, pl.Boolean()).to_numpy()]
    return found


def _ends_last(groups: Ints, end: Ints) -> Ints:
    """For each row the one that ends last of those before it in its group, of several the latest; -1 for the first.

    Rows of a group stand together.
    """
    found = np.full(end.size, -1, np.int64)
    heads = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])[: end.size])
    for low, high in pairwise(np.append(heads, end.size)):
        mine = end[low:high]
        is_last = mine == np.maximum.accumulate(mine)
        found[low + 1 : high] = low + np.maximum.accumulate(np.where(is_last, np.arange(mine.size), 0))[:-1]
    return found


def _ended_last(work: Work, rows: Ints, after: Ints) -> Ints:
    """For each of `rows` the work of its device that ended last after a time and before it began; -1 if none."""
    lasting = np.flatnonzero(work.end > work.start)
    ends = work.device[lasting], work.end[lasting], work.called[lasting]
    found = last_ended(ends, (work.device[rows], after[rows], work.start[rows], work.called[rows]))
    return np.append(lasting, -1)[found]


def _running(work: Work, rows: Ints) -> Ints:
    """For each of `rows` work of its device and sort, begun before, that still ran as it began; -1 if none."""
    lane = work.device * 3 + work.sort
    order = np.lexsort((work.start, lane))
    ends = work.end[order]
    begun = latest(lane[order], work.start[order], lane[rows], work.start[rows] - 1)
    # The one that ends last of all up to there: either the latest itself or what outlasts it.
    outlasting = np.append(_ends_last(lane[order], ends), -1)[begun]
    ends, order = np.append(ends, LONG_AGO), np.append(order, -1)
    last = np.where(ends[outlasting] > ends[begun], outlasting, begun)
    return np.where(ends[last] > work.start[rows], order[last], -1)


def _may_wait(work: Work, spans: pl.DataFrame) -> Bools:
    """Whether a wait for an event was queued between a piece and the one before it, or a graph holds it."""
    calls, sizes = np.unique(work.call, return_counts=True)
    in_graph = (work.call >= 0) & (sizes[np.searchsorted(calls, work.call)] > 1)
    waits = calls_like(spans, lambda name: _WAIT_CALL.search(name) is not None)
    if waits.size == 0:
        return in_graph
    # Where the recorder tells which stream a call made wait, it concerns that one alone; else any.
    told = spans.filter(pl.col("category") == "sync").select("launch_id", "track_id").drop_nulls()
    told_row = rows_of(spans, told["launch_id"])
    told_track = told["track_id"].cast(pl.Int64).to_numpy()
    when = spans["ts_ns"].to_numpy()
    named = np.isin(told_row, waits)
    first = np.where(work.before >= 0, np.append(work.called, LONG_AGO)[work.before], LONG_AGO)
    found = in_graph
    for track in np.unique(work.track):
        of_track = np.union1d(np.setdiff1d(waits, told_row[named]), told_row[named & (told_track == track)])
        times = np.sort(when[of_track])
        mine = np.flatnonzero((work.track == track) & (work.call >= 0))
        n_waits = np.searchsorted(times, work.called[mine]) - np.searchsorted(times, first[mine])
        found[mine] |= n_waits > 0
    return found
