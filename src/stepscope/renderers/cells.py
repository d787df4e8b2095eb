"""Values and column names as people read them: rounded by unit, never interpreted, wide letters counted as two."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core import units
from stepscope.core.patterns import regex
from stepscope.core.report import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.table import Table

#: Whole numbers that are names and not counts.
_AN_ID = regex(r"id$|^(address|correlation|forward_thread|index|rank|seq|sequence|step|stream)$")
_SUFFIX = regex(r"_(ns|bytes|ratio|bytes_per_s)$")
#: What tells columns apart that differ in their units.
_MEASURED = {"ns": "time", "bytes": "size", "ratio": "share", "bytes_per_s": "rate"}


def width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def labels(columns: Sequence[str]) -> list[str]:
    """Column names for people: without the unit, which stands in the cells; where that is ambiguous with its kind.

    >>> labels(["busy_ns", "busy_ratio", "idle_ns"])
    ['busy time', 'busy share', 'idle']
    """
    short = [_SUFFIX.sub("", name).removeprefix("n_").replace("_", " ") for name in columns]
    full = [_SUFFIX.sub(lambda unit: f" {_MEASURED[unit[1]]}", name).replace("_", " ") for name in columns]
    return [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]


def cell(value: Any, unit: str | None = None, *, separated: bool = False) -> str:
    """One value as text. `separated`: a whole number without unit is a count, with separators, and not an id."""
    match value:
        case bool():
            text = "yes" if value else "no"
        case int() | float() if unit is not None:
            text = units.render(value, unit)
        case int() if not separated:
            text = str(value)
        case int() | float():
            text = units.number(value)
        case list() | tuple():
            text = ", ".join(cell(v) for v in value)
        case _:
            text = units.UNKNOWN if value is None else printable(str(value))
    return text


def cells(frame: pl.DataFrame, table: Table) -> list[list[str]]:
    """All values as text, column by column. In a table with a column `unit`, that is the unit of the row's numbers."""
    declared = {column.name: column for column in table.columns}
    of_row = frame["unit"].cast(pl.String).to_list() if "unit" in frame.columns else []
    columns = []
    for series in frame.iter_columns():
        column = declared.get(series.name)
        unit = column.unit if column else None
        if unit is None and of_row and series.dtype.is_float():
            known = [own if units.is_scaled(own) else None for own in of_row]  # the others stand in the column `unit`
            columns.append([cell(value, own) for value, own in zip(series.to_list(), known, strict=True)])
            continue
        separated = not (column is None or column.key or _AN_ID.search(series.name))
        columns.append([cell(value, unit, separated=separated) for value in series.to_list()])
    return columns
