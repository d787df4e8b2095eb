from __future__ import annotations

import re

import pytest

from stepscope import analyses
from stepscope.core.schema import DEVICE_WORK, TABLES, Category

DECLARED = {
    **{f"trace.{name}": t for name, t in TABLES.items()},
    **{n: analyses.find(n).output for n in analyses.names("trace")},
}
each_table = pytest.mark.parametrize("table", DECLARED.values(), ids=DECLARED.keys())

#: The unit of a column is the end of its name.
UNITS = {"ns": r"_ns$", "ratio": r"_ratio$", "bytes": r"\bbytes(_per_step)?$", "bytes/s": r"\bbytes_per_s$"}


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
