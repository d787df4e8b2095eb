"""Two tests of whether two groups differ, for many pairs of groups at once: Welch's t and Mann and Whitney's U.

Source: Welch (1947); Mann and Whitney (1947), with correction for ties and continuity; the incomplete beta function by
its continued fraction (DLMF 8.17.22), evaluated by Lentz's method.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: U is compared with its exact distribution if the smaller group is no larger and no value comes twice.
_MOST_EXACT = 8
_PRECISION = 1e-15
_MOST_TERMS = 10_000
_TINY = 1e-300


def welch(first: tuple[Floats, Floats, Ints], second: tuple[Floats, Floats, Ints]) -> Floats:
    """Two-sided p of equal means, from mean, standard deviation (ddof 1) and size of both groups; all of length n.

    1 where a group has fewer than two members. Without any spread: not a number if the means are equal, else 0.
    """
    several = (first[2] > 1) & (second[2] > 1)
    (mean_1, sd_1, n_1), (mean_2, sd_2, n_2) = ([column[several] for column in group] for group in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        error_1, error_2 = sd_1**2 / n_1, sd_2**2 / n_2
        freedom = (error_1 + error_2) ** 2 / (error_1**2 / (n_1 - 1) + error_2**2 / (n_2 - 1))
        t = (mean_1 - mean_2) / np.sqrt(error_1 + error_2)
    p = np.ones(several.size)
    p[several] = student_tails(t, np.where(np.isnan(freedom), 1.0, freedom))
    return p


def student_tails(t: Floats, freedom: Floats) -> Floats:
    """Probability that Student's t is further from 0 than `t`, at as many degrees of freedom; nan where t is."""
    p = np.where(np.isnan(t), np.nan, 0.0)
    sound = np.isfinite(t)
    t, freedom = t[sound], freedom[sound]
    inside, outside = freedom / (freedom + t**2), t**2 / (freedom + t**2)
    half = np.full_like(freedom, 0.5)
    # The fraction converges fast below the mean of the distribution; above it the other tail is taken.
    near = inside < (freedom / 2 + 1) / (freedom / 2 + 2.5)
    a, b = np.where(near, freedom / 2, half), np.where(near, half, freedom / 2)
    lower = _incomplete_beta(a, b, np.where(near, inside, outside), np.where(near, outside, inside))
    p[sound] = np.where(near, lower, 1 - lower)
    return np.clip(p, 0.0, 1.0)


def _incomplete_beta(a: Floats, b: Floats, x: Floats, y: Floats) -> Floats:
    """The regularised incomplete beta function of x, where y is 1 − x."""
    log_beta = np.array([math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q) for p, q in zip(a, b, strict=True)])
    with np.errstate(divide="ignore"):
        front = np.exp(a * np.log(x) + b * np.log(y) - log_beta) / a
    c, d = np.ones_like(x), 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = d.copy()
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = np.ones_like(x)
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            step *= c * d
        fraction *= step
        if np.all(np.abs(step - 1) < _PRECISION):
            break
    return np.asarray(np.where(x > 0, front * fraction, 0.0))


def _off_zero(values: Floats) -> Floats:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def mann_whitney(u: Floats, n_1: Ints, n_2: Ints, ties: Floats) -> Floats:
    """Two-sided p that neither group tends to the larger values, from U of one of them.

    `ties` is the sum of t³ − t over the values that come t times in both groups together: 0 if none comes twice. p is 1
    where a group has fewer than two members.
    """
    u = np.maximum(u, n_1 * n_2 - u)
    p = np.ones_like(u)
    several = (n_1 > 1) & (n_2 > 1)
    exact = several & (ties == 0) & (np.minimum(n_1, n_2) <= _MOST_EXACT)
    for size_1, size_2 in np.unique(np.column_stack([n_1[exact], n_2[exact]]), axis=0).tolist():
        alike = exact & (n_1 == size_1) & (n_2 == size_2)
        p[alike] = 2 * exact_tails(min(size_1, size_2), max(size_1, size_2))[u[alike].astype(np.int64)]
    rest = several & ~exact
    p[rest] = _normal_tails(u[rest], n_1[rest], n_2[rest], ties[rest])
    return np.minimum(p, 1.0)


def _normal_tails(u: Floats, n_1: Ints, n_2: Ints, ties: Floats) -> Floats:
    n = n_1 + n_2
    spread = np.sqrt(n_1 * n_2 / 12 * ((n + 1) - ties / (n * (n - 1))))
    with np.errstate(divide="ignore"):
        z = (u - n_1 * n_2 / 2 - 0.5) / spread
    return np.array([math.erfc(value / math.sqrt(2)) for value in z])


@cache
def exact_tails(n_1: int, n_2: int) -> Floats:
    """Probability that U is k or more, for k from 0 to n₁·n₂, if no value comes twice.

    The number of orders with each U is a coefficient of the Gaussian binomial, the product over i from 1 to n₁ of
    (1 − q^(n₂+i)) / (1 − q^i). In whole numbers, for they grow beyond what a double holds.
    """
    counts: NDArray[Any] = np.zeros(n_1 * n_2 + 1, dtype=object)
    counts[0] = 1
    for i in range(1, n_1 + 1):
        counts[n_2 + i :] -= counts[: max(counts.size - n_2 - i, 0)].copy()
        for start in range(min(i, counts.size)):
            counts[start::i] = np.cumsum(counts[start::i])
    tails = np.cumsum(counts[::-1])[::-1]
    return np.asarray(tails / tails[0], dtype=np.float64)
