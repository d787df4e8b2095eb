"""Order statistics of many small groups of rows at once: medians, leave-one-out medians, largest and second largest.

Groups of one size form a matrix with a row each, so that NumPy does the work. Loops run over the distinct sizes only,
never over rows or groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Ints

if TYPE_CHECKING:
    from collections.abc import Iterator

Floats = NDArray[np.float64]

#: Turns a median absolute deviation into the standard deviation of a normal distribution.
MAD_TO_SD = 1.4826


class Segments(msgspec.Struct, frozen=True):
    """Rows by group: those of group g are `order[starts[g] : starts[g] + sizes[g]]`.

    Groups are numbered from 0 in ascending order of their id; rows with a negative id belong to none.
    """

    n_rows: int
    order: Ints
    starts: Ints
    sizes: Ints

    def by_size(self) -> Iterator[tuple[Ints, Ints]]:
        """For each distinct size the groups of that size, and their rows as a matrix with one group per line."""
        for size in distinct_values(self.sizes).tolist():
            groups = np.flatnonzero(self.sizes == size)
            yield groups, self.order[self.starts[groups][:, None] + np.arange(size)]

    def median(self, values: Floats) -> Floats:
        """The median of each group."""
        medians = np.empty(self.sizes.size)
        for groups, rows in self.by_size():
            medians[groups] = np.median(values[rows], axis=1)
        return medians

    def leave_one_out_median(self, values: Floats) -> Floats:
        """For each row the median of the other rows of its group; NaN if there are none, or for rows of no group."""
        result = np.full(self.n_rows, np.nan)
        for _, rows in self.by_size():
            size = rows.shape[1]
            if size < 2:
                continue
            own = values[rows]
            ranked = np.sort(own, axis=1)
            # The middle one or two of the size - 1 others, once the row itself is taken out.
            low, high = (size - 2) // 2, (size - 1) // 2
            middle = np.where(own <= ranked[:, [low]], ranked[:, [low + 1]], ranked[:, [low]])
            if high != low:
                middle = (middle + np.where(own <= ranked[:, [high]], ranked[:, [high + 1]], ranked[:, [high]])) / 2
            result[rows] = middle
        return result

    def spread(self, values: Floats) -> Floats:
        """The standard deviation of each group, estimated by its median absolute deviation."""
        spreads = np.empty(self.sizes.size)
        for groups, rows in self.by_size():
            own = values[rows]
            spreads[groups] = MAD_TO_SD * np.median(np.abs(own - np.median(own, axis=1, keepdims=True)), axis=1)
        return spreads

    def leave_one_out_max(self, values: Floats) -> Floats:
        """For each row the largest value among the other rows of its group; −inf if there are none."""
        result = np.full(self.n_rows, -np.inf)
        for _, rows in self.by_size():
            if rows.shape[1] < 2:
                continue
            own = values[rows]
            ranked = np.partition(own, -2, axis=1)
            # If two are equally large, each is the largest of the rest for the other.
            result[rows] = np.where(own == ranked[:, [-1]], ranked[:, [-2]], ranked[:, [-1]])
        return result

    def largest(self, values: Floats) -> Floats:
        """The largest value of each group."""
        maxima: Floats = np.maximum.reduceat(values[self.order], self.starts) if self.sizes.size else np.empty(0)
        return maxima

    def sums(self, values: Floats) -> Floats:
        """The sum of each group."""
        totals: Floats = np.add.reduceat(values[self.order], self.starts) if self.sizes.size else np.empty(0)
        return totals

    def spread_out(self, per_group: Floats) -> Floats:
        """A value per group as a value per row; NaN for rows of no group."""
        values = np.full(self.n_rows, np.nan)
        values[self.order] = np.repeat(per_group, self.sizes)
        return values


def segments(ids: Ints) -> Segments:
    """The groups that rows belong to by these ids; negative ones belong to none."""
    order = np.argsort(ids, kind="stable")
    order = order[np.searchsorted(ids[order], 0) :]
    ranked = ids[order]
    starts = np.flatnonzero(np.concatenate((np.ones(min(ranked.size, 1), bool), ranked[1:] != ranked[:-1])))
    return Segments(ids.size, order, starts, np.diff(np.append(starts, ranked.size)))


def numbered(*keys: Ints) -> Ints:
    """Dense numbers from 0 for distinct combinations of keys, in their order (the first key varies slowest)."""
    code = np.zeros(keys[0].size, np.int64)
    for key in keys:
        if not key.size:
            return key
        low, width = int(key.min()), int(key.max()) - int(key.min()) + 1
        if width * (int(code.max()) + 1) >= 2**62:
            code, key = dense(code), dense(key)  # noqa: PLW2901  too large a range for one number; their ranks fit
            low, width = 0, int(key.max()) + 1
        code = code * width + (key - low)
    return dense(code)


def dense(codes: Ints) -> Ints:
    """Numbers from 0 without gaps, in the order of the codes."""
    if not codes.size:
        return codes
    low, high = int(codes.min()), int(codes.max())
    if high - low < max(4 * codes.size, 1 << 16):
        used = np.zeros(high - low + 1, np.int64)
        used[codes - low] = 1
        return (np.cumsum(used) - 1)[codes - low]
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    number = np.empty(codes.size, np.int64)
    number[order] = np.cumsum(np.concatenate(([False], ranked[1:] != ranked[:-1])))
    return number


def occurrence(codes: Ints) -> Ints:
    """For each row how many earlier rows have the same code."""
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    new = np.concatenate((np.ones(min(ranked.size, 1), bool), ranked[1:] != ranked[:-1]))
    first = np.flatnonzero(new)
    counts = np.empty(codes.size, np.int64)
    counts[order] = np.arange(codes.size) - np.repeat(first, np.diff(np.append(first, codes.size)))
    return counts
