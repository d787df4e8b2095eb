"""Which row of a group came last before a given time: what the dependencies of the critical path are found by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Times before and after all others.
LONG_AGO, FAR_OFF = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: A wait from here on needs a reason of its own, as in `idle`.
LONG_GAP_NS = 30_000


def latest(groups: Ints, times: Ints, at_groups: Ints, at: Ints) -> Ints:
    """For each query the last row of its group with a time <= at, -1 if none. Rows are sorted by (group, time)."""
    n = groups.size
    found = np.full(at.size, -1, np.int64)
    if n == 0 or at.size == 0:
        return found
    # Rows come before queries of the same group and time: lexsort is stable.
    order = np.lexsort((np.concatenate((times, at)), np.concatenate((groups, at_groups))))
    is_row = order < n
    last = np.maximum.accumulate(np.where(is_row, order, -1))[~is_row]
    found[order[~is_row] - n] = last
    found[(found >= 0) & (groups[found] != at_groups)] = -1
    return found


def last_ended(rows: tuple[Ints, Ints, Ints], queries: tuple[Ints, Ints, Ints, Ints]) -> Ints:
    """For each query the row of its group that ended last within (after, at] and was queued no later than `by`, or -1.

    `rows` are (group, end, queued), `queries` are (group, after, at, by).
    """
    group, end, queued = rows
    wanted, after, at, by = queries
    order = np.lexsort((end, group))
    place = latest(group[order], end[order], wanted, at)
    pending = np.flatnonzero(place >= 0)
    # What another thread queued later may have ended in between: step back past it.
    while pending.size:
        row = order[place[pending]]
        gone = (group[row] != wanted[pending]) | (end[row] <= after[pending])
        place[pending[gone]] = -1
        pending = pending[~gone & (queued[row] > by[pending])]
        place[pending] -= 1
        pending = pending[place[pending] >= 0]
    found = np.full(at.size, -1, np.int64)
    held = place >= 0
    found[held] = order[place[held]]
    return found
