"""The recording cut into blocks of time, in which lateness is summed up: the steps, or equal parts of the work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analyses.ranks.grouped_medians import Floats, Ints, dense
from stepscope.analyses.ranks.matching import Job

_MOST = 128
_WITHOUT_STEPS = 40
_LEAST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block of each exchange, and how many there are. `steps` are the steps' numbers, if blocks are steps."""

    of_exchange: Ints
    n: int
    steps: Ints | None

    def sums(self, series: Ints, values: Floats, blocks: Ints, n_series: int) -> Floats:
        """Values summed by series and block; NaN where there are none."""
        known = np.isfinite(values)
        cell = series[known] * self.n + blocks[known]
        total = np.bincount(cell, values[known], minlength=n_series * self.n)
        count = np.bincount(cell, minlength=n_series * self.n)
        return np.where(count > 0, total, np.nan).reshape(n_series, self.n)


def blocks_of(job: Job) -> Blocks:
    """Steps, several together where they are many; where they are few or unknown, parts with equally many exchanges.

    For each group the exchanges are counted by themselves, so that a block holds the same ones of all groups.
    """
    step = job.exchanges["step"]
    numbers = np.unique(step.drop_nulls().to_numpy()).astype(np.int64)
    if step.null_count() == 0 and numbers.size >= _LEAST_STEPS:
        n = min(numbers.size, _MOST)
        place = np.searchsorted(numbers, step.to_numpy())
        return Blocks(place * n // numbers.size, n, numbers if n == numbers.size else None)
    group = dense(job.exchanges["group"].to_numpy().astype(np.int64))
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    place = np.empty(group.size, np.int64)
    place[order] = np.arange(group.size) - np.repeat(np.cumsum(counts) - counts, counts)
    n = min(_WITHOUT_STEPS, int(counts.max()))
    return Blocks(place * n // counts[group], n, None)
