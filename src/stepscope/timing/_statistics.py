"""Statistics of a repeated measurement: median with its interval, spread, outliers; and the ratio of two medians.

The only assumption about the times is that the repeats are independent and have the same distribution.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    Times = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.95
#: Beyond the third quartile by this many interquartile ranges: "far out" in Tukey, Exploratory Data Analysis, 1977.
FAR_OUT = 3.0


class Interval(msgspec.Struct, frozen=True):
    """Bounds that hold the true value with probability `level` (0..1): the level reached, not the one asked for."""

    low: float
    high: float
    level: float


class Summary(msgspec.Struct, frozen=True):
    """Times of repeats in ns. `n_outliers` are those that took far longer; they are counted, and left in."""

    n: int
    median: float
    interval: Interval | None
    min: float
    mean: float
    p95: float
    max: float
    n_outliers: int


def summary(times: Times) -> Summary:
    """Statistics of the times of one function. Percentiles are interpolated between neighbours."""
    first, third, p95 = (float(q) for q in np.quantile(times, [0.25, 0.75, 0.95]))
    return Summary(
        n=times.size,
        median=float(np.median(times)),
        interval=median_interval(times),
        min=float(times.min()),
        mean=float(times.mean()),
        p95=p95,
        max=float(times.max()),
        n_outliers=int((times > third + FAR_OUT * (third - first)).sum()),
    )


def median_interval(times: Times, level: float = LEVEL) -> Interval | None:
    """The interval of the median that two order statistics make: the narrowest, symmetric in rank, of that level.

    Of n independent times, the number below the true median is binomial (n, 1/2): from the k-th smallest to the k-th
    largest the median is missed with twice the probability of less than k. Below six times no interval reaches 95 %:
    then it goes from the least to the largest, and says what level that has. None of a single time.

    Source: J.-Y. Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1.
    """
    n = times.size
    if n < 2:
        return None
    below = _below_half(n, (1 - level) / 2)
    k, missed = below or (1, 0.5**n)
    ordered = np.sort(times)
    return Interval(float(ordered[k - 1]), float(ordered[n - k]), 1 - 2 * missed)


def _below_half(n: int, most: float) -> tuple[int, float] | None:
    """The largest k >= 1 with P(X < k) <= most, X binomial (n, 1/2), and that probability; None if there is none."""
    # Ten standard deviations below the mean there is less than 1e-23.
    start = max(0, int(n / 2 - 5 * math.sqrt(n)))
    at_n = math.lgamma(n + 1) - n * math.log(2)
    total, largest = 0.0, None
    for i in range(start, n // 2 + 1):
        total += math.exp(at_n - math.lgamma(i + 1) - math.lgamma(n - i + 1))
        if total > most:
            break
        largest = (i + 1, total)
    return largest


def speedup(times: Times, reference: Times, level: float = LEVEL) -> tuple[float, Interval | None]:
    """How many times faster than the reference: median by median, and an interval of that ratio.

    The interval is made of those of both medians, each missed with half the probability: the ratio is missed only if
    one of them is (Bonferroni's inequality), so the level holds, whether or not the two were measured independently.
    """
    ratio = _ratio(float(np.median(reference)), float(np.median(times)))
    each = 1 - (1 - level) / 2
    own, other = median_interval(times, each), median_interval(reference, each)
    if own is None or other is None or own.level + other.level <= 1:
        return ratio, None
    return ratio, Interval(_ratio(other.low, own.high), _ratio(other.high, own.low), own.level + other.level - 1)


def _ratio(upper: float, lower: float) -> float:
    return upper / lower if lower else math.inf if upper else math.nan
