"""Order statistics of many small groups of rows at once: medians, medians of the others, largest and second largest.

Groups of one size are laid out as a matrix, a row each, so that the work is done by NumPy however many groups there
are. Nothing loops over rows or groups, only over the distinct sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepscope.core.intervals import Ints

if TYPE_CHECKING:
    from collections.abc import Iterator

Floats = NDArray[np.float64]

#: Turns a median absolute deviation into the standard deviation of a normal distribution.
MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows by group: `order` lists the rows, group g's are `order[starts[g] : starts[g] + sizes[g]]`.

    Groups are numbered from 0 in ascending order of their id; rows with a negative id belong to none.
    """

    n_rows: int
    order: Ints
    starts: Ints
    sizes: Ints

    def by_size(self) -> Iterator[tuple[Ints, Ints]]:
        """For each distinct size the groups of it, and their rows as a matrix, a group a line."""
        for size in np.unique(self.sizes).tolist():
            groups = np.flatnonzero(self.sizes == size)
            yield groups, self.order[self.starts[groups][:, None] + np.arange(size)]

    def median(self, values: Floats) -> Floats:
        """The median of each group."""
        found = np.empty(self.sizes.size)
        for groups, rows in self.by_size():
            found[groups] = np.median(values[rows], axis=1)
        return found

    def median_of_others(self, values: Floats) -> Floats:
        """For each row the median of the other rows of its group; NaN where there are none, or for rows of no group."""
        found = np.full(self.n_rows, np.nan)
        for _, rows in self.by_size():
            size = rows.shape[1]
            if size < 2:
                continue
            own = values[rows]
            ranked = np.sort(own, axis=1)
            # Of size - 1 others the middle one or two: those that stand there once the row itself is taken out.
            low, high = (size - 2) // 2, (size - 1) // 2
            middle = np.where(own <= ranked[:, [low]], ranked[:, [low + 1]], ranked[:, [low]])
            if high != low:
                middle = (middle + np.where(own <= ranked[:, [high]], ranked[:, [high + 1]], ranked[:, [high]])) / 2
            found[rows] = middle
        return found

    def spread(self, values: Floats) -> Floats:
        """The standard deviation of each group, as its median absolute deviation tells it."""
        found = np.empty(self.sizes.size)
        for groups, rows in self.by_size():
            own = values[rows]
            found[groups] = MAD_TO_SD * np.median(np.abs(own - np.median(own, axis=1, keepdims=True)), axis=1)
        return found

    def largest_of_others(self, values: Floats) -> Floats:
        """For each row the largest value among the others of its group; −inf where there are none."""
        found = np.full(self.n_rows, -np.inf)
        for _, rows in self.by_size():
            if rows.shape[1] < 2:
                continue
            own = values[rows]
            ranked = np.partition(own, -2, axis=1)
            # Of two equal largest each is the largest of the others of the other one.
            found[rows] = np.where(own == ranked[:, [-1]], ranked[:, [-2]], ranked[:, [-1]])
        return found

    def largest(self, values: Floats) -> Floats:
        """The largest value of each group."""
        found: Floats = np.maximum.reduceat(values[self.order], self.starts) if self.sizes.size else np.empty(0)
        return found

    def sums(self, values: Floats) -> Floats:
        """The sum of each group."""
        found: Floats = np.add.reduceat(values[self.order], self.starts) if self.sizes.size else np.empty(0)
        return found

    def spread_out(self, per_group: Floats) -> Floats:
        """A value per group as a value per row; NaN for rows of no group."""
        found = np.full(self.n_rows, np.nan)
        found[self.order] = np.repeat(per_group, self.sizes)
        return found


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
            code, key = dense(code), dense(key)  # noqa: PLW2901  too far apart for one number: their ranks are not
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
    """For each row how many rows with the same code stand before it."""
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    new = np.concatenate((np.ones(min(ranked.size, 1), bool), ranked[1:] != ranked[:-1]))
    first = np.flatnonzero(new)
    found = np.empty(codes.size, np.int64)
    found[order] = np.arange(codes.size) - np.repeat(first, np.diff(np.append(first, codes.size)))
    return found
