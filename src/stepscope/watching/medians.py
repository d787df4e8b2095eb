"""The median of the last values before each of a series: a few values come at a time, and often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Windows that are sorted at once: some megabytes.
_AT_ONCE = 8192


def last_medians(before: Sequence[float] | Floats, values: Floats, n: int, least: int) -> Floats:
    """Up to each of `values` the median of the last `n` values, it and those `before` included.

    Not a number where there are fewer than `least`. Units: those of the values.
    """
    if not len(values):
        return np.empty(0)
    series = np.concatenate([np.full(n, np.nan), before, values])
    windows = sliding_window_view(series, n)[-len(values) :]
    return np.concatenate([_medians(windows[i : i + _AT_ONCE], least) for i in range(0, len(windows), _AT_ONCE)])


def _medians(windows: Floats, least: int) -> Floats:
    ordered = np.sort(windows, axis=1)  # what is not a number comes last
    count = (~np.isnan(ordered)).sum(axis=1)
    row, middle = np.arange(len(ordered)), np.maximum(count - 1, 0)
    medians: Floats = (ordered[row, middle // 2] + ordered[row, (middle + 1) // 2]) / 2
    return np.where(count >= least, medians, np.nan)
