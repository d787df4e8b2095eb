"""Columns in files are the columns that they were made of."""

from __future__ import annotations

import gc

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.schema import Category
from stepscope.core.table import Name
from stepscope.store import column_files
from stepscope.store.column_files import forget, mapped, mapped_table, on_file, settle

NUMBERS = (
    pl.Int8(), pl.UInt8(), pl.Int16(), pl.UInt16(), pl.Int32(), pl.UInt32(), pl.Int64(), pl.UInt64(), pl.Float32(),
    pl.Float64(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def every_column(monkeypatch, tmp_path):
    """All columns are big enough for a file, and the files are in a folder of this test."""
    monkeypatch.setattr(column_files, "LEAST_ROWS", 1)
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@given(values=st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
def test_numbers_with_and_without_nulls(dtype: pl.DataType, values: list[int | None]) -> None:
    column = pl.Series("some", values, dtype=dtype)
    of_file = mapped(column)
    assert (of_file.name, of_file.dtype, of_file.null_count()) == ("some", dtype, column.null_count())
    assert of_file.equals(column, null_equal=True)


@pytest.mark.parametrize("dtype", [Name, Category], ids=["names", "categories"])
@pytest.mark.parametrize("values", [["step", "kernel", "step"], ["step", None, "kernel"], [None, None]])
def test_categories_stay_the_same_texts(dtype: pl.DataType, values: list[str | None]) -> None:
    column = pl.Series("some", values, dtype=dtype)
    of_file = mapped(column)
    del column
    assert of_file.dtype == dtype
    assert of_file.to_list() == values


def test_what_has_no_plain_values_stays_as_it_is():
    for column in (pl.Series(["a", "b"]), pl.Series([True, None]), pl.Series([[1], [2]])):
        assert mapped(column) is column


def test_few_rows_stay_in_memory(monkeypatch):
    monkeypatch.setattr(column_files, "LEAST_ROWS", 4)
    column, values = pl.Series([1, 2, 3]), np.arange(3)
    assert mapped(column) is column
    assert on_file(values) is values


def test_without_room_columns_stay_in_memory(monkeypatch):
    monkeypatch.setattr(column_files, "_ROOM", 10**30)
    column = pl.Series([1, 2, 3])
    assert mapped(column) is column


def test_without_a_cache_the_files_are_among_the_temporary_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_CACHE", "0")
    asked = []
    monkeypatch.setattr(column_files.tempfile, "gettempdir", lambda: asked.append(1) or str(tmp_path))
    assert mapped(pl.Series([1, 2])).to_list() == [1, 2]
    assert asked == [1]


def test_nothing_is_left_in_the_folder(tmp_path):
    column = mapped(pl.Series([1, 2, 3]))
    assert list((tmp_path / "cache").iterdir()) == []
    assert column.sum() == 6


def test_the_mark_of_sorted_columns_stays():
    assert mapped(pl.Series([1, 2, 3]).set_sorted()).flags["SORTED_ASC"]
    assert not mapped(pl.Series([1, 3, 2])).flags["SORTED_ASC"]


def test_files_are_given_up_with_the_last_column_that_uses_them():
    gc.collect()
    before = len(column_files._held)
    column = mapped(pl.Series([3, 1, 2]))
    half = column.head(2)
    assert len(column_files._held) == before + 1
    del column
    assert half.to_list() == [3, 1]
    del half
    gc.collect()
    assert len(column_files._held) == before


def test_what_was_forgotten_is_read_again():
    column, values = mapped(pl.Series([3, None, 2])), on_file(np.arange(5, dtype=np.int32))
    forget()
    assert column.to_list() == [3, None, 2]
    assert values.tolist() == [0, 1, 2, 3, 4]


def test_many_rows_are_settled(monkeypatch):
    done = []
    monkeypatch.setattr(column_files, "LEAST_ROWS", 10)
    monkeypatch.setattr(column_files, "trim", lambda: done.append("trim"))
    monkeypatch.setattr(column_files, "forget", lambda: done.append("forget"))
    settle(9)
    assert done == []
    settle(10)
    assert done == ["trim", "forget"]


def test_a_big_table_has_its_columns_in_files(monkeypatch):
    table = pl.DataFrame({"some": [1, None, 2], "text": ["a", None, "b"], "is": [True, False, None]})
    assert mapped_table(table).equals(table, null_equal=True)
    monkeypatch.setattr(column_files, "LEAST_ROWS", 4)
    assert mapped_table(table) is table


def test_an_array_in_a_file_cannot_be_changed():
    values = on_file(np.arange(3))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 7
