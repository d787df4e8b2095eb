"""In which row of its track each span is drawn, so that no two of a row overlap and what lies inside lies deeper.

Ranges of a thread lie inside one another, but for a few that cross: an optimizer's step begins in one step of the
profiler and ends in the next. Rows cannot be had from nesting alone then, for each crossing would begin one deeper. Of
two that cross the shorter one is drawn below all that is left, where such spans are nested among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.intervals import enclosing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["depths"]

#: Layers of a track; spans that cross each other more often than so begin one deeper each.
_MOST_LAYERS = 32
#: Rounds in which it is weighed which of two has to go; after that all go that cross one of the longer ones.
_MOST_ROUNDS = 32
_SCATTER = 0x9E3779B97F4A7C15


def depths(track: Ints, start: Ints, end: Ints) -> Ints:
    """The row of each span, 0 at the top, of spans sorted by (track, start, longest first). Times in ns."""
    parents = enclosing(start, end, track)
    found = _nesting(parents)
    crossing = _crossing(parents, end)
    if crossing.size:
        mine = np.flatnonzero(np.isin(track, np.unique(track[crossing])))
        found[mine] = _layered(track[mine], start[mine], end[mine])
    return found


def _crossing(parents: Ints, end: Ints) -> Ints:
    """Rows that begin inside another and outlast it."""
    inner = np.flatnonzero(parents >= 0)
    crossing: Ints = inner[end[inner] > end[parents[inner]]]
    return crossing


def _layered(track: Ints, start: Ints, end: Ints) -> Ints:
    """Layer by layer, each below the one before: what crosses nothing in it, nested."""
    found = np.zeros(track.size, np.int64)
    _, code = np.unique(track, return_inverse=True)
    below = np.zeros(int(code.max(initial=0)) + 1, np.int64)
    rest = np.arange(track.size)
    for layer in range(_MOST_LAYERS):
        kept = rest
        if layer < _MOST_LAYERS - 1:
            kept = rest[_apart(track[rest], start[rest], end[rest])]
        depth = _nesting(enclosing(start[kept], end[kept], track[kept]))
        found[kept] = below[code[kept]] + depth
        next_below = below.copy()
        np.maximum.at(next_below, code[kept], found[kept] + 1)
        below = next_below
        rest = np.setdiff1d(rest, kept, assume_unique=True)
        if not rest.size:
            break
    return found


def _apart(track: Ints, start: Ints, end: Ints) -> Bools:
    """Which rows may stay so that none crosses another, the longer ones first."""
    stays = np.ones(track.size, bool)
    # Among equally long ones chance decides, the same each time: in turn each would have to wait for the one before.
    rank = np.empty(track.size, np.int64)
    scatter = np.arange(track.size, dtype=np.uint64) * np.uint64(_SCATTER)
    rank[np.lexsort((scatter, end - start))] = np.arange(track.size)
    for turn in range(track.size):
        rows = np.flatnonzero(stays)
        parents = enclosing(start[rows], end[rows], track[rows])
        crossing = _crossing(parents, end[rows])
        if not crossing.size:
            break
        one, two = rows[crossing], rows[parents[crossing]]
        is_less = rank[one] < rank[two]
        loser, winner = np.where(is_less, one, two), np.where(is_less, two, one)
        if turn < _MOST_ROUNDS:
            # Who loses to one that has to go itself may not have to.
            loses = np.zeros(track.size, bool)
            loses[loser] = True
            loser = loser[~loses[winner]]
        stays[loser] = False
    return stays


def _nesting(parents: Ints) -> Ints:
    """How many rows are around each, given the innermost one (-1: none)."""
    depth = (parents >= 0).astype(np.int64)
    above = parents.copy()
    pending = np.flatnonzero(above >= 0)
    while pending.size:
        over = above[pending]
        depth[pending] += depth[over]
        above[pending] = above[over]
        pending = pending[above[pending] >= 0]
    return depth
