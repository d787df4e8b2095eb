"""Outliers among many series: a rank that is late always, for a while, every n steps, or now and then.

If no rank is to blame all series are alike, so the normal scores of a series among all of them have mean 0 and variance
1 whatever the distribution; their sums are tested. So are sums of exponential (Savage) scores, which weigh the largest
values most and so detect a rank that is late seldom, but by much. Autocorrelation makes sums vary more; by how much is
estimated from all series together. Each p-value is multiplied by the number of series and windows that are tried.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np

from stepscope.analyses.ranks.grouped_medians import MAD_TO_SD, Floats
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Bools, Ints
from stepscope.core.student_t import upper_quantile

STEADY, SINCE, TRANSIENT, PERIODIC, IRREGULAR = PATTERNS = ("steady", "since", "transient", "periodic", "irregular")
LEVEL = 0.05
#: The chance that a job whose ranks differ in speed for good, but not more than by chance, has an outlier.
_OUTLIER_LEVEL = 0.02

#: Factors on p-values by kind of test: 0.6 of the level is for whole series, the rest is divided into thirds.
_WHOLE, _SORTS = 1 / 0.6, 3 / 0.4
_SHORTEST = 3  # blocks: fewer are no straggler
_LEAST_SCANNED = 12
_MOST_PERIOD = 24
_CLEARLY = 1.0  # standard deviations by which a window or a period must exceed the whole series
#: Number of series from which it is known how much healthy ones differ.
_ENOUGH_SERIES = 8


class Outlier(msgspec.Struct, frozen=True):
    """A series that stands out: which one, in which blocks, and its p-value over all series and windows.

    `apart` is the distance of its mean from that of the other series, in units of the least distance that makes an
    outlier among that many series; NaN if there are too few.
    """

    series: int
    pattern: str
    blocks: Ints
    period: int | None
    p_value: float
    apart: float


def stand_out(values: Floats, role: Ints, *, level: float = LEVEL) -> list[Outlier]:
    """The series (lines) that are higher than the others of their role, by p-value; columns are blocks of time.

    NaN are unknown. The level is family-wise: if no series differs, the chance to name any is at most `level`, most of
    it for whole series, the rest for bursts, windows and periods.
    """
    n_series = values.shape[0]
    scores, bursts, inflation = np.full(values.shape, np.nan), np.full(values.shape, np.nan), np.ones((n_series, 1))
    for number in distinct_values(role).tolist():
        rows = np.flatnonzero(role == number)
        places = _places(values[rows])
        scores[rows] = _normal_quantiles(places)
        bursts[rows] = -np.log1p(-places)
        inflation[rows] = _inflation(scores[rows])
    known = np.isfinite(scores)
    scaled = np.where(known, scores, 0.0) / np.sqrt(inflation)
    tries = [
        _whole(scaled, known), _windows(scaled, known), _beats(scaled, known),
        _bursts(np.where(known, bursts, 0.0), known, inflation[:, 0]),
    ]  # fmt: skip
    outliers = []
    for series in np.flatnonzero(known.any(axis=1)).tolist():
        one = _best([(t.pattern, float(t.score[series]), n_series * t.n_tried) for t in tries], level)
        if one is None:
            continue
        which, p_value = one
        blocks, period = tries[which].blocks(series)
        blocks = blocks[known[series, blocks]]
        pattern = tries[which].pattern
        if pattern == TRANSIENT and blocks[-1] == np.flatnonzero(known[series])[-1]:
            pattern = SINCE
        alike = role == role[series]
        apart = _apart(values[alike][:, blocks], int(alike[:series].sum()))
        outliers.append(Outlier(series, pattern, blocks, period, p_value, apart))
    return sorted(outliers, key=lambda f: f.p_value)


class _Try(msgspec.Struct, frozen=True):
    """One test of every series: its score, the number of variants that were tried, and the blocks of the score.

    Blocks are `first` to `last` (exclusive), in steps of `stride`.
    """

    pattern: str
    score: Floats
    n_tried: float
    first: Ints
    last: Ints
    stride: Ints

    def blocks(self, series: int) -> tuple[Ints, int | None]:
        """The blocks of a series' score, and the period if there is one."""
        stride = int(self.stride[series])
        return np.arange(self.first[series], self.last[series], stride), stride if stride > 1 else None


def _best(tries: list[tuple[str, float, float]], level: float) -> tuple[int, float] | None:
    """The test with the highest score, and its p-value; a part of a series must clearly exceed the whole."""
    best, best_score, best_p = None, -np.inf, 1.0
    for which, (pattern, score, times) in enumerate(tries):
        p_value = min(1.0, times * 0.5 * math.erfc(score / math.sqrt(2.0)))
        weighed = score if pattern == STEADY else score - _CLEARLY
        if p_value <= level and weighed > best_score:
            best, best_score, best_p = which, weighed, p_value
    return None if best is None else (best, best_p)


def _places(values: Floats) -> Floats:
    """The rank of each value among all, scaled to 0..1 (exclusive); NaN stay."""
    known = np.isfinite(values)
    flat = values[known]
    places = np.full(values.shape, np.nan)
    place = np.empty(flat.size)
    place[np.argsort(flat, kind="stable")] = (np.arange(flat.size) + 0.5) / max(flat.size, 1)
    places[known] = place
    return places


def _normal_quantiles(places: Floats) -> Floats:
    """The value below which a standard normal variable lies with each of these probabilities; NaN stay."""
    known = np.isfinite(places)
    scores = np.full(places.shape, np.nan)
    scores[known] = np.fromiter(map(NormalDist().inv_cdf, places[known].tolist()), np.float64)
    return scores


def _inflation(scores: Floats) -> float:
    """By how much the variance of a sum over time exceeds that of independent values (Bartlett's window)."""
    n = scores.shape[1]
    known = np.isfinite(scores)
    if n < 4 or not known.any():
        return 1.0
    counts = np.maximum(known.sum(axis=1, keepdims=True), 1)
    rest = np.where(known, scores - np.nansum(scores, axis=1, keepdims=True) / counts, 0.0)
    power = float(np.square(rest).sum()) / max(int(known.sum()), 1)
    if power == 0.0:
        return 1.0
    reach = max(1, int(np.sqrt(n)))
    total = 1.0
    for lag in range(1, reach + 1):
        pairs = max(int((known[:, lag:] & known[:, :-lag]).sum()), 1)
        # Subtracting each series' mean lowers the correlation of neighbours by 1/n; half a standard error counts as
        # chance.
        alike = float((rest[:, lag:] * rest[:, :-lag]).sum()) / pairs / power + 1.0 / n - 0.5 / np.sqrt(pairs)
        total += 2.0 * (1.0 - lag / (reach + 1)) * max(alike, 0.0)
    return total


def _whole(scaled: Floats, known: Bools) -> _Try:
    n_series, n_blocks = scaled.shape
    score = scaled.sum(axis=1) / np.sqrt(np.maximum(known.sum(axis=1), 1))
    every = np.full(n_series, n_blocks)
    return _Try(STEADY, score, _WHOLE, np.zeros(n_series, np.int64), every, np.ones(n_series, np.int64))


def _bursts(scores: Floats, known: Bools, inflation: Floats) -> _Try:
    """The sum of exponential scores, which for n independent ones is Gamma distributed with shape n.

    Source of the normal score of a Gamma variable: Wilson and Hilferty, 1931.
    """
    n_series, n_blocks = scores.shape
    shape = np.maximum(known.sum(axis=1), 1) / inflation
    ratio = scores.sum(axis=1) / inflation / shape
    z = (np.cbrt(ratio) - (1.0 - 1.0 / (9.0 * shape))) * 3.0 * np.sqrt(shape)
    ones = np.ones(n_series, np.int64)
    return _Try(IRREGULAR, z, _SORTS, 0 * ones, n_blocks * ones, ones)


def _windows(scaled: Floats, known: Bools) -> _Try:
    """The run of blocks with the highest score."""
    n_series, n = scaled.shape
    best, first, last = np.full(n_series, -np.inf), np.zeros(n_series, np.int64), np.full(n_series, n)
    if n < _LEAST_SCANNED:
        return _Try(TRANSIENT, best, 1.0, first, last, np.ones(n_series, np.int64))
    below, counted = (np.zeros((n_series, n + 1)) for _ in range(2))
    np.cumsum(scaled, axis=1, out=below[:, 1:])
    np.cumsum(known, axis=1, out=counted[:, 1:])
    for length in range(_SHORTEST, n):
        count = counted[:, length:] - counted[:, :-length]
        sums = (below[:, length:] - below[:, :-length]) / np.sqrt(np.maximum(count, 1.0))
        sums[count < _SHORTEST] = -np.inf
        at = sums.argmax(axis=1)
        highest = np.take_along_axis(sums, at[:, None], axis=1)[:, 0]
        better = highest > best
        best[better], first[better], last[better] = highest[better], at[better], at[better] + length
    # Windows that overlap by more than half are hardly different tests: some 2 n / length per doubling of length.
    n_tried = float(sum(2.0 * n / 2.0**power for power in np.arange(np.log2(_SHORTEST), np.log2(n), 0.5)))
    return _Try(TRANSIENT, best, _SORTS * n_tried, first, last, np.ones(n_series, np.int64))


def _beats(scaled: Floats, known: Bools) -> _Try:
    """The period and phase whose blocks have the highest score."""
    n_series, n = scaled.shape
    best, first, stride = np.full(n_series, -np.inf), np.zeros(n_series, np.int64), np.ones(n_series, np.int64)
    n_tried = 1
    for period in range(2, min(_MOST_PERIOD, n // 4) + 1):
        for phase in range(period):
            count = known[:, phase::period].sum(axis=1)
            sums = scaled[:, phase::period].sum(axis=1) / np.sqrt(np.maximum(count, 1))
            better = (sums > best) & (count >= _SHORTEST)
            best[better], first[better], stride[better] = sums[better], phase, period
        n_tried += period
    return _Try(PERIODIC, best, _SORTS * n_tried, first, np.full(n_series, n), stride)


def _apart(values: Floats, which: int) -> float:
    """How far one series is from the others, in units of the least distance that makes an outlier.

    Healthy series also differ permanently. Their spread is estimated from their number, hence Student's distribution.
    """
    n_series = values.shape[0]
    if n_series < _ENOUGH_SERIES:
        return float("nan")
    known = np.isfinite(values)
    means = np.nansum(values, axis=1) / np.maximum(known.sum(axis=1), 1)
    rest = np.delete(means, which)
    middle = float(np.median(rest))
    spread = max(MAD_TO_SD * float(np.median(np.abs(rest - middle))), 1e-9)
    # The efficiency of a median absolute deviation is some 0.37.
    least = float(upper_quantile(max(0.37 * (n_series - 1), 1.0), _OUTLIER_LEVEL / n_series))
    return (float(means[which]) - middle) / spread / least


def is_outlier(value: float, rest: Floats) -> bool:
    """Whether a value is higher than a few others make likely, if all are normally distributed.

    Source: Student's test of one more value, with the level divided among all (Bonferroni). False with fewer than two
    others.
    """
    n = rest.size
    if n < 2:
        return False
    spread = max(float(rest.std(ddof=1)) * np.sqrt(1.0 + 1.0 / n), 1e-9)
    return bool((value - float(rest.mean())) / spread >= float(upper_quantile(n - 1.0, _OUTLIER_LEVEL / (n + 1))))
