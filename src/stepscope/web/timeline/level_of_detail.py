"""What a window of the timeline can show: spans of a pixel or more in full, the rest as busy time per pixel.

Spans of a track go to lanes, one per depth, so that no two of a lane overlap. Within a lane starts and ends ascend, and
the busy time before any point is one look-up in a running sum: an answer costs what the screen is wide, not what the
trace is long.

Most ranges of a thread are nested, but a few cross: an optimizer's step begins in one step of the profiler and ends in
the next. If depths followed from nesting alone, each crossing would begin one deeper. So of two spans that cross, the
shorter one is drawn below everything else, where such spans are nested among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import enclosing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Sampled = tuple[Ints, Floats, Floats, Floats]

#: Lanes with no more spans than this are worked on all at once.
_SMALL = 4_096
#: Layers of a track; spans that cross each other more often than so begin one deeper each.
_MOST_LAYERS = 32
#: Rounds in which it is weighed which of two has to go; after that all go that cross one of the longer ones.
_MOST_ROUNDS = 32
_SCATTER = 0x9E3779B97F4A7C15


class Lanes(msgspec.Struct, frozen=True, eq=False):
    """All spans by lane, then by start. Lane k has rows first[k] to first[k + 1], of one track and one depth.

    `row` is the span's row in the table it came from; `below` is the summed length of all rows before (one more entry
    than rows).
    """

    tracks: NDArray[np.uint32]
    depths: Ints
    first: Ints
    row: NDArray[np.uint32]
    start: Ints
    end: Ints
    below: Ints

    def __len__(self) -> int:
        return self.depths.size

    def of_tracks(self, tracks: Iterable[int]) -> Ints:
        """Numbers of the lanes of these tracks, ascending."""
        return np.flatnonzero(np.isin(self.tracks, np.fromiter(tracks, np.uint32)))


class View(msgspec.Struct, frozen=True, eq=False):
    """What a window shows. Of spans in full: lane and position among the rows of `Lanes`.

    Of pixels with what is shorter: lane, pixel, time in ns that it is busy (not counting the spans in full), how many
    such spans start there, and the position of one of them.
    """

    full_lane: Ints
    full_at: Ints
    bar_lane: Ints
    bar_pixel: Ints
    bar_busy_ns: Ints
    bar_count: Ints
    bar_at: Ints


def lanes_of(track: NDArray[np.uint32], start: Ints, duration: Ints) -> Lanes:
    """Spans, sorted by (track, start, longest first), laid out in lanes. Times in ns."""
    end = start + duration
    depth = nested_depths(track.astype(np.int64), start, end)
    width = int(depth.max(initial=0)) + 1
    key = track.astype(np.int64) * width + depth
    used = np.flatnonzero(np.bincount(key)) if key.size else np.empty(0, np.int64)
    lane = np.searchsorted(used, key)
    # Few lanes: as small numbers they are sorted by radix, an order of magnitude faster.
    order = np.argsort(lane.astype(np.uint16) if used.size < 1 << 16 else lane, kind="stable")
    start, end = start[order], end[order]
    below = np.zeros(start.size + 1, np.int64)
    np.cumsum(end - start, out=below[1:])
    first = np.concatenate((np.searchsorted(lane[order], np.arange(used.size)), [start.size]))
    tracks, depths = (used // width).astype(np.uint32), used % width
    return Lanes(tracks, depths, first.astype(np.int64), order.astype(np.uint32), start, end, below)


def pixel_edges(low: int, high: int, n_pixels: int) -> Ints:
    """The n + 1 bounds of the pixels of [low, high), in whole ns."""
    whole, rest = divmod(high - low, n_pixels)
    steps = np.arange(n_pixels + 1, dtype=np.int64)
    return low + steps * whole + steps * rest // n_pixels


def window(lanes: Lanes, wanted: Iterable[int], low: int, high: int, n_pixels: int) -> View:
    """What the lanes `wanted` show of [low, high) on `n_pixels`; high > low.

    Every span of the window is there: in full if it is at least as long as a pixel is wide, else in the bars of the
    pixels that it touches. In each lane and pixel the busy time of spans and bars adds up to that of the trace.
    """
    edges = pixel_edges(low, high, n_pixels)
    shortest = -(-(high - low) // n_pixels)
    numbers = np.fromiter(wanted, np.int64)
    is_small = np.diff(lanes.first)[numbers] <= _SMALL
    parts = [_of_small(lanes, numbers[is_small], edges, shortest)]
    parts += [_of_lane(lanes, lane, edges, shortest) for lane in numbers[~is_small].tolist()]
    full_lane, full_at, bar_lane, *bars = (np.concatenate(column) for column in zip(*parts, strict=True))
    full, bar = (np.argsort(lane, kind="stable") for lane in (full_lane, bar_lane))
    return View(full_lane[full], full_at[full], bar_lane[bar], *(column[bar] for column in bars))


def _of_small(lanes: Lanes, wanted: Ints, edges: Ints, shortest: int) -> tuple[Ints, ...]:
    """What lanes with few spans show, all at once: a track may have very many of them."""
    counts = np.diff(lanes.first)[wanted]
    lane = np.repeat(wanted, counts)
    at = np.arange(lane.size) + np.repeat(lanes.first[wanted] - (np.cumsum(counts) - counts), counts)
    start, end = lanes.start[at], lanes.end[at]
    shown = np.flatnonzero((start < edges[-1]) & ((start >= edges[0]) | (end > edges[0])))
    lane, at, start, end = lane[shown], at[shown], start[shown], end[shown]
    is_full = end - start >= shortest
    begins = np.searchsorted(edges, start, side="right") - 1
    ends = np.minimum(np.searchsorted(edges, end) - 1, edges.size - 2)
    # A short one is busy in two pixels at most.
    row = np.concatenate([np.flatnonzero(~is_full & (begins >= 0)), np.flatnonzero(~is_full & (ends > begins))])
    is_start = np.arange(row.size) < np.count_nonzero(~is_full & (begins >= 0))
    pixel = np.where(is_start, begins[row], ends[row])
    order = np.lexsort((row, ~is_start, pixel, lane[row]))
    row, is_start, pixel = row[order], is_start[order], pixel[order]
    first = np.flatnonzero(np.diff(lane[row], prepend=-1) | np.diff(pixel, prepend=-1))
    if not first.size:
        return lane[is_full], at[is_full], *(np.empty(0, np.int64) for _ in range(5))
    busy = np.maximum(np.minimum(end[row], edges[pixel + 1]) - np.maximum(start[row], edges[pixel]), 0)
    count = np.add.reduceat(is_start.astype(np.int64), first)
    row_of_bar = row[first]
    return (lane[is_full], at[is_full], lane[row_of_bar], pixel[first], np.add.reduceat(busy, first), count,
            at[row_of_bar])  # fmt: skip


def _of_lane(lanes: Lanes, lane: int, edges: Ints, shortest: int) -> tuple[Ints, ...]:
    begin, stop = int(lanes.first[lane]), int(lanes.first[lane + 1])
    start, end = lanes.start[begin:stop], lanes.end[begin:stop]
    low, high = np.searchsorted(start, edges[[0, -1]]).tolist()
    low -= low > 0 and end[low - 1] > edges[0]
    start, end = start[low:high], end[low:high]
    offset = begin + low
    full = np.flatnonzero(end - start >= shortest)
    full_lane = np.full(full.size, lane, np.int64)
    if full.size == start.size:
        none = np.empty(0, np.int64)
        return full_lane, full + offset, none, none, none, none, none
    started = np.searchsorted(start, edges)
    busy = np.diff(_busy_before(end, lanes.below[offset:], started, edges))
    count = np.diff(started)
    if full.size:
        starts, ends = start[full], end[full]
        below = np.concatenate(([0], np.cumsum(ends - starts)))
        in_full = np.searchsorted(starts, edges)
        busy -= np.diff(_busy_before(ends, below, in_full, edges))
        count -= np.diff(in_full)
    # What began before the window or in the pixel to the left is no start here, but may well be busy here.
    pixel = np.flatnonzero((busy > 0) | (count > 0))
    at = _some_short(started, count, pixel, end - start >= shortest)
    return (full_lane, full + offset, np.full(pixel.size, lane, np.int64), pixel, busy[pixel], count[pixel],
            at + offset)  # fmt: skip


def _busy_before(end: Ints, below: Ints, started: Ints, points: Ints) -> Ints:
    """Summed length of the rows before each point; `started` is how many rows have started before it."""
    last = np.maximum(started, 1) - 1
    beyond = np.where(started > 0, np.maximum(end[last] - points, 0), 0)
    before: Ints = below[started] - below[0] - beyond
    return before


def _some_short(started: Ints, count: Ints, pixel: Ints, is_full: Bools) -> Ints:
    """For each pixel the first short row that starts in it; if none does, the last one before."""
    at = np.where(count[pixel] > 0, started[pixel], np.maximum(started[pixel] - 1, 0))
    # Those in full that start in one pixel are few, as each is at least as long as a pixel.
    while (on_full := is_full[at] & (count[pixel] > 0)).any():
        at = at + on_full
    return at


def counts_between(times: Ints, values: NDArray[np.float64], edges: Ints) -> Sampled:
    """A sampled line by pixel: pixels with samples, and of these the least, greatest and last value of each."""
    begin = np.searchsorted(times, edges)
    pixel: Ints = np.flatnonzero(np.diff(begin)).astype(np.int64)
    if not pixel.size:
        empty = np.empty(0, np.float64)
        return pixel, empty, empty, empty
    # reduceat reads to the next index given, and the last of them to the end of the array.
    inside = values[begin[pixel[0]] : begin[-1]]
    at = begin[pixel] - begin[pixel[0]]
    least: Floats = np.minimum.reduceat(inside, at)
    most: Floats = np.maximum.reduceat(inside, at)
    return pixel, least, most, values[begin[pixel + 1] - 1]


def nested_depths(track: Ints, start: Ints, end: Ints) -> Ints:
    """The row of each span, 0 at the top, of spans sorted by (track, start, longest first). Times in ns."""
    parents = enclosing(start, end, track)
    depth_of = _nesting(parents)
    crossing = _crossing(parents, end)
    if crossing.size:
        mine = np.flatnonzero(np.isin(track, distinct_values(track[crossing])))
        depth_of[mine] = _layered(track[mine], start[mine], end[mine])
    return depth_of


def _crossing(parents: Ints, end: Ints) -> Ints:
    """Rows that begin inside another and outlast it."""
    inner = np.flatnonzero(parents >= 0)
    crossing: Ints = inner[end[inner] > end[parents[inner]]]
    return crossing


def _layered(track: Ints, start: Ints, end: Ints) -> Ints:
    """Layer by layer, each below the one before: what crosses nothing in it, nested."""
    depth_of = np.zeros(track.size, np.int64)
    _, code = np.unique(track, return_inverse=True)
    below = np.zeros(int(code.max(initial=0)) + 1, np.int64)
    rest = np.arange(track.size)
    for layer in range(_MOST_LAYERS):
        layer_rows = rest
        if layer < _MOST_LAYERS - 1:
            layer_rows = rest[_apart(track[rest], start[rest], end[rest])]
        depth = _nesting(enclosing(start[layer_rows], end[layer_rows], track[layer_rows]))
        depth_of[layer_rows] = below[code[layer_rows]] + depth
        next_below = below.copy()
        np.maximum.at(next_below, code[layer_rows], depth_of[layer_rows] + 1)
        below = next_below
        rest = np.setdiff1d(rest, layer_rows, assume_unique=True)
        if not rest.size:
            break
    return depth_of


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
