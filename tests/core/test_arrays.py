"""Distinct values are those of NumPy, in its type and order; which libraries are used.

What the compiled loops compute is compared in `test_intervals.py`.
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from c_libraries import COMPILER, library_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stepscope.core import arrays as _arrays
from stepscope.core.arrays import distinct_values, grouped

TYPES = (np.int8, np.uint8, np.uint16, np.uint32, np.int64, np.uint64, np.float64, np.bool_)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """As if there were many values."""
    monkeypatch.setattr(_arrays, "_FEW", 2)
    monkeypatch.setattr(_arrays, "_PIECE", 7)


@pytest.mark.parametrize("dtype", TYPES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_they_are_those_of_numpy(dtype, data):
    values = data.draw(arrays(dtype, st.integers(0, 40)))
    got, expected = distinct_values(values), np.unique(values)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays(np.int64, st.integers(0, 40), elements=st.integers(-50, 50) | st.integers(-(2**62), 2**62)))
def test_rows_are_grouped_as_by_numpy(keys):
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    got = grouped(keys)
    assert got[0].dtype == got[1].dtype == np.int64
    np.testing.assert_array_equal(got[0], first)
    np.testing.assert_array_equal(got[1], group)


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


@pytest.fixture
def nesting(tmp_path, monkeypatch):
    """The library of this source."""
    if COMPILER is None:
        pytest.skip("there is no C compiler: then nothing is compiled")
    path = library_of(_arrays.NESTING.with_name("nesting.c"), tmp_path)
    monkeypatch.setattr(_arrays, "NESTING", path)
    _arrays._nesting.cache_clear()
    yield path
    _arrays._nesting.cache_clear()


def test_one_of_another_version_is_not_used(nesting):
    assert _arrays.library(nesting, "nesting", _arrays._VERSION) is not None
    assert _arrays.library(nesting, "nesting", _arrays._VERSION + 1) is None


def test_one_of_another_machine_is_not_used(tmp_path):
    (tmp_path / "other.so").write_bytes(b"\x7fELF of another machine")
    assert _arrays.library(tmp_path / "other.so", "other", 1) is None
    assert _arrays.library(tmp_path / "missing.so", "missing", 1) is None


def test_none_is_used_where_pure_python_is_asked_for(nesting, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_PURE_PYTHON", "1")
    assert _arrays.library(nesting, "nesting", _arrays._VERSION) is None


@pytest.mark.usefixtures("nesting")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_row_numbers_keep_their_type_and_columns_need_not_be_in_one_piece(dtype):
    parents = np.array([-1, 9, 0, 9, 1, 9], dtype)[::2]  # of three rows
    found = _arrays.compiled_nearest(parents, np.array([True, False, True, False, False, True])[::2])
    assert found is not None
    assert (found.dtype, found.tolist()) == (dtype, [0, 1, 1])


@pytest.mark.usefixtures("nesting")
@pytest.mark.parametrize(
    ("parents", "n_wanted"), [(np.array([-1, 0], np.int16), 2), (np.array([-1, 2]), 2), (np.array([-1, 0]), 1)]
)
def test_what_are_no_row_numbers_is_left_to_numpy(parents, n_wanted):
    assert _arrays.compiled_nearest(parents, np.zeros(n_wanted, np.bool_)) is None


@pytest.mark.usefixtures("nesting")
def test_columns_of_different_lengths_are_left_to_numpy():
    rows, times, wanted = np.zeros(1, np.uint32), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    assert _arrays.compiled_around(rows, rows, (times, times), wanted) is not None
    assert _arrays.compiled_around(rows, rows, (times, times[:0]), wanted) is None


@pytest.mark.usefixtures("nesting")
def test_parents_in_a_circle_end_nowhere():
    parents, times = np.array([1, 0], np.uint32), np.zeros(2, np.int64)
    found = _arrays.compiled_around(parents, parents, (times, times), np.zeros(2, np.bool_))
    assert found is not None
    assert found.tolist() == [2**32 - 1] * 2


@pytest.mark.parametrize("way", ["compiled", "numpy"])
@pytest.mark.parametrize("low", [0, 7, 2**32 - 30])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.integers(0, 29), max_size=40))
def test_values_are_numbered_as_they_come(nesting, way, low, values):
    with mock.patch.object(_arrays, "NESTING", nesting if way == "compiled" else Path("none")):
        _arrays._nesting.cache_clear()
        assert (_arrays._nesting() is not None) is (way == "compiled")
        first, number = _arrays.numbered(np.array(values, np.uint32) + np.uint32(low))
    distinct = list(dict.fromkeys(values))
    assert first.tolist() == [values.index(value) for value in distinct]
    assert number.tolist() == [distinct.index(value) for value in values]
