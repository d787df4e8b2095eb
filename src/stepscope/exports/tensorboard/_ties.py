"""The order of kernels with equal totals in the plugin's table, which its libraries' unstable sort decides.

The plugin sorts totals, listed by name, with pandas: reversed, through NumPy's "quicksort" of places, reversed again.
That sort is an introsort: it splits at the median of first, middle and last, leaves the larger part for later, sorts
parts of up to 16 places by insertion, and by heap a part that was split too often. Its result is fixed by the values,
so that doing the same steps gives the same order. Source: NumPy 1.23, npysort/quicksort.cpp (kind="quicksort" without
AVX-512); pandas 1.5, core/sorting.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_SMALL = 16


def by_total(totals: NDArray[Any]) -> Ints:
    """Places of the totals from the greatest down; equal ones in the plugin's order. `totals` are listed by name."""
    if np.unique(totals).size == totals.size:
        return np.argsort(totals)[::-1]
    order = np.array(_places(totals[::-1].tolist()), np.int64)
    return totals.size - 1 - order[::-1]


def _places(values: list[float]) -> list[int]:
    """Places of the values in ascending order, as NumPy's introsort leaves them."""
    order = list(range(len(values)))
    parts = [(0, len(values) - 1, 2 * (len(values).bit_length() - 1))]
    while parts:
        low, high, splits = parts.pop()
        if splits < 0:
            order[low : high + 1] = _by_heap(order[low : high + 1], values)
            continue
        while high - low >= _SMALL:
            middle = _split(order, values, low, high)
            splits -= 1
            if middle - low < high - middle:
                parts.append((middle + 1, high, splits))
                high = middle - 1
            else:
                parts.append((low, middle - 1, splits))
                low = middle + 1
        order[low : high + 1] = sorted(order[low : high + 1], key=values.__getitem__)  # stable, as by insertion
    return order


def _split(order: list[int], values: list[float], low: int, high: int) -> int:
    """Put smaller values before, greater ones behind the median of three; its place. Writes into `order`."""
    middle = (low + high) // 2
    for a, b in ((low, middle), (middle, high), (low, middle)):
        if values[order[b]] < values[order[a]]:
            order[a], order[b] = order[b], order[a]
    pivot = values[order[middle]]
    left, right = low, high - 1
    order[middle], order[right] = order[right], order[middle]
    while True:
        left += 1
        while values[order[left]] < pivot:
            left += 1
        right -= 1
        while pivot < values[order[right]]:
            right -= 1
        if left >= right:
            break
        order[left], order[right] = order[right], order[left]
    order[left], order[high - 1] = order[high - 1], order[left]
    return left


def _by_heap(part: list[int], values: list[float]) -> list[int]:
    """A part of the places in ascending order of their values, by heap."""
    heap = list(part)
    for top in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, values, top, len(heap))
    for size in range(len(heap) - 1, 0, -1):
        heap[0], heap[size] = heap[size], heap[0]
        _sink(heap, values, 0, size)
    return heap


def _sink(heap: list[int], values: list[float], at: int, size: int) -> None:
    """Move the place at `at` below all greater children. Writes into `heap`."""
    place = heap[at]
    while (child := 2 * at + 1) < size:
        if child + 1 < size and values[heap[child]] < values[heap[child + 1]]:
            child += 1
        if values[place] >= values[heap[child]]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = place
