"""Which rows of a table sorted by track and start lie within a given one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
