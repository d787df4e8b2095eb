"""The host's threads as the critical path sees them: what is open on them, and when.

A thread is *active* while an operator, a call, a data loader or the like is open on it, else *quiet*: only marks of
steps, named ranges or Python are open, or nothing. A quiet thread runs what the trace does not show, or waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.collectives import HOST_LIBRARIES, library_of
from stepscope.core.intervals import Intervals, enclosing, union
from stepscope.core.names import map_names
from stepscope.core.schema import CATEGORIES, DEVICE_WORK

Ints = NDArray[np.int64]

_QUIET = ("step", "user_range", "module", "python")
_NOT_HOST = (*DEVICE_WORK, "device_range", "sched_oncpu", "sched_runq")
_HOST = tuple(category for category in CATEGORIES if category not in _NOT_HOST)
_ACTIVE = tuple(category for category in _HOST if category not in _QUIET)


@dataclass(frozen=True, slots=True)
class Threads:
    """Spans of host threads in order of thread and start. `cuts[t]:cuts[t + 1]` are those of thread t; times in ns."""

    track: Ints
    cuts: Ints
    row: Ints
    start: Ints
    end: Ints
    parent: Ints  # innermost span open at its start, as an index into these arrays, -1 if none
    active: tuple[Intervals, ...]  # of each thread
    n_active: Ints  # how many active spans each thread has

    def of(self, thread: int) -> slice:
        """Where the spans of a thread are."""
        return slice(int(self.cuts[thread]), int(self.cuts[thread + 1]))

    def codes(self, tracks: Ints) -> Ints:
        """The thread of each track, -1 where it is none."""
        if self.track.size == 0:
            return np.full(tracks.size, -1, np.int64)
        at = np.minimum(np.searchsorted(self.track, tracks), self.track.size - 1)
        return np.where(self.track[at] == tracks, at, -1)


def host_threads(spans: pl.DataFrame, tracks: pl.DataFrame) -> Threads:
    """The threads that hold any span of the host. `spans` and `tracks` are the trace's tables."""
    lanes = tracks.filter(pl.col("kind") == "thread")["track_id"]
    wanted = spans["category"].is_in(_HOST) & spans["track_id"].is_in(lanes.implode())
    row = np.flatnonzero(wanted.to_numpy())
    lane = spans["track_id"].to_numpy()[row].astype(np.int64)
    start = spans["ts_ns"].to_numpy()[row]
    end = start + spans["dur_ns"].to_numpy()[row]
    track = lane[np.flatnonzero(np.diff(lane, prepend=-1))]
    cuts = np.append(np.searchsorted(lane, track), lane.size)
    is_active = spans["category"].is_in(_ACTIVE).to_numpy()[row]
    is_active[exchanges(spans, row)] = True
    active, n_active = [], []
    for low, high in pairwise(cuts):
        mine = is_active[low:high]
        active.append(union(start[low:high][mine], end[low:high][mine]))
        n_active.append(int(mine.sum()))
    return Threads(
        track, cuts, row, start, end, enclosing(start, end, lane), tuple(active), np.array(n_active, np.int64)
    )


def exchanges(spans: pl.DataFrame, rows: Ints) -> Ints:
    """Which of these rows of spans are ranges in which the host exchanges data with other ranks, as indices."""
    ranges = np.flatnonzero(spans["category"].gather(rows).is_in(("user_range", "operator")).to_numpy())
    found = map_names(spans["name"].gather(rows[ranges]), lambda name: library_of(name) in HOST_LIBRARIES, pl.Boolean())
    mine: Ints = ranges[found.to_numpy()]
    return mine
