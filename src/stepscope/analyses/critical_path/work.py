"""What each piece of device work waited for before it began.

Work depends on the host call that queued it, on the previous work of its stream, and on work of other streams if a wait
for an event was queued in between or one graph holds both. The dependency that was met last held it up. If that leaves
a long gap in which other work ran on the device, it waited for that work: for its end, or for free resources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import in_rows, is_captured, of_spans, row_numbers
from stepscope.analyses.critical_path.threads import FAR_OFF, LONG_AGO, LONG_GAP_NS, Threads, last_ended, latest
from stepscope.core.intervals import NO_ROW, Bools, Intervals, Ints, locate
from stepscope.core.names import map_names
from stepscope.core.table import integers, is_any_of

#: What held up a piece of work: previous work of its stream, work of another stream, its launch, or unknown.
BEFORE, ACROSS, LAUNCH, NOTHING = range(4)
#: The kind of the gap before a piece of work.
LAUNCH_DELAY, KERNEL_WAIT, UNEXPLAINED = range(3)
WAITS = ("launch_delay", "kernel_wait", "unexplained")


class Work(msgspec.Struct, frozen=True):
    """Kernels, copies and fills, sorted by track and start; times in ns, -1 for none."""

    row: Ints
    sort: Ints  # COMPUTATION, COMMUNICATION, MEMCPY
    track: Ints
    device: Ints
    start: Ints
    end: Ints
    call: Ints  # row of the host call that queued it
    thread: Ints  # of that call
    called: Ints  # when the call began; LONG_AGO if unknown
    returned: Ints  # when it ended
    before: Ints  # of the work of its stream that began before, the one that ends last


class Held(msgspec.Struct, frozen=True):
    """What held up each piece of work, and until when; times in ns."""

    by: Ints  # BEFORE, ACROSS, LAUNCH or NOTHING
    at: Ints  # LONG_AGO for NOTHING
    wait: Ints  # kind of the time from then to its start: LAUNCH_DELAY, KERNEL_WAIT or UNEXPLAINED
    across: Ints  # the work of another stream that it may have waited for; -1 if none
    submitted: Ints  # when the call had queued it; LONG_AGO if unknown
    crossing: tuple[Ints, Ints]  # all pairs of work and work of other streams that had to end first


def path_work(work: pl.DataFrame, spans: pl.DataFrame, threads: Threads) -> Work:
    """The work with its calls. `work` is what `device_work` returns, in the order of `spans`."""
    track, device, start, end, sort = (integers(work[c]) for c in ("track_id", "device_id", "ts_ns", "end_ns", "sort"))
    calls = [of_spans(spans, work["launch_id"], column) for column in ("ts_ns", "dur_ns")]
    lane = integers(of_spans(spans, work["launch_id"], "track_id"))
    thread = threads.codes(lane)
    # A call outside all threads says nothing about the host.
    known = thread >= 0
    called, returned = (
        np.where(known, times.fill_null(0).to_numpy(), LONG_AGO) for times in (calls[0], calls[0] + calls[1])
    )
    call = np.where(known, rows_of(spans, work["launch_id"]), -1)
    row, before = rows_of(spans, work["span_id"]), _ends_last(track, end)
    return Work(row, sort, track, device, start, end, call, thread, called, returned, before)


def held_up(work: Work, crossing: tuple[Ints, Ints]) -> Held:
    """The dependency of each piece of work that was met last. `crossing` is what `crossings` returns.

    Work is queued when its call ends. If it began before that: when the call began, if the previous work of its stream
    was still running then, else when the work itself began.
    """
    before = np.where(work.before >= 0, np.minimum(work.end[work.before], work.start), LONG_AGO)
    inside = np.where(before >= work.called, work.called, work.start)
    submitted = np.where(work.returned <= work.start, work.returned, inside)
    submitted = np.where(work.call >= 0, submitted, LONG_AGO)
    across = np.full(work.start.size, -1, np.int64)
    until = np.full(work.start.size, LONG_AGO)
    ready = np.maximum(before, submitted)
    rows = np.flatnonzero(_in_graph(work))
    across[rows] = _ended_last(work, rows, until)
    until[rows] = np.append(work.end, LONG_AGO)[across[rows]]
    order = np.argsort(work.end[crossing[1]], kind="stable")
    later, earlier = crossing[0][order], crossing[1][order]
    last = work.end[earlier] >= until[later]
    across[later[last]], until[later[last]] = earlier[last], work.end[earlier[last]]
    rows = np.flatnonzero((work.call >= 0) & (work.start - np.maximum(ready, until) >= LONG_GAP_NS))
    runs = _running(work, rows)
    awaited = np.where(runs >= 0, runs, _ended_last(work, rows, ready))
    rows, awaited = rows[awaited >= 0], awaited[awaited >= 0]
    across[rows], until[rows] = awaited, np.minimum(work.end[awaited], work.start[rows])
    # What nothing is known of follows the work of its device, as the thread that queued it did.
    rows = np.flatnonzero(np.maximum(ready, until) == LONG_AGO)
    awaited = _ended_last(work, rows, until, np.full(rows.size, FAR_OFF))
    rows, awaited = rows[awaited >= 0], awaited[awaited >= 0]
    across[rows], until[rows] = awaited, work.end[awaited]
    choices = np.stack((before, until, submitted))
    at = choices.max(axis=0, initial=LONG_AGO)
    by = np.where(at > LONG_AGO, choices.argmax(axis=0), NOTHING)
    return Held(by, at, _waits(work, by, at), across, submitted, crossing)


def _waits(work: Work, by: Ints, at: Ints) -> Ints:
    """The kind of the gap before each piece. A device's first work may wait for work from before the recording."""
    is_short = (by != NOTHING) & (work.start - at < LONG_GAP_NS)
    began = np.full(int(work.device.max(initial=0)) + 2, FAR_OFF)
    np.minimum.at(began, work.device, work.start)
    is_launch = (by == LAUNCH) & (is_short | (work.start > began[work.device]))
    return np.select([is_launch, is_short & (work.call >= 0)], [LAUNCH_DELAY, KERNEL_WAIT], UNEXPLAINED)


def rows_of(spans: pl.DataFrame, ids: pl.Series) -> Ints:
    """The rows of the spans with these ids; -1 for null."""
    rows = row_numbers(spans["span_id"], ids).astype(np.int64)
    return np.where(rows == NO_ROW, -1, rows)


def called_within(spans: pl.DataFrame, work: Work, held: Sequence[Intervals]) -> Bools:
    """The device work that was called for within these times on the threads that queued it.

    In a replayed graph that is when its operator stands in the call.
    """
    operator = rows_of(spans, in_rows(spans["op_id"], work.row))
    in_graph = is_captured(spans)[operator] & (operator >= 0) if spans.height else operator >= 0
    called = np.where(in_graph, spans["ts_ns"].to_numpy()[operator], work.called)
    mine = np.zeros(work.row.size, np.bool_)
    for thread, times in enumerate(held):
        rows = np.flatnonzero(work.thread == thread)
        mine[rows] = locate(times, called[rows]) >= 0
    return mine


def calls_like(spans: pl.DataFrame, wanted: Callable[[str], bool]) -> Ints:
    """Rows of the runtime or driver calls for whose name `wanted` holds."""
    calls = np.flatnonzero(is_any_of(spans["category"], ("runtime", "driver")).to_numpy())
    rows: Ints = calls[map_names(in_rows(spans["name"], calls), wanted, pl.Boolean()).to_numpy()]
    return rows


#: A call this much longer than the median one, with nothing queued before it, loads a kernel for its first use. So
#: does an operator whose own time on the host is this much longer than usual, if it is the first one of its name.
FIRST_USE_NS, FIRST_USE_RATIO = 1_000_000, 50


def warmed_up(work: Work, rows: Ints, calls: Ints) -> Ints:
    """When the calls of this work return if none loads a kernel, which runs before the capture do.

    `rows` are all work whose calls a graph replaces.
    """
    usual = int(np.median(work.returned[rows] - work.called[rows])) if rows.size else 0
    long = work.returned[calls] - work.called[calls] > max(FIRST_USE_NS, FIRST_USE_RATIO * usual)
    before = np.where(work.before[calls] >= 0, work.end[work.before[calls]], LONG_AGO)
    return np.where(long & (before <= work.called[calls]), work.called[calls] + usual, work.returned[calls])


def _ends_last(groups: Ints, end: Ints) -> Ints:
    """For each row the earlier one of its group, whose rows are adjacent, that ends last; −1 for the first."""
    lasting = np.full(end.size, -1, np.int64)
    heads = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])[: end.size])
    for low, high in pairwise(np.append(heads, end.size)):
        mine = end[low:high]
        is_last = mine == np.maximum.accumulate(mine)
        lasting[low + 1 : high] = low + np.maximum.accumulate(np.where(is_last, np.arange(mine.size), 0))[:-1]
    return lasting


def _ended_last(work: Work, rows: Ints, after: Ints, by: Ints | None = None) -> Ints:
    """For each of `rows` the work of its device that ended last, after `after` and before it began; -1 if none.

    It was queued no later than `by`, or than the row itself.
    """
    lasting = np.flatnonzero(work.end > work.start)
    ends = work.device[lasting], work.end[lasting], work.called[lasting]
    by = work.called[rows] if by is None else by
    at = last_ended(ends, (work.device[rows], after[rows], work.start[rows], by))
    return np.append(lasting, -1)[at]


def _running(work: Work, rows: Ints) -> Ints:
    """For each of `rows` earlier work of its device and kind that was still running when it began; -1 if none."""
    lane = work.device * 3 + work.sort
    order = np.lexsort((work.start, lane))
    ends = work.end[order]
    begun = latest(lane[order], work.start[order], lane[rows], work.start[rows] - 1)
    # Of all up to there the one that ends last: the latest itself, or one that outlasts it.
    outlasting = np.append(_ends_last(lane[order], ends), -1)[begun]
    ends, order = np.append(ends, LONG_AGO), np.append(order, -1)
    last = np.where(ends[outlasting] > ends[begun], outlasting, begun)
    return np.where(ends[last] > work.start[rows], order[last], -1)


def _in_graph(work: Work) -> Bools:
    """Whether a piece is one of several that one call queued."""
    calls, sizes = np.unique(work.call, return_counts=True)
    several: Bools = (work.call >= 0) & (sizes[np.searchsorted(calls, work.call)] > 1)
    return several
