"""Interval algebra on NumPy arrays: union, intersection, gaps, nesting, self time, number at once.

Intervals are half-open [start, end) with int64 bounds in any one unit (times in ns here); a set of intervals is a pair
`(starts, ends)`. "Disjoint" means sorted, non-empty and not touching, as `union` returns it. Nothing loops over rows in
Python and nothing is rounded. Results are new arrays or views; arguments are never changed.

Groups (one thread, one stream) are handled by laying them end to end on one axis, so that a single sorted pass serves
all of them. Nesting asks one question, "which is the last earlier interval that is still open?", for all rows at
once in a tree of maxima of ends: O(n log n) whatever the depth and whether or not intervals overlap partially. Where
`nesting.c` is compiled, it goes through the rows once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.arrays import (
    compiled_around,
    compiled_enclosing,
    compiled_nearest,
    compiled_own_lengths,
    distinct_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Intervals = tuple[Ints, Ints]
#: The type of row numbers, which may have 32 bits: many rows have several columns of them.
Row = TypeVar("Row", bound=np.signedinteger)

#: What stands for no row, where row numbers are unsigned.
NO_ROW = 2**32 - 1
_INT64_MAX = 2**63 - 1
_CHUNK = 1 << 17  # rows per piece of work, so that the many temporary arrays stay in the CPU cache
_NEAR = 1 << 15  # rows whose parents are looked up at once
_PIECE = 1 << 18  # rows whose nesting is found at once, as that takes a dozen columns of scratch space
_STRETCH = 1 << 20  # rows that `stretches` puts together at least
_HOPS = 8  # steps from parent to parent, after which building the tree pays


def union(starts: Ints, ends: Ints) -> Intervals:
    """The disjoint intervals that cover the same points: touching ones join, empty or reversed ones vanish.

    >>> union(np.array([0, 5, 20]), np.array([10, 12, 30]))
    (array([ 0, 20]), array([12, 30]))
    """
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if starts.size == 0:
        return _no_ints(), _no_ints()
    if not is_sorted(starts):
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    heads = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.concatenate(([0], heads))], reach[np.concatenate((heads - 1, [-1]))]


def union_by(groups: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """`union` within each group: (groups, starts, ends), sorted by group and start; a group without points vanishes."""
    if starts.size == 0:
        return _no_ints(), _no_ints(), _no_ints()
    if is_sorted(groups):
        index = _run_index(groups)
        names = groups[np.searchsorted(index, np.arange(index[-1] + 1))]
    else:
        names, index = np.unique(groups, return_inverse=True)
    axis = _axis(len(names), starts, ends)
    placed_starts, placed_ends = union(axis.place(index, starts), axis.place(index, ends))
    index = placed_starts // axis.width
    return names[index].astype(np.int64), axis.times(index, placed_starts), axis.times(index, placed_ends)


def apart(groups: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Callable[[Intervals], Intervals]]:
    """Intervals of groups (from 0, at least one), each group's in a stretch of its own, and what gives times back.

    Sets of such intervals are united and subtracted for all groups at once, and no group's touch another's.
    """
    axis = _axis(int(groups.max()) + 1, starts, ends)

    def back(iv: Intervals) -> Intervals:
        index = iv[0] // axis.width
        return axis.times(index, iv[0]), axis.times(index, iv[1])

    return axis.place(groups, starts), axis.place(groups, ends), back


def total(iv: Intervals) -> int:
    """Summed length of disjoint intervals."""
    return int((iv[1] - iv[0]).sum())


def either(a: Intervals, b: Intervals) -> Intervals:
    """The points in one of two disjoint sets or in both, as a disjoint set."""
    starts, ends = np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))
    order = np.argsort(starts, kind="stable")  # merges what is sorted already, in linear time
    return union(starts[order], ends[order])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The points in both of two disjoint sets, as a disjoint set."""
    first = np.searchsorted(a[1], b[0], side="right")
    counts = np.searchsorted(a[0], b[1], side="left") - first
    of_b = np.repeat(np.arange(counts.size), counts)
    of_a = np.arange(of_b.size) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.maximum(a[0][of_a], b[0][of_b]), np.minimum(a[1][of_a], b[1][of_b])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """The points of the disjoint set `a` that are not in the disjoint set `b`, as a disjoint set."""
    if a[0].size == 0:
        return a
    return intersection(a, gaps(b, int(a[0][0]), int(a[1][-1])))


def gaps(iv: Intervals, lo: int, hi: int) -> Intervals:
    """The points of [lo, hi) that are not in the disjoint set, as a disjoint set."""
    if hi <= lo:
        return _no_ints(), _no_ints()
    edge = np.array([lo, hi], np.int64)
    starts = np.concatenate((edge[:1], np.clip(iv[1], lo, hi)))
    ends = np.concatenate((np.clip(iv[0], lo, hi), edge[1:]))
    keep = ends > starts
    return starts[keep], ends[keep]


def covered(iv: Intervals, lows: Ints, highs: Ints) -> Ints:
    """How much of each window [low, high) the disjoint set covers; 0 where the window is empty or reversed."""
    if iv[0].size == 0:
        return np.zeros(lows.size, np.int64)
    below = np.concatenate((np.zeros(1, np.int64), np.cumsum(iv[1] - iv[0])))
    return np.where(highs > lows, _length_below(iv, below, highs) - _length_below(iv, below, lows), 0)


def reached(starts: Ints, ends: Ints, iv: Intervals) -> tuple[Ints, Ints]:
    """(row, i) for each interval [start, end) and each disjoint interval i that it overlaps."""
    first = np.searchsorted(iv[1], starts, side="right")
    counts = np.maximum(np.searchsorted(iv[0], ends, side="left") - first, 0)
    row = np.repeat(np.arange(counts.size), counts)
    return row, np.arange(row.size) + np.repeat(first - (np.cumsum(counts) - counts), counts)


def first_covering(first: Ints, stop: Ints, n: int) -> Ints:
    """For each of n places the first of the ranges [first, stop) that covers it, -1 if none does. None is empty."""
    # Each range is two blocks whose length is a power of two; then blocks are halved.
    level = np.frexp(stop - first)[1] - 1
    best = np.full((int(level.max(initial=0)) + 1, n), first.size, np.int64)
    for begin in (first, stop - (1 << level)):
        np.minimum.at(best, (level, begin), np.arange(first.size))
    for k in range(best.shape[0] - 1, 0, -1):
        half = 1 << (k - 1)
        np.minimum(best[k - 1], best[k], out=best[k - 1])
        np.minimum(best[k - 1][half:], best[k][:-half], out=best[k - 1][half:])
    return np.where(best[0] < first.size, best[0], -1)


def locate(iv: Intervals, points: Ints) -> Ints:
    """Index of the disjoint interval that contains each point, -1 if none does."""
    if iv[0].size == 0:
        return np.full(points.size, -1, np.int64)
    index = np.searchsorted(iv[0], points, side="right") - 1
    return np.where((index >= 0) & (points < iv[1][index]), index, -1)


def enclosing(starts: Ints, ends: Ints, groups: NDArray[np.integer]) -> Ints:
    """For each row the innermost earlier row of its group that is still open at its start (end > start), -1 if none.

    Rows are sorted by (group, start, -end): a row's parent comes before it. Innermost means latest, which is exact
    also where intervals overlap partially: a row that starts inside another and outlasts it is its child. An empty row
    may be a child and is never a parent. Returns int64 row indices.
    """
    return enclosing_as(np.int64, starts, ends, groups)


def enclosing_as(dtype: type[Row], starts: Ints, ends: Ints, groups: NDArray[np.integer]) -> NDArray[Row]:
    """`enclosing` with row indices of that type."""
    return _nested(starts.size, lambda rows: (starts[rows], ends[rows], groups[rows]), dtype)


def _nested(n: int, of: Callable[[Ints], tuple[Ints, Ints, NDArray[np.integer]]], dtype: type[Row]) -> NDArray[Row]:
    """`enclosing` of n rows, piece by piece; `of` gives starts, ends and groups of some of them."""
    parents = np.full(n, -1, dtype)
    low, held = 0, _no_ints()  # rows of earlier pieces that are still open
    while low < n:
        high = min(low + max(_PIECE, held.size), n)
        rows = np.concatenate((held, np.arange(low, high)))
        starts, ends, groups = of(rows)
        inner = _enclosing(starts, ends, groups)[held.size :]
        parents[low:high] = np.where(inner >= 0, rows[inner], -1)
        if high < n:
            (start,), _, (group,) = of(np.array([high]))
            held = rows[(groups == group) & (ends > start)]
        low = high
    return parents


def _enclosing(starts: Ints, ends: Ints, groups: NDArray[np.integer]) -> Ints:
    done = compiled_enclosing(starts, ends, groups)
    if done is not None:
        return done
    n = starts.size
    parents = np.full(n, -1, np.int64)
    if n < 2:
        return parents
    index = _run_index(groups)
    if index[-1] > 0:
        axis = _axis(int(index[-1]) + 1, starts, ends)
        starts, ends = axis.place(index, starts), axis.place(index, ends)
    del index
    # Two cases need no search: the row before is the parent, or everything before has ended.
    direct = ends[:-1] > starts[1:]
    pending = np.flatnonzero((np.maximum.accumulate(ends)[:-1] > starts[1:]) & ~direct) + 1
    rows = np.flatnonzero(direct)
    parents[rows + 1] = rows
    if pending.size == 0:
        return parents
    # In a run of pending rows each has ended before the next starts: the first one's parent serves all until it ends.
    tree = _maxima(ends)
    is_first = np.diff(pending, prepend=-1) != 1
    first = pending[is_first]
    guess = _last_open(tree, first - 2, starts[first])[np.cumsum(is_first) - 1]
    parents[pending] = guess
    rest = np.flatnonzero(ends[guess] <= starts[pending])
    parents[pending[rest]] = _last_open(tree, guess[rest] - 1, starts[pending[rest]])
    return parents


def nearest(parents: NDArray[Row], wanted: Bools) -> NDArray[Row]:
    """For each row the nearest wanted row among itself and its ancestors, -1 if none is wanted."""
    done = compiled_nearest(parents, wanted)
    if done is not None:
        return done
    target = parents.copy()
    # Parents mostly come before their children, and not far: piece by piece, most of them are done already.
    for low in range(0, parents.size, _NEAR):
        piece, is_wanted = target[low : low + _NEAR], wanted[low : low + _NEAR]
        own = np.flatnonzero(is_wanted)
        piece[own] = own + low
        pending = np.flatnonzero(~is_wanted & (piece >= 0))
        at = piece[pending]
        # Every pending row points past unwanted ancestors only; pointing where its target points doubles the stride.
        while (further := ~wanted[at]).any():
            pending, at = pending[further], target[at[further]]
            piece[pending] = at
            pending, at = pending[at >= 0], at[at >= 0]
    return target


def innermost(
    asked: NDArray[np.uint32], parents: NDArray[np.uint32], times: tuple[Ints, Ints], wanted: Bools
) -> NDArray[np.uint32]:
    """For each asked row the innermost wanted one among itself and those around it that were open when it began.

    `times` are starts and lengths. Its parent was open, what is further out may have ended. `NO_ROW` stands for none.
    """
    done = compiled_around(asked, parents, times, wanted)
    if done is not None:
        return done
    (starts, lengths), inner = times, np.full(asked.size, NO_ROW, np.uint32)
    pending = np.flatnonzero(asked != NO_ROW)
    at = asked[pending]
    while pending.size:
        began = asked[pending]
        further = (at != began) & (at != parents[began])
        fits = wanted[at] & ~(further & (starts[at] + lengths[at] <= starts[began]))
        inner[pending[fits]] = at[fits]
        pending, at = pending[~fits], parents[at[~fits]]
        pending, at = pending[at != NO_ROW], at[at != NO_ROW]
    return inner


def stretches(parents: NDArray[Row], least: int = _STRETCH) -> Iterator[slice]:
    """All rows in stretches that hold the parents of all their rows, of so many rows at least if there are as many."""
    n = parents.size
    low, numbers = 0, np.where(parents < 0, n, parents)
    first = np.minimum.accumulate(numbers[::-1])[::-1]  # the least parent of a row and all later ones
    last = np.maximum.accumulate(parents)  # the greatest one of a row and all earlier ones

    def ends(at: int) -> Bools:
        """Before which of the next rows a stretch may end."""
        rows = np.arange(at, min(at + least, n))
        may: Bools = (first[rows] >= rows) & (last[rows - 1] < rows)
        return may

    while low < n:
        high = low + least
        while high < n and not (may_end := ends(high)).any():
            high += least
        high = high + int(may_end.argmax()) if high < n else n
        yield slice(low, high)
        low = high


def ends_of(tracks: NDArray[np.integer], starts: Ints, ends: Ints, rows: Ints) -> Ints:
    """For each of `rows` the first later row that does not start within it on its track, or the number of rows.

    All three columns are sorted by (track, start, -end), `rows` ascend. What starts within row i are the rows from i
    up to that one: i's descendants, if spans nest.
    """
    after = rows + 1
    held = distinct_values(tracks[rows])
    for low, high in zip(np.searchsorted(tracks, held), np.searchsorted(tracks, held, side="right"), strict=True):
        mine = slice(*np.searchsorted(rows, (low, high)))
        next_row = low + np.searchsorted(starts[low:high], ends[rows[mine]])
        after[mine] = np.maximum(after[mine], next_row)
    return after


def outermost(tracks: NDArray[np.integer], starts: Ints, ends: Ints, groups: Ints) -> NDArray[np.bool_]:
    """Whether no other row of its group and track encloses each row; rows are sorted by (track, start, -end)."""
    lanes: NDArray[np.integer] = groups * (int(tracks.max()) + 1) + tracks
    if int(lanes.max()) < 1 << 16:  # two-byte keys are sorted by counting
        lanes = lanes.astype(np.uint16)
    order = np.argsort(lanes, kind="stable")

    def of(rows: Ints) -> tuple[Ints, Ints, NDArray[np.integer]]:
        at = order[rows]
        return starts[at], ends[at], lanes[at]

    is_outermost = np.empty(lanes.size, np.bool_)
    is_outermost[order] = _nested(lanes.size, of, np.int64) < 0
    return is_outermost


def own_lengths(starts: Ints, ends: Ints, parents: Ints) -> Ints:
    """Self time: each row's length minus the part that its direct children cover; never negative.

    `parents` holds row indices or -1, as `enclosing` returns; children are clipped to their parent.
    """
    if (done := compiled_own_lengths(starts, ends, parents)) is not None:
        return done
    n = parents.size
    own: Ints = np.maximum(ends - starts, 0)
    children = np.flatnonzero(parents >= 0)
    # One sort of a packed key groups the children by parent and keeps their order in time.
    key = parents.take(children)
    key *= n
    key += children
    key.sort()
    del children
    cuts = np.searchsorted(
        key, key[_CHUNK::_CHUNK] // max(n, 1) * n
    )  # families stay whole, about _CHUNK rows per piece
    for piece in np.split(key, cuts):
        above = piece // max(n, 1)
        row = piece - above * n
        low, high = np.maximum(starts.take(row), starts.take(above)), np.minimum(ends.take(row), ends.take(above))
        if ((high[:-1] > low[1:]) & (above[:-1] == above[1:])).any():
            above, low, high = union_by(above, low, high)
        np.subtract.at(own, above, np.maximum(high - low, 0))
    return own


def innermost_at(groups: Ints, points: Ints, starts: Ints, ends: Ints, span_groups: Ints, parents: Ints) -> Ints:
    """For each (group, point) the innermost row of that group open then (start <= point < end), -1 if none.

    Rows are sorted by (span_group, start, -end) and `parents` is what `enclosing` returns for them.
    """
    innermost = np.full(points.size, -1, np.int64)
    if starts.size == 0 or points.size == 0:
        return innermost
    index = _run_index(span_groups)
    names = span_groups[np.searchsorted(index, np.arange(index[-1] + 1))]
    axis = _axis(len(names), starts, ends)
    group_index = np.minimum(np.searchsorted(names, groups), len(names) - 1)
    pending = np.flatnonzero((names[group_index] == groups) & (points >= axis.low) & (points <= axis.high))
    group_index, at = group_index[pending], points[pending]
    last = np.searchsorted(axis.place(index, starts), axis.place(group_index, at), side="right") - 1
    keep = (last >= 0) & (index[last] == group_index)
    pending, at, last = pending[keep], at[keep], last[keep]
    innermost[pending] = last
    for _ in range(_HOPS):
        closed = (innermost[pending] >= 0) & (ends[innermost[pending]] <= at)
        pending, at = pending[closed], at[closed]
        if pending.size == 0:
            return innermost
        innermost[pending] = parents[innermost[pending]]
    # The rest ended deep inside a stack. If the last open row is of an earlier group, there is none.
    pending, at = pending[innermost[pending] >= 0], at[innermost[pending] >= 0]
    last = _last_open(_maxima(ends), innermost[pending], at)
    innermost[pending] = np.where((last >= 0) & (index[last] == index[innermost[pending]]), last, -1)
    return innermost


def level(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """How many intervals are open, as a step function: (times, levels), at times[i] the level becomes levels[i].

    Times ascend and only those at which the level changes are there; before the first it is 0, the last level is 0.
    """
    keep = ends > starts
    starts, ends = np.sort(starts[keep]), np.sort(ends[keep])
    times = distinct_values(np.concatenate((starts, ends)))
    levels = np.searchsorted(starts, times, side="right") - np.searchsorted(ends, times, side="right")
    changes = np.diff(levels, prepend=0) != 0
    return times[changes], levels[changes]


class _Axis(msgspec.Struct, frozen=True):
    """One axis with all groups end to end and gaps between them: group k's times start at k * width."""

    low: int
    high: int
    width: int
    ranks: Ints | None  # the distinct times if the times themselves would not fit: their ranks are placed instead

    def place(self, index: Ints, times: Ints) -> Ints:
        """Position on the axis of each time (within low and high) of each group; it keeps their order."""
        placed: Ints = index * self.width
        if self.ranks is None:
            placed += times
            placed -= self.low
        else:
            placed += np.searchsorted(self.ranks, times, side="right") - 1
        return placed

    def times(self, index: Ints, placed: Ints) -> Ints:
        """The time at each position."""
        offset = placed - index * self.width
        times: Ints = offset + self.low if self.ranks is None else self.ranks[offset]
        return times


def _axis(n_groups: int, starts: Ints, ends: Ints) -> _Axis:
    low, high = int(min(starts.min(), ends.min())), int(max(starts.max(), ends.max()))
    width = high - low + 2
    if width * n_groups <= _INT64_MAX:
        return _Axis(low, high, width, None)
    ranks = distinct_values(np.concatenate((starts, ends)))
    return _Axis(low, high, ranks.size + 1, ranks)


def _maxima(values: Ints) -> list[Ints]:
    """Maxima of blocks: number i at height k is over the 2**k values from i * 2**k on; incomplete blocks have none."""
    tree = [values]
    while tree[-1].size > 1:
        pairs = tree[-1][: tree[-1].size // 2 * 2]
        tree.append(np.maximum(pairs[::2], pairs[1::2]))
    return tree


def _last_open(tree: list[Ints], last: Ints, at: Ints) -> Ints:
    """For each query the greatest row <= last whose end > at, -1 if none; `tree` is that of the ends."""
    rows = np.empty(last.size, np.int64)
    for lo in range(0, last.size, _CHUNK):
        rows[lo : lo + _CHUNK] = _query(tree, last[lo : lo + _CHUNK], at[lo : lo + _CHUNK])
    return rows


def _query(tree: list[Ints], last: Ints, at: Ints) -> Ints:
    rows = np.full(last.size, -1, np.int64)
    hits: list[tuple[Ints, Ints]] = []  # per height: queries whose answer is in a block of it, and the blocks
    query, block = np.flatnonzero(last >= 0), last[last >= 0]
    for ends in tree:
        # Blocks 0..block of this height are still to be searched, backwards. An odd one is the right half of its pair.
        left = np.flatnonzero((block & 1) == 0)
        hit = left[ends[block[left]] > at[query[left]]]
        hits.append((query[hit], block[hit]))
        block[left] -= 1
        block[hit] = -1
        more = block >= 0
        query, block = query[more], block[more] >> 1
    query, block = _no_ints(), _no_ints()
    for ends, (new_query, new_block) in zip(reversed(tree), reversed(hits), strict=True):
        block = 2 * block + 1
        block -= ends[block] <= at[query]
        query, block = np.concatenate((query, new_query)), np.concatenate((block, new_block))
    rows[query] = block
    return rows


def _length_below(iv: Intervals, below: Ints, points: Ints) -> Ints:
    index = np.searchsorted(iv[0], points, side="right")
    beyond = np.maximum(iv[1][np.maximum(index, 1) - 1] - points, 0)
    return below[index] - np.where(index > 0, beyond, 0)


def _run_index(groups: NDArray[np.integer]) -> Ints:
    """0 for the rows of the first run of equal values, 1 for those of the second, and so on."""
    heads = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return np.repeat(np.arange(heads.size + 1), np.diff(heads, prepend=0, append=groups.size))


def is_sorted(values: Ints) -> bool:
    """Whether no value is less than the one before it."""
    return bool(np.all(values[1:] >= values[:-1]))


def _no_ints() -> Ints:
    return np.empty(0, np.int64)
