"""The median of the last values of a series, and what most of them reach: a few values come at a time, and often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Windows that are sorted at once: some megabytes.
_AT_ONCE = 8192


def last_medians(before: Sequence[float] | Floats, values: Floats, n: int, least: int) -> Floats:
    """Up to each of `values` the median of the last `n` values, it and those `before` included.

    Not a number where there are fewer than `least`. Units: those of the values.
    """
    parts = [_medians(part, least) for part in _windows(before, values, n)]
    return np.concatenate(parts) if parts else np.empty(0)


def last_reached(before: Sequence[float] | Floats, values: Floats, n: int, most: int) -> Floats:
    """Up to each of `values` the greatest value that `most` of the last `n` reach, those `before` included.

    Not a number where there are fewer than `n`. Units: those of the values, of which each is a number.
    """
    ordered = [np.sort(part, axis=1) for part in _windows(before, values, n)]  # what is not a number comes last
    parts = [np.where(np.isnan(part[:, -1]), np.nan, part[:, n - most]) for part in ordered]
    return np.concatenate(parts) if parts else np.empty(0)


def _windows(before: Sequence[float] | Floats, values: Floats, n: int) -> Iterator[Floats]:
    """Rows of the last `n` values up to each of `values`, some thousand at once; earlier ones are not a number."""
    if len(values):
        series = np.concatenate([np.full(n, np.nan), before, values])
        windows = sliding_window_view(series, n)[-len(values) :]
        for i in range(0, len(windows), _AT_ONCE):
            yield windows[i : i + _AT_ONCE]


def _medians(windows: Floats, least: int) -> Floats:
    ordered = np.sort(windows, axis=1)  # what is not a number comes last
    count = (~np.isnan(ordered)).sum(axis=1)
    row, middle = np.arange(len(ordered)), np.maximum(count - 1, 0)
    medians: Floats = (ordered[row, middle // 2] + ordered[row, (middle + 1) // 2]) / 2
    return np.where(count >= least, medians, np.nan)
