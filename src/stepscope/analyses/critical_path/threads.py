"""The host's threads and when each is active, and lookups of the last event before a time.

A thread is *active* while an operator, a call, a data loader or the like is open on it. Else it is *quiet*: nothing is
open, or only marks of steps, named ranges or Python. A quiet thread waits, or runs code that the trace does not show.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import in_rows
from stepscope.core.collectives import HOST_LIBRARIES, library_of
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, Ints, enclosing, union
from stepscope.core.names import map_names
from stepscope.core.schema import CATEGORIES, DEVICE_WORK

#: Times before and after all others.
LONG_AGO, FAR_OFF = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: A wait of at least this needs a reason of its own, as in `idle`.
LONG_GAP_NS = 30_000
_MOST_TRACKS = 16_384


_QUIET = ("step", "user_range", "module", "python")
_NOT_HOST = (*DEVICE_WORK, "device_range", "sched_oncpu", "sched_runq")
_HOST = tuple(category for category in CATEGORIES if category not in _NOT_HOST)
_ACTIVE = tuple(category for category in _HOST if category not in _QUIET)


class Threads(msgspec.Struct, frozen=True):
    """Spans of host threads, sorted by thread and start; those of thread t are `cuts[t]:cuts[t + 1]`. Times in ns."""

    track: Ints
    cuts: Ints
    row: Ints
    start: Ints
    end: Ints
    parent: Ints  # innermost span open at its start, as an index into these arrays; -1 if none
    active: tuple[Intervals, ...]  # of each thread
    n_active: Ints  # number of active spans of each thread
    collectives: Ints  # which of these spans are collectives that run on the host

    def of(self, thread: int) -> slice:
        """The slice of the spans of a thread."""
        return slice(int(self.cuts[thread]), int(self.cuts[thread + 1]))

    def codes(self, tracks: Ints) -> Ints:
        """The thread of each track; -1 if it is none."""
        if self.track.size == 0:
            return np.full(tracks.size, -1, np.int64)
        at = np.minimum(np.searchsorted(self.track, tracks), self.track.size - 1)
        return np.where(self.track[at] == tracks, at, -1)


def host_threads(spans: pl.DataFrame, tracks: pl.DataFrame) -> Threads:
    """The threads with spans of the host. `spans` and `tracks` are the trace's tables.

    Raises MissingTable if there are more threads and streams than a program has: each is looked at by itself.
    """
    if tracks.height > _MOST_TRACKS:
        what = f"at most {_MOST_TRACKS:,} threads and streams"
        raise MissingTable(what, needed_by="critical-path", hint=f"this trace has {tracks.height:,}")
    lanes = tracks["track_id"].filter(tracks["kind"] == "thread")
    wanted = spans["category"].is_in(_HOST) & spans["track_id"].is_in(lanes.implode())
    row = np.flatnonzero(wanted.to_numpy())
    lane = spans["track_id"].to_numpy()[row].astype(np.int64)
    start = spans["ts_ns"].to_numpy()[row]
    end = start + spans["dur_ns"].to_numpy()[row]
    track = lane[np.flatnonzero(np.diff(lane, prepend=-1))]
    cuts = np.append(np.searchsorted(lane, track), lane.size)
    is_active = spans["category"].is_in(_ACTIVE).to_numpy()[row]
    collectives = host_collectives(spans, row)
    is_active[collectives] = True
    active, n_active = [], []
    for low, high in pairwise(cuts):
        mine = is_active[low:high]
        active.append(union(start[low:high][mine], end[low:high][mine]))
        n_active.append(int(mine.sum()) if active[-1][0].size else 0)  # calls of no length are not active
    parent = enclosing(start, end, lane)
    return Threads(track, cuts, row, start, end, parent, tuple(active), np.array(n_active, np.int64), collectives)


def host_collectives(spans: pl.DataFrame, rows: Ints) -> Ints:
    """Indices of those of these rows of spans that are collectives which run on the host."""
    category = in_rows(spans["category"], rows)
    ranges = np.flatnonzero(((category == "operator") | (category == "user_range")).to_numpy())
    names = in_rows(spans["name"], rows[ranges])
    mine: Ints = ranges[map_names(names, lambda name: library_of(name) in HOST_LIBRARIES, pl.Boolean()).to_numpy()]
    return mine


def latest(groups: Ints, times: Ints, at_groups: Ints, at: Ints) -> Ints:
    """For each query the last row of its group with a time <= `at`; -1 if none. Rows are sorted by (group, time)."""
    n = groups.size
    rows = np.full(at.size, -1, np.int64)
    if n == 0 or at.size == 0:
        return rows
    # lexsort is stable, so rows come before queries of the same group and time.
    order = np.lexsort((np.concatenate((times, at)), np.concatenate((groups, at_groups))))
    is_row = order < n
    before = np.maximum.accumulate(np.where(is_row, order, -1))[~is_row]
    rows[order[~is_row] - n] = before
    rows[(rows >= 0) & (groups[rows] != at_groups)] = -1
    return rows


def last_ended(rows: tuple[Ints, Ints, Ints], queries: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """For each query the row of its group that ended last within (after, at] and was queued no later than `by`, or -1.

    `rows` are (group, end, queued), `queries` are (group, after, at, by).
    """
    group, end, queued = rows
    wanted, after, at, by = queries
    order = np.lexsort((end, group))
    place = latest(group[order], end[order], wanted, at)
    pending = np.flatnonzero(place >= 0)
    # Work that another thread queued later may have ended in between: step back past it.
    while pending.size:
        row = order[place[pending]]
        gone = (group[row] != wanted[pending]) | (end[row] <= after[pending])
        place[pending[gone]] = -1
        pending = pending[~gone & (queued[row] > by[pending])]
        place[pending] -= 1
        pending = pending[place[pending] >= 0]
    ended = np.full(at.size, -1, np.int64)
    held = place >= 0
    ended[held] = order[place[held]]
    return ended
