"""The normal distribution on arrays, without SciPy, which takes a second to import."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_CENTRE = (
    (
        -39.69683028665376,
        220.9460984245205,
        -275.9285104469687,
        138.3577518672690,
        -30.66479806614716,
        2.506628277459239,
    ),
    (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0),
)
_TAIL = (
    (-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
     2.938163982698783),
    (0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0),
)  # fmt: skip
_EDGE = 0.02425


def quantile(probability: Floats) -> Floats:
    """Values below which a standard normal lies with these probabilities (above 0, below 1); NaN stay.

    Source: P. J. Acklam's rational approximation; relative error below 1.2e-9.
    """
    found = np.full(probability.shape, np.nan)
    low, high = probability < _EDGE, probability > 1 - _EDGE
    mid = (probability >= _EDGE) & (probability <= 1 - _EDGE)
    q = probability[mid] - 0.5
    found[mid] = q * np.polyval(_CENTRE[0], q * q) / np.polyval(_CENTRE[1], q * q)
    for rows, tail, sign in ((low, probability[low], 1.0), (high, 1 - probability[high], -1.0)):
        q = np.sqrt(-2.0 * np.log(tail))
        found[rows] = sign * np.polyval(_TAIL[0], q) / np.polyval(_TAIL[1], q)
    return found


def above(value: float) -> float:
    """The probability that a standard normal is greater."""
    return 0.5 * math.erfc(value / math.sqrt(2.0))


def student_quantile(probability: float, freedom: float) -> float:
    """The value below which Student's t with that many degrees of freedom lies with that probability (above 0.5).

    Source: G. W. Hill, Student's t-quantiles, Communications of the ACM 13 (1970), algorithm 396.
    """
    tail = 2.0 * (1.0 - probability)
    n = freedom
    if n < 1.5:
        return 1.0 / math.tan(tail * math.pi / 2)
    if n < 2.5:
        return math.sqrt(2.0 / (tail * (2.0 - tail)) - 2.0)
    a = 1.0 / (n - 0.5)
    b = 48.0 / (a * a)
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * n
    y = (d * tail) ** (2.0 / n)
    if y > 0.05 + a:
        x = float(quantile(np.array([tail / 2]))[0])
        y = x * x
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        y = ((1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0) + 0.5 / (n + 4.0)) * y - 1.0) * (
            n + 1.0
        ) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)
