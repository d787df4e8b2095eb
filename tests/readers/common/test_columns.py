from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.common import columns
from stepscope.readers.common.columns import ABSENT, Column, Interned, columns_of, fitting, number_in, stable_order

integers = st.one_of(
    st.integers(-(2**70), 2**70), st.none(), st.text(max_size=4), st.integers(-(2**70), 2**70).map(str), st.booleans()
)


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=2), st.integers(0, 3), st.tuples(st.integers(0, 2)))),
    st.integers(0, 9),
)
def test_values_are_numbered_in_order_of_first_appearance(values, cut):
    numbers = Interned()
    codes = [*numbers.codes(values[:cut]).tolist(), *numbers.codes(values[cut:]).tolist()]
    assert [list(numbers)[c] for c in codes] == values
    assert list(numbers.values()) == list(range(len(numbers)))
    firsts = [c for i, c in enumerate(codes) if c not in codes[:i]]
    assert firsts == sorted(firsts)


def test_numbers_beyond_the_most_share_the_last():
    assert Interned().codes(list("abcdab"), 3).tolist() == [0, 1, 2, 2, 0, 1]


def test_a_column_joins_its_blocks_once():
    column = Column(np.int64)
    column.extend([1, 2])
    column.extend(np.array([3]))
    column.extend([])
    assert column.join().tolist() == [1, 2, 3]
    assert column.join().tolist() == []
    assert columns_of({"a": np.float64})["a"].join().dtype == np.float64


def test_a_column_joins_what_is_made_of_its_blocks():
    column = Column(np.float64)
    column.extend([1.5, 2.5])
    column.extend([3.5])
    assert column.size == 3
    joined = column.join(np.floor, np.int64)
    assert (joined.dtype, joined.tolist()) == (np.int64, [1, 2, 3])


def test_a_column_gives_up_its_blocks():
    column = Column(np.int64)
    column.extend([1, 2])
    column.extend([3])
    assert [block.tolist() for block in column.drain()] == [[1, 2], [3]]
    assert column.size == 0


@given(st.lists(integers))
def test_integers_that_do_not_fit_are_absent(values):
    column = Column(np.int64)
    column.extend(values)
    got = column.join()
    assert got.dtype == np.int64
    for value, kept in zip(values, got.tolist(), strict=True):
        try:
            number = int(value) if value is not None else None
        except ValueError:
            number = None
        assert kept in (number, ABSENT)
        if isinstance(value, int) and abs(value) < 2**62:
            assert kept == number


@given(st.lists(st.one_of(integers, st.floats())))
def test_floats_that_do_not_fit_are_not_a_number(values):
    column = Column(np.float64)
    column.extend(values)
    for value, kept in zip(values, column.join().tolist(), strict=True):
        if isinstance(value, float) and not math.isnan(value):
            assert kept == value
        if value is None:
            assert math.isnan(kept)


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        ("12", np.int64, 12),
        (" -7 ", np.int64, -7),
        ("--5", np.int64, ABSENT),
        ("9" * 5000, np.int64, ABSENT),
        ("\u0663", np.int64, ABSENT),
        ([1], np.int64, ABSENT),
        (2**63, np.uint64, 2**63),
        (-1, np.uint64, 0),
        (2**64, np.uint64, 0),
        ("1.5", np.float64, 1.5),
        (10**400, np.float64, math.nan),
        ([1], np.float64, math.nan),
    ],
)
def test_what_a_column_holds_of_an_odd_value(value, dtype, kept):
    assert fitting(value, dtype) == pytest.approx(kept, nan_ok=True)


def test_numbers_in_text_have_no_more_digits_than_fit():
    assert [number_in(t) for t in ("3", "-3", "3.0", "", "x", "9" * 18, "9" * 19)] == [
        3,
        -3,
        None,
        None,
        None,
        10**18 - 1,
        None,
    ]


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 3)), max_size=40), st.booleans(), st.booleans())
def test_a_stable_order_is_that_of_lexsort(rows, is_sorted, is_narrow):
    rows = sorted(rows) if is_sorted else rows
    wide, few = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    wide = wide >> 40 if is_narrow else wide
    for keys in ((few, wide), (wide, few), (wide,), (few, few)):
        assert stable_order(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 3)), max_size=40), st.integers(0, 60))
def test_large_groups_of_wide_numbers_are_ordered_one_by_one(rows, shift):
    wide, few = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_FEW_GROUPS_OF", 0)
        for keys in ((few, wide), (few.astype(np.uint32), wide >> shift), (few, wide >> shift, few), (few, few, wide)):
            assert stable_order(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


def test_memory_of_large_columns_goes_back_to_the_system(monkeypatch):
    given_back = []
    monkeypatch.setattr(columns, "trim", lambda: given_back.append("trim"))
    monkeypatch.setattr(columns, "_MANY_BYTES", 24)
    for n in (2, 3):
        column = Column(np.int64)
        column.extend(range(n))
        column.join()
    assert given_back == ["trim"]
