from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.common.time_buckets import stretches
from stepscope.core.errors import StepscopeError


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**12))
def test_stretches_are_of_a_power_of_ten_and_at_most_a_hundred(low, length):
    edges = stretches(low, low + length, None).tolist()
    assert edges[0] == low
    assert edges[-1] == low + length
    assert len(edges) - 1 <= 100
    inner = {b - a for a, b in pairwise(edges[:-1])}
    assert len(inner) <= 1
    assert not inner or str(inner.pop()).strip("0") == "1"


def test_the_last_one_may_be_shorter():
    assert stretches(5, 30, 10).tolist() == [5, 15, 25, 30]
    assert stretches(5, 25, 10).tolist() == [5, 15, 25]


@pytest.mark.parametrize("bucket_ns", [0, -1, 1])
def test_none_and_too_many_are_refused(bucket_ns):
    with pytest.raises(StepscopeError, match="no more than 1,000,000") as caught:
        stretches(0, 2_000_000, bucket_ns)
    assert caught.value.hint == "choose --bucket-ns of at least 2"
