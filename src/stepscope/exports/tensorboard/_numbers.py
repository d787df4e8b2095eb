"""Numbers as the plugin's JSON has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def rounded(values: NDArray[Any]) -> list[int]:
    """Each to the nearest integer, halves to the even one."""
    return [round(v) for v in values.tolist()]


def shown(value: float) -> float:
    """Two digits; of what is smaller than one hundredth the first digit that is not 0."""
    size = abs(value)
    if size >= 0.01 or value == 0:
        return round(value, 2)
    return round(value, abs(math.floor(math.log10(size))))
