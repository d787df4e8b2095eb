from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.schema import STEPS, TABLES, Category
from stepscope.core.table import Column, StoredTables, Table, filtered, fitted, is_any_of, map_names
from stepscope.core.trace import Meta, Trace

SMALL = Table("small", "a table", (Column("a", pl.Int32(), "first", key=True), Column("kind", Category, "second")))
STEP = STEPS.conform(pl.DataFrame({"step": [3], "ts_ns": [0], "dur_ns": [10]}))


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


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([True, False, None]))))
def test_rows_are_filtered_as_polars_does(rows):
    frame = pl.DataFrame(rows, schema={"a": pl.Int64, "mask": pl.Boolean}, orient="row")
    assert filtered(frame, frame["mask"]).equals(frame.filter("mask"))


@given(st.lists(st.sampled_from(["a", "b", "c", None])), st.lists(st.sampled_from(["a", "b", "c"]), min_size=1))
def test_a_mask_of_several_values_is_that_of_polars(values, wanted):
    series = pl.Series(values, dtype=pl.Enum(["a", "b", "c"]))
    assert is_any_of(series, wanted).to_list() == series.is_in(wanted).to_list()


KINDS = [pl.String(), pl.Categorical(), pl.Enum(["a", "b", "c"])]


@given(st.lists(st.sampled_from(["a", "b", "c", None])), st.sampled_from(KINDS), st.sampled_from([1, 1_001]))
def test_it_is_as_if_the_function_were_called_for_each_row(values, dtype, n_times):
    values = values * n_times  # few names and many are mapped in different ways
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


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, None, 2**40, -(2**40)], pl.Int32(), [1, None, -(2**31), -(2**31)]),
        ([1, -1], pl.UInt32(), [1, 2**32 - 1]),
        ([1.5, float("nan"), 1e300, float("-inf")], pl.Int64(), [1, None, -(2**63), -(2**63)]),
        ([True, None], pl.Int32(), [1, None]),
        (["a", None], pl.Categorical(), ["a", None]),
    ],
)
def test_numbers_that_do_not_fit_become_one_that_no_column_can_hold(values, dtype, expected):
    series = fitted(pl.Series("x", values), dtype)
    assert (series.name, series.dtype, series.to_list()) == ("x", dtype, expected)


def stored(**made):
    """Two tables in files, of which every reading is counted."""
    read = []

    def read_one(name):
        read.append(name)
        return TABLES[name].empty() if name == "spans" else STEP

    files = {"spans": "x/spans.parquet", "steps": "x/steps.parquet"}
    return StoredTables(files, {"spans": 0, "steps": 1}, read_one, made), read


def test_stored_tables_are_read_when_asked_for_and_once():
    tables, read = stored()
    trace = Trace(Meta("a.json", "kineto"), tables)
    assert (len(trace.tables), list(trace.tables), "ops" in trace.tables) == (2, ["spans", "steps"], False)
    assert repr(trace) == "Trace('a.json', kineto, spans 0, steps 1)"
    assert trace.ops.is_empty()
    assert read == []
    assert trace.steps is trace.steps is STEP
    assert read == ["steps"]
    with pytest.raises(KeyError):
        _ = trace.tables["ops"]


def test_frames_in_place_of_stored_tables_share_what_was_read():
    tables, read = stored()
    trace = Trace(Meta("a.json", "kineto"), tables)
    _ = trace.steps
    longer = pl.concat([STEP, STEP])
    other = trace.with_tables(steps=longer, ops=TABLES["ops"].empty())
    assert other.heights() == {"spans": 0, "steps": 2, "ops": 0}
    assert other.steps is longer
    assert trace.steps is STEP
    _ = other.spans, trace.spans
    assert read == ["steps", "spans"]
    assert isinstance(other.tables, StoredTables)
    assert (other.tables.file("steps"), other.tables.file("spans")) == (None, "x/spans.parquet")
    assert (len(other.tables), "ops" in other.tables) == (3, True)
