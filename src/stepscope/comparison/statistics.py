"""The statistics of a comparison: how sure a difference between two runs is, and how much healthy runs may differ.

A difference must pass two separate tests:

- *Is it more than the noise of these cycles?* Welch's test of the means, its variance inflated by the correlation of
  neighbouring cycles (an AR(1) process of lag-1 correlation r has (1 + r) / (1 - r) times the variance of the mean that
  independent values have), its degrees of freedom lowered as much.
- *Is it more than two healthy runs of the same program differ?* Cycles within a run vary less than runs do, so a single
  run does not show this. The standard deviation of runs is estimated from repeats and shrunk towards a prior that
  counts as `PRIOR_RUNS` of them. The prior is the larger of the caller's floor (physics of the quantity) and a share of
  the spread of the cycles, which grows with their correlation: programs whose cycles scatter widely also drift widely.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.student_t import upper_quantile, upper_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


#: Weight of the prior on the drift between runs, in runs. Four leave a t distribution with tails, not certainty.
PRIOR_RUNS = 4
#: Two runs with a prior standard deviation s differ by up to this times s: t(4 degrees of freedom, 97.5 %) × √2.
PRIOR_REACH = 2.7764451 * 2**0.5
#: Drift between runs (standard deviation) as a share of the spread of cycles within one.
SPREAD_SHARE = 0.3
#: The same if neighbouring cycles have correlation 1: what changes slowly within a run differs between runs.
SLOW_SHARE = 0.6
#: Correlation above this cannot be distinguished from a trend in the few cycles of a recording.
_MOST_CORRELATED = 0.9
#: Least degrees of freedom, however strongly cycles are correlated.
_MOST_BLOCKS = 1_000
_LEAST_FREEDOM = 2
#: With fewer cycles their correlation cannot be estimated.
_FEW = 4
#: Cycles that a side needs for an interval: the variance of n values has n − 1 degrees of freedom.
LEAST_FOR_INTERVAL = 2


class Moments(msgspec.Struct, frozen=True):
    """Mean and scatter of each quantity (index) on one side, and the numbers of runs and cycles that have it.

    `squares` and `products` are sums over all runs: of squares around the run's mean, and of products of neighbours.
    `inverse` is the sum of 1 / cycles over the runs, `between` the sum of squares of the runs' means around their mean.
    """

    mean: Floats
    runs: Floats
    cycles: Floats
    squares: Floats
    products: Floats
    inverse: Floats
    between: Floats

    @property
    def variance(self) -> Floats:
        """Variance of cycles within a run; nan if no run has two cycles."""
        with np.errstate(invalid="ignore", divide="ignore"):
            freedom = self.cycles - self.runs
            variance: Floats = np.where(freedom > 0, self.squares / freedom, np.nan)
        return variance

    def within(self, factor: Floats) -> Floats:
        """Variance of the mean due to the scatter of cycles, whose correlation inflates it by `factor`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            variance: Floats = np.nan_to_num(self.variance) * factor * self.inverse / self.runs**2
        return variance


class Differences(msgspec.Struct, frozen=True):
    """For each quantity: difference of means, its interval, p-value, drift, and smallest detectable change.

    Interval, p-value and smallest detectable change are nan with fewer than `LEAST_FOR_INTERVAL` cycles on a side.
    """

    delta: Floats
    low: Floats
    high: Floats
    p_value: Floats
    drift: Floats
    detectable: Floats


def inflation(squares: Floats, products: Floats, n: Floats, runs: Floats) -> Floats:
    """How many times the correlation of neighbours inflates the variance of a mean, from `n` cycles of `runs` runs.

    With few cycles the estimate of the correlation is uncertain and too small, so its bias, (1 + 3 r) / m for m cycles
    a run (Kendall 1954), and one standard error are added. Fewer than 4 cycles a run are taken as independent.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        r = np.where(squares > 0, products / squares, 0.0)
        each = n / runs
        unsure = np.sqrt(np.maximum(1 - r**2, 0) / n)
        r = np.clip(r + (1 + 3 * r) / each + unsure, 0.0, _MOST_CORRELATED)
    r = np.where((each < _FEW) | ~np.isfinite(r), 0.0, r)
    factor: Floats = (1 + r) / (1 - r)
    return factor


def moments_of(runs: Sequence[Floats]) -> Moments:
    """Moments of one quantity from its values by cycle, one array per run. Runs without values do not count."""
    known = [run for run in runs if run.size]
    n = np.array([run.size for run in known], float)
    means = np.array([run.mean() for run in known])
    squares = np.array([((run - run.mean()) ** 2).sum() for run in known])
    products = np.array([((run[1:] - run.mean()) * (run[:-1] - run.mean())).sum() for run in known])
    index = np.zeros(n.size, np.intp)
    return combined(index, 1, n, means, squares, products)


def combined(index: NDArray[Any], size: int, n: Floats, means: Floats, squares: Floats, products: Floats) -> Moments:
    """Moments of `size` quantities from rows, one for each quantity (`index`) and run.

    Each row has the number of cycles, their mean, the sum of squares around it, and the sum of products of neighbours.
    """

    def total(values: Floats) -> Floats:
        return np.bincount(index, weights=values, minlength=size).astype(np.float64)

    runs = total(np.ones_like(n))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total(means) / runs
    return Moments(
        mean, runs, total(n), total(squares), total(products), total(1 / n), total((means - mean[index]) ** 2)
    )


def differences(base: Moments, other: Moments, floor: Floats) -> Differences:
    """The difference of each quantity. `floor` is the least standard deviation of healthy runs, in the quantity's unit.

    With one cycle on either side there is no p-value and no interval (nan), because the noise is unknown.

    Source: Welch 1947; shrinkage of a variance towards a scaled inverse chi-squared prior.
    """
    delta = other.mean - base.mean
    squares, products = base.squares + other.squares, base.products + other.products
    factor = inflation(squares, products, base.cycles + other.cycles, base.runs + other.runs)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (factor - 1) / (factor + 1)
        prior = np.maximum(floor, np.maximum(SPREAD_SHARE, SLOW_SHARE * np.sqrt(r)) * _pooled(base, other))
        freedom = PRIOR_RUNS + np.maximum(base.runs - 1, 0) + np.maximum(other.runs - 1, 0)
        of_runs = np.sqrt((PRIOR_RUNS * prior**2 + base.between + other.between) / freedom)
        share = np.sqrt(1 / base.runs + 1 / other.runs)
        limit = upper_quantile(freedom, 0.025)
        drift = limit * of_runs * share
        parts = base.within(factor), other.within(factor)
        within = parts[0] + parts[1]
        welch = _welch_freedom(parts, (base, other), factor)
        p_value = 2 * upper_tail(welch, np.abs(delta) / np.sqrt(within))
        p_value = np.where(within > 0, p_value, np.where(delta == 0, 1.0, 0.0))
        has_noise = np.minimum(base.cycles, other.cycles) >= LEAST_FOR_INTERVAL
        p_value = np.where(has_noise, p_value, np.nan)
        half = np.where(has_noise, limit * np.sqrt(of_runs**2 * share**2 + within), np.nan)
        # 80 % of differences of this size exceed the limits.
        shown = np.maximum(drift, upper_quantile(welch, 0.025) * np.sqrt(within)) + 0.84 * np.sqrt(within)
        shown = np.where(has_noise, shown, np.nan)
    return Differences(delta, delta - half, delta + half, p_value, drift, shown)


def _pooled(base: Moments, other: Moments) -> Floats:
    """Spread of cycles of both sides together, since neither is known to be the healthy one; 0 if unknown."""
    both = np.stack([base.variance, other.variance])
    known = np.isfinite(both)
    pooled: Floats = np.sqrt(np.where(known, both, 0).sum(0) / np.maximum(known.sum(0), 1))
    return pooled


def _welch_freedom(parts: tuple[Floats, Floats], moments: tuple[Moments, Moments], factor: Floats) -> Floats:
    weighed = [
        part**2 / np.maximum((side.cycles - side.runs) / factor, _LEAST_FREEDOM)
        for part, side in zip(parts, moments, strict=True)
    ]
    total = weighed[0] + weighed[1]
    freedom: Floats = np.where(total > 0, (parts[0] + parts[1]) ** 2 / np.where(total > 0, total, 1), 1.0)
    return freedom


def by_false_discovery(p_values: Floats) -> Floats:
    """p-values corrected for their number under any dependence; nan stays. Source: Benjamini and Yekutieli 2001."""
    known = np.flatnonzero(np.isfinite(p_values))
    corrected = np.full(p_values.shape, np.nan)
    if not known.size:
        return corrected
    order = known[np.argsort(p_values[known], kind="stable")]
    m = order.size
    harmonic = (1 / np.arange(1, m + 1)).sum()
    scaled = p_values[order] * m * harmonic / np.arange(1, m + 1)
    corrected[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return corrected


def permutation_p(base: Floats, other: Floats, *, most: int = 2_000) -> float:
    """Chance of so large a difference of means if the cycles had been dealt to the two sides at random, two-sided.

    Exact if there are at most `most` permutations, else from that many random ones (seed 0). Correlated cycles are
    permuted in blocks, whose length is the inflation of their variance; of 2,000 cycles or more blocks are
    longer, so that no side has 2,000 blocks.
    """
    from math import comb

    blocks_base, blocks_other = _blocks(base), _blocks(other)
    sums = np.concatenate([blocks_base[0], blocks_other[0]])
    sizes = np.concatenate([blocks_base[1], blocks_other[1]])
    k, n = blocks_base[0].size, sums.size
    observed = abs(other.mean() - base.mean())
    if comb(n, k) <= most:
        from itertools import combinations

        chosen = np.array(list(combinations(range(n), k)))
        is_base = np.zeros((chosen.shape[0], n), bool)
        np.put_along_axis(is_base, chosen, values=True, axis=1)
    else:
        random = np.random.default_rng(0)
        is_base = np.stack([random.random(n).argsort() < k for _ in range(most)])
    left, n_left = is_base @ sums, is_base @ sizes
    deltas = np.abs((sums.sum() - left) / (sizes.sum() - n_left) - left / n_left)
    least = 0 if comb(n, k) <= most else 1
    tolerance = 1e-9 * max(observed, float(np.abs(sums).max()))
    return float((np.count_nonzero(deltas >= observed - tolerance) + least) / (deltas.size + least))


def _blocks(values: Floats) -> tuple[Floats, Floats]:
    """Sums and sizes of blocks of neighbouring values: at least 4 blocks if there are 4 values."""
    n = values.size
    centred = values - values.mean()
    products = np.array([(centred[1:] * centred[:-1]).sum()])
    factor = inflation(np.array([(centred**2).sum()]), products, np.array([float(n)]), np.ones(1))
    length = int(np.ceil(factor[0]))
    length = max(1, min(length, n // 4), n // _MOST_BLOCKS)
    starts = np.arange(0, n - length + 1, length)
    sums = np.add.reduceat(values, starts)
    sizes = np.diff(np.append(starts, n)).astype(float)
    return sums, sizes


def exceeding(base: Floats, other: Floats, margin: float) -> tuple[float, float]:
    """The other run's share of outlying cycles less that of the base, and its p-value.

    A cycle is an outlier if it is longer than all but the longest of the base by `margin` (in their unit). The p-value
    is that of Fisher's exact test, one-sided. It detects what happens every few cycles, which a mean hides.
    """
    if base.size < 4 or other.size < 4:
        return 0.0, 1.0
    limit = np.sort(base)[-2] + margin
    a, b = int((other > limit).sum()), int((base > limit).sum())
    return a / other.size - b / base.size, more_often(a, other.size, b, base.size)


def more_often(a: int, n_other: int, b: int, n_base: int) -> float:
    """The chance that at least `a` of the a + b cycles that stand out are in the other run, if both are alike.

    Source: Fisher's exact test, one-sided.
    """
    ways = _log_choose(n_other + n_base, a + b)
    hits = range(max(a, a + b - n_base), min(a + b, n_other) + 1)
    chances = [math.exp(_log_choose(n_other, k) + _log_choose(n_base, a + b - k) - ways) for k in hits]
    return min(math.fsum(chances), 1.0)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def at_most(k: int, n: int, p: float) -> float:
    """The chance of `k` hits or fewer among `n`, if each is one with the chance `p`. Source: binomial distribution."""
    from scipy.special import bdtr

    return float(bdtr(k, n, p))
