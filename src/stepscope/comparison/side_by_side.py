"""Joins any result table of two runs by the keys and measures that its schema declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stepscope.core.errors import StepscopeError
from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence


_BASE, _OTHER, _DELTA, _RATIO = "base_", "other_", "delta_", "ratio_"
#: Rows are sorted by the change of the first of these measures that the table has.
_WEIGHTS = ("self_ns", "device_self_ns", "total_ns", "host_self_ns", "dur_ns", "bytes", "calls")


def side_by_side(base: pl.DataFrame, other: pl.DataFrame, table: Table) -> tuple[pl.DataFrame, Table]:
    """One row per key of either table, largest change first: each measure in the base, in the other, and its change.

    Keys that occur more than once in a table (because an option left a key out) are numbered in order. Values that one
    run lacks are null, and so is their change. Only numbers get `delta_` and `ratio_` columns. Raises StepscopeError if
    the table declares no key.
    """
    have = [column for column in table.columns if column.name in base.columns and column.name in other.columns]
    keys = [column for column in have if column.key]
    measures = [column for column in have if not column.key]
    if not keys:
        raise StepscopeError(f"the rows of {table.name} have no key: they cannot be set side by side")
    names = [column.name for column in keys]
    numbered = [_numbered(frame.select(c.name for c in have), names) for frame in (base, other)]
    on = [*names, "nth"]
    joined = numbered[0].join(
        numbered[1], on=on, how="full", coalesce=True, nulls_equal=True, suffix="_other", maintain_order="left_right"
    )
    numeric = set(base.select(cs.numeric()).columns) & set(other.select(cs.numeric()).columns)
    columns, declared = list(names), list(keys)
    exprs: list[pl.Expr] = [pl.col(names)]
    for measure in measures:
        for expr, column in _compared(measure, is_number=measure.name in numeric):
            exprs.append(expr.alias(column.name))
            columns.append(column.name)
            declared.append(column)
    rows = joined.select(exprs)
    known = [name.removeprefix(_DELTA) for name in rows.columns if name.startswith(_DELTA)]
    known = [name for name in known if rows[f"{_BASE}{name}"].count() + rows[f"{_OTHER}{name}"].count()]
    if known:
        weight = next((name for name in _WEIGHTS if name in known), known[0])
        rows = rows.sort(_size(weight), descending=True, nulls_last=True, maintain_order=True)
        # The sorting measure comes first, because a narrow screen shows the first columns only.
        first = [*names, *(f"{side}{weight}" for side in (_BASE, _OTHER, _DELTA, _RATIO))]
        rows = rows.select(*first, pl.exclude(first))
    return rows, Table(f"{table.name}-compared", f"{table.doc}, of two runs", tuple(declared))


def _numbered(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    texts = cs.by_name(*keys) & (cs.categorical() | cs.enum())
    return frame.with_columns(texts.cast(pl.String)).with_columns(nth=pl.int_range(pl.len()).over(keys))


def _size(name: str) -> pl.Expr:
    """How much a row changed, where missing values count as 0."""
    values = [pl.col(f"{side}{name}").cast(pl.Float64).fill_null(0.0) for side in (_BASE, _OTHER)]
    return (values[1] - values[0]).abs()


def _compared(measure: Column, *, is_number: bool) -> list[tuple[pl.Expr, Column]]:
    base, other = pl.col(measure.name), pl.col(f"{measure.name}_other")
    columns = [
        (base, Column(f"{_BASE}{measure.name}", measure.dtype, f"{measure.doc}, in the base", measure.unit)),
        (other, Column(f"{_OTHER}{measure.name}", measure.dtype, f"{measure.doc}, in the other", measure.unit)),
    ]
    if is_number:
        a, b = base.cast(pl.Float64), other.cast(pl.Float64)
        doc = f"{measure.doc}: how much more in the other"
        columns.append((b - a, Column(f"{_DELTA}{measure.name}", pl.Float64(), doc, measure.unit)))
        ratio = pl.when(a != 0).then(b / a)
        columns.append((ratio, Column(f"{_RATIO}{measure.name}", pl.Float64(), f"{measure.doc}: other over base")))
    return columns
