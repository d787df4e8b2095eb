"""A small trace with a value of every type in every table, and a cache of its own for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest

from stepscope import store
from stepscope.core.schema import SPANS, TABLES
from stepscope.core.trace import Meta, Trace

if TYPE_CHECKING:
    from stepscope.core.table import Column, Table


def value_of(dtype: pl.DataType) -> object:
    """Something that the type holds."""
    if isinstance(dtype, pl.List):
        return ["main", "é\n"]
    if isinstance(dtype, pl.Enum):
        return dtype.categories[-1]
    if isinstance(dtype, (pl.String, pl.Categorical)):
        return "void gemm<float, 'q'>"
    return True if isinstance(dtype, pl.Boolean) else 0.1 if dtype.is_float() else 7


def values_of(table: Table, column: Column) -> list[object]:
    """Two values, of which the first or second is null where it may be; ids name rows of the other tables."""
    if column.name == table.columns[0].name and column.name.endswith("_id"):
        return [0, 1]
    value: object = 0 if column.name.endswith("_id") else value_of(column.dtype)
    if column.name in table.never_null or (table is SPANS and column.unit == "ns"):
        return [value, value]
    return [None, value] if column.name.endswith("_id") else [value, None]


@pytest.fixture
def full() -> Trace:
    tables = {
        name: pl.DataFrame({c.name: pl.Series(values_of(table, c), dtype=c.dtype) for c in table.columns}, strict=False)
        for name, table in TABLES.items()
    }
    tables["arrows"] = TABLES["arrows"].empty()
    facts = {"deviceProperties": '[{"id": 0}]', "odd": "\udcff\n"}
    meta = Meta("run/rank7.json", "kineto", 3, 10**6, 7, 8, origin_unix_ns=2**61 - 1, decimal_times=True, facts=facts)
    return Trace(meta, tables)


@pytest.fixture
def where(tmp_path, monkeypatch) -> store.CacheFolder:
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "100MB")
    found = store.cache_folder()
    assert found is not None
    return found
