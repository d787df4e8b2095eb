"""Distinct values are those of NumPy, in its type and order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stepscope.core import arrays as _arrays
from stepscope.core.arrays import distinct_values

TYPES = (np.int8, np.uint8, np.uint16, np.uint32, np.int64, np.uint64, np.float64, np.bool_)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """As if there were many values."""
    monkeypatch.setattr(_arrays, "_FEW", 2)


@pytest.mark.parametrize("dtype", TYPES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_they_are_those_of_numpy(dtype, data):
    values = data.draw(arrays(dtype, st.integers(0, 40)))
    got, expected = distinct_values(values), np.unique(values)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint64])
def test_of_the_whole_range_of_a_type(dtype):
    ends = [np.iinfo(dtype).min, np.iinfo(dtype).max]
    assert distinct_values(np.array([*ends, *ends], dtype)).tolist() == ends


@pytest.mark.parametrize("low", [-(2**62), 0, 2**62])
def test_of_a_narrow_range_far_from_zero(low):
    assert distinct_values(np.array([low + 3, low, low + 3])).tolist() == [low, low + 3]


def test_what_is_given_stays_as_it_is():
    values = np.array([2, 1, 2])
    distinct_values(values)[0] = 9
    distinct_values(values[:1])[0] = 9
    assert values.tolist() == [2, 1, 2]
