"""Which rows of a table sorted by track and start lie within which."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.intervals import enclosing

Ints = NDArray[np.int64]


def ends_of(tracks: NDArray[np.integer], starts: Ints, ends: Ints, rows: Ints) -> Ints:
    """For each of `rows` the first later row that does not start within it on its track, or the number of rows.

    All three columns are sorted by (track, start, -end), `rows` ascend. What starts within row i are the rows from i
    up to that one: i's descendants, if spans nest.
    """
    after = rows + 1
    held = np.unique(tracks[rows])
    for low, high in zip(np.searchsorted(tracks, held), np.searchsorted(tracks, held, side="right"), strict=True):
        mine = slice(*np.searchsorted(rows, (low, high)))
        found = low + np.searchsorted(starts[low:high], ends[rows[mine]])
        after[mine] = np.maximum(after[mine], found)
    return after


def outermost(tracks: NDArray[np.integer], starts: Ints, ends: Ints, groups: Ints) -> NDArray[np.bool_]:
    """Whether each row lies in no other row of its group on its track; sorted by (track, start, -end)."""
    lanes = groups * (int(tracks.max()) + 1) + tracks
    small = int(lanes.max()) < 1 << 16  # two-byte keys are sorted by counting
    order = np.argsort(lanes.astype(np.uint16) if small else lanes, kind="stable")
    found = np.empty(lanes.size, np.bool_)
    found[order] = enclosing(starts[order], ends[order], lanes[order]) < 0
    return found
