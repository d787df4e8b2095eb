"""Whether the rows of a table can be: their types, nulls, numbers, the rows that ids refer to, the nesting of spans.

Readers make tables that are sound. A table that another program may have written is checked here before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.schema import SPANS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.core.schema import Table

__all__ = ["flaw_of", "in_order"]

#: Columns that hold row numbers, and the table that has these rows.
_ROWS_OF: Mapping[str, str] = {
    **dict.fromkeys(("span_id", "parent_id", "launch_id", "op_id"), "spans"),
    **dict.fromkeys(("track_id", "from_track_id", "to_track_id"), "tracks"),
    "device_id": "devices",
    "stack_id": "stacks",
}
#: Whole numbers are closer to zero than this, so that the sum of two has 64 bits.
_LIMIT = 2**62
_LONGEST_TEXT = 60


def in_order(table: Table, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows in the order of the table, which is that of its first column if this is a row number or a time."""
    first = table.columns[0].name
    if first not in frame.columns or first not in (*_ROWS_OF, "ts_ns") or frame[first].is_sorted():
        return frame
    return frame.sort(first, maintain_order=True)


def flaw_of(table: Table, frame: pl.DataFrame, n_rows: Mapping[str, int]) -> str | None:
    """What the table cannot hold, with the column and its first such row (the first row is 0); None if it is sound.

    `n_rows` has the number of rows of the trace's tables. The rows are in order (see `in_order`).
    """
    for name, dtype in table.dtypes.items():
        if name not in frame.schema:
            return f"the column {name} is missing"
        if frame.schema[name] != dtype:
            return f"{name} is {str(frame.schema[name])[:_LONGEST_TEXT]} instead of {str(dtype)[:_LONGEST_TEXT]}"
    if more := sorted(set(frame.columns) - set(table.dtypes)):
        return f"there is no column {more[0][:_LONGEST_TEXT]!r} in this table"
    rules = list(_rules(table, n_rows))
    broken = frame.select(is_wrong.any().alias(str(i)) for i, (_, is_wrong, _) in enumerate(rules)).row(0)
    if not any(broken):
        return None
    name, is_wrong, reason = rules[broken.index(True)]
    row, value = frame.select(pl.arg_where(is_wrong).first().alias("row"), pl.col(name).filter(is_wrong).first()).row(0)
    return f"{name} in row {row:,} is {'null' if value is None else str(value)[:_LONGEST_TEXT]}: {reason}"


def _rules(table: Table, n_rows: Mapping[str, int]) -> Iterator[tuple[str, pl.Expr, str]]:
    """For each rule the column that it is about, which rows break it, and what it says."""
    for column in table.columns:
        name, value = column.name, pl.col(column.name)
        if name in table.never_null:
            yield name, value.is_null(), "it must be known"
        if column.dtype.is_float():
            yield name, value.is_finite().not_(), "it is not a number"
        elif column.dtype == pl.Int64():
            low = 0 if name.endswith("dur_ns") else -_LIMIT
            yield name, value.is_between(low, _LIMIT).not_(), f"it must lie between {low:,} and {_LIMIT:,}"
        of = _ROWS_OF.get(name, "")
        if of == table.name and name == table.columns[0].name:
            yield name, value != pl.int_range(pl.len(), dtype=pl.UInt32), "rows are numbered from 0"
        elif of:
            n = n_rows.get(of, 0)
            yield name, value >= n, f"{of} has {n:,} rows"
    if [column.name for column in table.columns if column.key] == ["span_id"]:
        yield "span_id", pl.col("span_id").diff() == 0, "each has one row"
    if table is SPANS:
        yield from _rules_of_spans()


def _rules_of_spans() -> Iterator[tuple[str, pl.Expr, str]]:
    track, start, dur = pl.col("track_id"), pl.col("ts_ns"), pl.col("dur_ns")
    yield "ts_ns", start.is_null() != start.is_null().first(), "all spans have a start, or none has"
    yield "dur_ns", dur.is_null() & start.is_not_null(), "it must be known"
    yield "track_id", track.shift() > track, "spans are sorted by track"
    same = track.shift() == track
    yield "ts_ns", same & (start.shift() > start), "spans of a track are sorted by start"
    yield (
        "dur_ns",
        same & (start.shift() == start) & (dur.shift() < dur),
        "of spans that start together the longest is first",
    )
    parent = pl.col("parent_id")
    yield "parent_id", parent >= pl.col("span_id"), "a parent begins before its child"
    yield "parent_id", track.gather(parent, null_on_oob=True) != track, "a parent is on the track of its child"
    for link in ("launch_id", "op_id"):
        of_target = pl.col(link).gather(pl.col(link), null_on_oob=True)
        yield link, of_target.is_not_null(), f"the span that it names has one of its own"
