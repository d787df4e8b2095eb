"""Finds the runs of a series from which on the step takes another time, and single runs that stand out.

The logarithms of the step times are split where the means on both sides differ most, as long as a difference is larger
than chance explains (binary segmentation; Scott and Knott 1974). Three things would make chance look like a change:

- *Many places to split.* The p-value of the best split is multiplied by their number (Bonferroni).
- *Runs that drift together*, as on a machine that is warm in the afternoon. The correlation of neighbouring runs
  inflates the variance of a mean, as that of cycles does in `statistics`.
- *Few runs*, whose scatter may be small by chance. The variance is at least what healthy runs are known to have.

A run that stands out between two alike is no change, whatever its size. The last run alone cannot be told from such a
one, so a change needs two runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.comparison.statistics import PRIOR_RUNS
from stepscope.core.student_t import upper_tail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Chance that a healthy series has a change.
_SIGNIFICANCE = 0.03
#: Runs on each side of a change. Two suffice for the last level if they are far apart from those before.
_LEAST_RUNS = 3
#: Fewer runs show no change, whatever they take.
LEAST_SERIES = 2 * _LEAST_RUNS - 1
#: The p-value of a last level of two runs counts so many times: two slow runs in a row are not that rare.
_OF_TWO = 30.0
#: The best of all places fits as well as the best of so many independent ones: a × ln(runs) − b. By simulation of
#: independent runs, 6 to 3,000 of them.
_TRIED = 9.0, 17.0
#: Weights of what is added to estimates of the correlation: their bias and standard error, by simulation.
_BIAS, _UNSURE = 1.3, 1.0
#: Degrees of freedom that the differences of neighbours have, a run.
_OF_PAIRS = 0.5
#: A smaller change may be certain in a long series, and matters to nobody.
LEAST_CHANGE = 0.01
#: A run stands out if it is this many standard deviations away: one in 15,000 healthy runs.
_STANDS_OUT = 4.0
#: Neighbours are alike within so many.
_ALIKE = 2.5
#: Runs on each side whose median says what is usual.
_AROUND = 3
_MEDIAN_TO_SD = 1.4826


class Levels(msgspec.Struct, frozen=True):
    """What a series consists of: `starts` are the first runs of each level, 0 among them; `single` ones stand out.

    `p_values` are those of the levels after the first. `last_is_open` says that the last run stands out and no run
    follows it: the next one will show whether that is a change.
    """

    starts: tuple[int, ...]
    p_values: tuple[float, ...]
    single: tuple[int, ...]
    last_is_open: bool


def levels_of(steps: Floats, floor: float) -> Levels:
    """The levels of a series of step times (above 0, any unit), in the order of the runs.

    `floor` is the least standard deviation of healthy runs, as a share of the step.
    """
    values = np.log(np.asarray(steps, np.float64))
    usual = _standing_out(values, max(floor, _scatter(values)))
    smooth = values.copy()
    smooth[list(usual)] = list(usual.values())
    splits: dict[int, float] = {}
    _split(smooth, floor, splits)
    starts = (0, *sorted(splits))
    single = [
        low + i
        for low, high in zip(starts, (*starts[1:], values.size), strict=True)
        for i in np.flatnonzero(_far_from_level(values[low:high], floor)).tolist()
    ]
    last = values.size - 1
    is_open = last in single
    return Levels(starts, tuple(splits[i] for i in starts[1:]), tuple(i for i in single if i != last), is_open)


def _far_from_level(values: Floats, floor: float) -> NDArray[np.bool_]:
    """Which runs of a level are far from its median."""
    apart = np.abs(values - np.median(values))
    scatter = max(floor, float(np.median(apart)) * _MEDIAN_TO_SD)
    far: NDArray[np.bool_] = apart > _STANDS_OUT * scatter
    return far & (values.size >= LEAST_SERIES)


def _scatter(values: Floats) -> float:
    """Standard deviation of runs around their level, from the differences of neighbours: levels hardly matter."""
    if values.size < 3:
        return 0.0
    return float(np.median(np.abs(np.diff(values))) * _MEDIAN_TO_SD / np.sqrt(2))


def _standing_out(values: Floats, scatter: float) -> dict[int, float]:
    """Runs that stand out, with what is usual there.

    These are single runs, and pairs, that are far from the runs around them, where those are alike. Around the first
    and the last run are the two next to it. A pair at an end is none: two runs may be a level. Nor are runs usual, but
    for the last two, that are far from the median of the seven around them.
    """
    usual: dict[int, float] = {}
    if values.size <= _AROUND:
        return usual
    window = np.lib.stride_tricks.sliding_window_view(np.pad(values, _AROUND, mode="reflect"), 2 * _AROUND + 1)
    middle = np.median(window, axis=1)
    is_usual = np.abs(values - middle) <= _STANDS_OUT * scatter
    ends = np.array([[values[1], values[0], values[2]], [values[-3], values[-1], values[-2]]])
    inner = np.lib.stride_tricks.sliding_window_view(values, 3)
    pairs = np.lib.stride_tricks.sliding_window_view(values, 4) if values.size > 3 else np.empty((0, 4))
    for rows, first in ((ends[:1], 0), (inner, 1), (ends[1:], values.size - 1), (pairs, 1)):
        around, inside = rows[:, [0, -1]], rows[:, 1:-1]
        low, high = around.min(1), around.max(1)
        is_far = (inside.min(1) > high + _STANDS_OUT * scatter) | (inside.max(1) < low - _STANDS_OUT * scatter)
        for i in np.flatnonzero(is_far & (high - low < _ALIKE * scatter)).tolist():
            for at in range(first + i, first + i + inside.shape[1]):
                if not is_usual[at]:
                    usual.setdefault(at, float(low[i] + high[i]) / 2)
    # A level of three runs is what is usual there. The last two may be the begin of one.
    for at in np.flatnonzero(~is_usual[:-2]).tolist():
        usual.setdefault(at, float(middle[at]))
    return usual


def _split(values: Floats, floor: float, splits: dict[int, float]) -> None:
    """Adds the first runs of all levels but the first, with their p-values."""
    pending = [(0, values.size)]
    while pending:
        low, high = pending.pop()
        best = _best_split(values[low:high], floor, is_last=high == values.size)
        if best is None:
            continue
        at, p_value = low + best[0], best[1]
        splits[at] = p_value
        pending += [(low, at), (at, high)]


def _best_split(values: Floats, floor: float, *, is_last: bool) -> tuple[int, float] | None:
    """The place where two means fit best, and the chance of so good a fit; None if chance may explain it."""
    n = values.size
    left = np.arange(_LEAST_RUNS, n - _LEAST_RUNS + 1 + is_last)
    if left.size == 0:
        return None
    right = n - left
    centred = values - values.mean()
    sums = np.cumsum(centred)[left - 1]
    means = sums / left, -sums / right
    squares = np.maximum((centred**2).sum() - left * means[0] ** 2 - right * means[1] ** 2, 0.0)
    at = int(np.argmin(squares))
    delta = means[1][at] - means[0][at]
    if abs(delta) < np.log1p(LEAST_CHANGE):
        return None
    apart = centred - np.where(np.arange(n) < left[at], means[0][at], means[1][at])
    chance = _chance(apart, float(delta), 1 / left[at] + 1 / right[at], floor)
    p_value = chance * min(left.size, max(1.0, _TRIED[0] * np.log(n) - _TRIED[1]))
    p_value *= _OF_TWO if right[at] < _LEAST_RUNS else 1.0
    return (int(left[at]), float(p_value)) if p_value <= _SIGNIFICANCE else None


def _chance(apart: Floats, delta: float, share: float, floor: float) -> float:
    """p-value of a difference of two means, from what is `apart` from them; `share` is the sum of 1 / runs.

    Further changes on either side look like scatter and correlation. The differences of near neighbours hardly show
    them, but tell less of slow drift: the better of both counts, as one of two.
    """
    n = apart.size
    squares = float((apart**2).sum())
    r = float((apart[1:] * apart[:-1]).sum()) / squares if squares else 0.0
    # Two means were taken from the values, which lowers the correlation that is left (Kendall 1954, for one mean).
    r = max(r + _BIAS * (1 + 3 * r) / n, 0.0)
    one, two = (_mean_square(apart[lag:] - apart[:-lag]) / 2 for lag in (1, 2))
    # The variances of differences of runs one and two apart are as 1 - r to 1 - r².
    slow = min(max(two / one - 1, 0.0) + _UNSURE / np.sqrt(n), 0.9) if one else 0.0
    of_levels = _tail(delta, share, squares / (n - 2), n - 2, min(r, slow), floor)
    of_neighbours = _tail(delta, share, one / (1 - slow), _OF_PAIRS * n, slow, floor)
    return min(of_levels, 2 * of_neighbours)


def _tail(delta: float, share: float, variance: float, freedom: float, r: float, floor: float) -> float:
    """Two-sided p-value with the variance as estimated, and shrunk to that of healthy runs: the larger of both."""
    factor = (1 + r) / (1 - r)
    shrunk = max((PRIOR_RUNS * floor**2 + freedom * variance) / (PRIOR_RUNS + freedom), floor**2)
    chances = [
        2 * float(upper_tail(max(known / factor, 1.0), abs(delta) / np.sqrt(each * factor * share)))
        for each, known in ((variance, freedom), (shrunk, PRIOR_RUNS + freedom))
        if each > 0
    ]
    return max(chances, default=0.0)


def _mean_square(values: Floats) -> float:
    """Mean of the squares, of which no one counts for more than nine times the median."""
    squares = values**2
    return float(np.minimum(squares, 9 * np.median(squares)).mean())
