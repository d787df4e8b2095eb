"""A recording cut into stretches of time of one length: the windows of everything that is told over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import StepscopeError

Ints = NDArray[np.int64]

_BUCKETS = 100
_MOST_BUCKETS = 1_000_000
_US = 1_000


def stretches(low: int, high: int, bucket_ns: int | None) -> Ints:
    """Bounds of stretches of equal length from low to high, the last one perhaps shorter. Units: ns.

    Without `bucket_ns` the length is the smallest power of ten µs that makes at most 100 of them. Raises StepscopeError
    if there would be too many.
    """
    length = max(high - low, 1)
    if bucket_ns is None:
        bucket_ns = _US
        while bucket_ns * _BUCKETS < length:
            bucket_ns *= 10
    if bucket_ns < 1 or length / bucket_ns > _MOST_BUCKETS:
        hint = f"choose --bucket-ns of at least {-(-length // _MOST_BUCKETS)}"
        raise StepscopeError(f"no more than {_MOST_BUCKETS:,} stretches of time are shown", hint)
    return np.append(np.arange(low, low + length, bucket_ns), high)
