from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope import analyses
from stepscope.core.schema import DEVICE_WORK, TABLES, Category, Column, Table, map_names

SMALL = Table("small", "a table", (Column("a", pl.Int32(), "first", key=True), Column("kind", Category, "second")))
DECLARED = {
    **{f"trace.{name}": t for name, t in TABLES.items()},
    **{n: analyses.find(n).output for n in analyses.names("trace")},
}
each_table = pytest.mark.parametrize("table", DECLARED.values(), ids=DECLARED.keys())

#: The unit of a column is the end of its name.
UNITS = {"ns": r"_ns$", "ratio": r"_ratio$", "bytes": r"\bbytes(_per_step)?$", "bytes/s": r"\bbytes_per_s$"}


def test_conform_orders_and_casts_columns_and_drops_others():
    frame = pl.DataFrame({"other": [1], "kind": ["kernel"], "a": [7]})
    conformed = SMALL.conform(frame)
    assert dict(conformed.schema) == {"a": pl.Int32(), "kind": Category}
    assert conformed.rows() == [(7, "kernel")]


def test_conform_fills_absent_columns_with_null():
    assert SMALL.conform(pl.DataFrame({"a": [7, 8]})).rows() == [(7, None), (8, None)]


def test_conform_leaves_the_frame_it_was_given_alone():
    frame = pl.DataFrame({"a": [7]})
    SMALL.conform(frame)
    assert frame.schema == {"a": pl.Int64()}


def test_conform_refuses_a_value_outside_a_closed_list():
    with pytest.raises(pl.exceptions.InvalidOperationError):
        SMALL.conform(pl.DataFrame({"a": [1], "kind": ["kernal"]}))


def test_an_empty_table_has_the_declared_columns():
    assert SMALL.empty().schema == dict(SMALL.dtypes)
    assert SMALL.empty().is_empty()


def test_a_column_is_found_by_name():
    assert SMALL.column("kind").doc == "second"


def test_tables_are_known_by_their_own_names():
    assert all(table.name == name for name, table in TABLES.items())


def test_device_work_is_made_of_categories():
    assert set(DEVICE_WORK) <= set(Category.categories)


@each_table
def test_columns_are_unique_and_documented(table):
    names = [c.name for c in table.columns]
    assert len(set(names)) == len(names)
    assert table.doc
    assert all(c.doc for c in table.columns)


@each_table
def test_names_carry_units(table):
    for column in table.columns:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        if column.unit in UNITS:
            assert re.search(UNITS[column.unit], column.name.replace("_bytes", " bytes")), column.name
        for suffix in ("_ns", "_ratio", "_bytes"):
            assert column.unit or not column.name.endswith(suffix), f"{column.name} declares no unit"


KINDS = [pl.String(), pl.Categorical(), pl.Enum(["a", "b", "c"])]


@given(st.lists(st.sampled_from(["a", "b", "c", None])), st.sampled_from(KINDS))
def test_it_is_as_if_the_function_were_called_for_each_row(values, dtype):
    calls: list[str] = []

    def place(name: str) -> int | None:
        calls.append(name)
        return None if name == "b" else ord(name)

    found = map_names(pl.Series("name", values, dtype=dtype), place, pl.Int64())
    assert found.to_list() == [None if value in (None, "b") else ord(value) for value in values]
    assert (found.name, found.dtype) == ("name", pl.Int64)
    assert sorted(calls) == sorted({value for value in values if value is not None})


@pytest.mark.parametrize("dtype", [pl.Boolean(), pl.String(), pl.Enum(["x"])], ids=str)
def test_values_have_the_type_asked_for(dtype):
    value = True if dtype == pl.Boolean() else "x"
    found = map_names(pl.Series(["a", None], dtype=pl.Categorical()), lambda _: value, dtype)
    assert found.dtype == dtype
    assert found.to_list() == [value, None]
