"""Sets of time ranges in the recorder's own numbers, int64 or doubles, as the TensorBoard plugin calculates with them.

A set is a pair (starts, ends) in order of time. Unlike the sets of `stepscope.core.intervals`, which hold no empty
range, these keep what the plugin keeps: an empty range stays unless another range touches it, and subtracting it splits
a range in two. Both affect results: whether a role occurs at all, and the last digit of a sum of doubles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Ints = NDArray[np.int64]

Times = NDArray[Any]
Ranges = tuple[Times, Times]


def merged(starts: Times, ends: Times) -> Ranges:
    """The same points as ranges that do not touch each other.

    >>> merged(np.array([0, 5, 10, 30]), np.array([3, 10, 12, 30]))
    (array([ 0,  5, 30]), array([ 3, 12, 30]))
    """
    if not starts.size:
        return starts, ends
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.flatnonzero(starts[1:] > reach[:-1]) + 1
    return starts[np.append(0, first)], reach[np.append(first - 1, -1)]


def intersected(a: Ranges, b: Ranges) -> Ranges:
    """The points in both, by range of `a`. `a` may be in any order; `b` is in order of time without overlaps."""
    of_a, of_b = _pairs(a, b)
    return np.maximum(a[0][of_a], b[0][of_b]), np.minimum(a[1][of_a], b[1][of_b])


def subtracted(a: Ranges, b: Ranges) -> Ranges:
    """The points of `a` that are not in `b`, both in order of time without overlaps."""
    of_a, of_b = _pairs(a, b)
    # A range of `a` that meets n ranges of `b` leaves n + 1 pieces: before the first, between them, after the last.
    met = np.bincount(of_a, minlength=a[0].size)
    starts, ends = (np.empty(of_a.size + met.size, a[0].dtype) for _ in range(2))
    last = np.cumsum(met + 1) - 1
    is_first, is_last = np.zeros(starts.size, bool), np.zeros(starts.size, bool)
    is_first[last - met] = is_last[last] = True
    starts[is_first], starts[~is_first] = a[0], b[1][of_b]
    ends[is_last], ends[~is_last] = a[1], b[0][of_b]
    stays = (ends > starts) | (is_first & is_last)
    return starts[stays], ends[stays]


def amounts(ranges: Ranges, windows: Ranges) -> list[float]:
    """How much of each window the ranges cover, summed in order of time. Without ranges it is the integer 0.

    Units: those of the ranges.
    """
    of_window, of_range = _pairs(windows, ranges)
    starts, ends = windows[0][of_window], windows[1][of_window]
    lengths = np.minimum(ends, ranges[1][of_range]) - np.maximum(starts, ranges[0][of_range])
    sums = np.zeros(windows[0].size, lengths.dtype)
    np.add.at(sums, of_window, lengths)  # one after the other, as a loop does
    met = np.bincount(of_window, minlength=sums.size)
    return [value if n else 0 for value, n in zip(sums.tolist(), met.tolist(), strict=True)]


def summed(values: Times) -> float:
    """The sum in the order of the values, as a loop adds. NumPy's and Python's sums may differ in the last digit."""
    total: float = np.cumsum(values)[-1].item() if values.size else 0
    return total


def _pairs(a: Ranges, b: Ranges) -> tuple[Ints, Ints]:
    """Indices of all pairs of ranges that have points in common. An empty range counts as a point."""
    low = np.searchsorted(b[1], a[0], side="right")
    high = np.where(a[1] > a[0], np.searchsorted(b[0], a[1], side="left"), np.searchsorted(b[0], a[0], side="right"))
    counts = high - low
    of_a = np.repeat(np.arange(counts.size), counts)
    return of_a, np.arange(of_a.size) + np.repeat(low - (np.cumsum(counts) - counts), counts)
