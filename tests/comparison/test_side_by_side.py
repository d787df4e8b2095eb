from __future__ import annotations

import polars as pl
import pytest

from stepscope.comparison.side_by_side import side_by_side
from stepscope.core.errors import StepscopeError
from stepscope.core.table import Column, Table

TABLE = Table(
    "things",
    "things that are counted",
    (
        Column("name", pl.Categorical(), "what", key=True),
        Column("label", pl.String(), "a word"),
        Column("calls", pl.Int64(), "how often"),
        Column("total_ns", pl.Int64(), "how long", "ns"),
        Column("absent_ns", pl.Int64(), "never known", "ns"),
    ),
)


def things(*rows):
    return TABLE.conform(pl.DataFrame(rows, schema=["name", "calls", "total_ns", "label"], orient="row"))


BASE = things(("a", 1, 10, "x"), ("b", 2, 50, "y"), ("gone", 1, 30, "z"))
OTHER = things(("b", 2, 100, "y"), ("a", 3, 12, "w"), ("new", 1, 5, "v"))


def test_rows_with_the_same_key_stand_side_by_side_largest_change_first():
    rows, table = side_by_side(BASE, OTHER, TABLE)
    assert rows.select("name", "base_total_ns", "other_total_ns", "delta_total_ns", "ratio_total_ns").rows() == [
        ("b", 50, 100, 50.0, 2.0), ("gone", 30, None, None, None), ("new", None, 5, None, None),
        ("a", 10, 12, 2.0, 1.2),
    ]  # fmt: skip
    assert [c.name for c in table.columns if c.key] == ["name"]


def test_what_matters_comes_first_and_texts_stand_without_a_difference():
    rows, table = side_by_side(BASE, OTHER, TABLE)
    assert rows.columns[:5] == ["name", "base_total_ns", "other_total_ns", "delta_total_ns", "ratio_total_ns"]
    assert "delta_label" not in rows.columns
    assert {c.name for c in table.columns} == set(rows.columns)


def test_units_go_with_values_and_differences_but_not_with_ratios():
    _, table = side_by_side(BASE, OTHER, TABLE)
    units = {c.name: c.unit for c in table.columns}
    assert (units["base_total_ns"], units["delta_total_ns"], units["ratio_total_ns"]) == ("ns", "ns", None)


def test_keys_that_come_twice_are_matched_in_order():
    twice = things(("a", 1, 10, "x"), ("a", 1, 20, "x"))
    rows, _ = side_by_side(twice, twice, TABLE)
    assert sorted(rows["delta_total_ns"].to_list()) == [0.0, 0.0]
    assert rows.height == 2


def test_a_table_without_measures_keeps_its_keys():
    table = Table("names", "names", (Column("name", pl.String(), "what", key=True),))
    frame = pl.DataFrame({"name": ["a"]})
    assert side_by_side(frame, frame, table)[0].rows() == [("a",)]


def test_a_table_without_keys_cannot_be_compared():
    table = Table("loose", "loose rows", (Column("value", pl.Int64(), "a number"),))
    frame = pl.DataFrame({"value": [1]})
    with pytest.raises(StepscopeError, match="rows of loose have no key"):
        side_by_side(frame, frame, table)
