"""Whether the rows of a table can be: their types, nulls, numbers, the rows that ids refer to, the nesting of spans.

Readers make tables that are sound: what cannot be is unknown there. A table that another program may have written is
checked here before it is used. The limits of numbers are the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.schema import SPAN_REFERENCES, SPANS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.core.table import Column, Table

#: Columns that hold row numbers, and the table that has these rows.
_ROWS_OF: Mapping[str, str] = {
    **dict.fromkeys(SPAN_REFERENCES, "spans"),
    **dict.fromkeys(("track_id", "from_track_id", "to_track_id"), "tracks"),
    "device_id": "devices",
    "stack_id": "stacks",
}
#: The longest that a span can last: 30 days.
LONGEST_NS = 30 * 86_400 * 10**9
_MOST_RANKS = 2**24
#: Least and most of what is known of a whole file.
FACTS: Mapping[str, tuple[int, int]] = {
    "rank": (0, _MOST_RANKS), "world_size": (1, _MOST_RANKS), "origin_unix_ns": (0, 2**61),
}  # fmt: skip
#: Least and most of a column of that name; sums and products of a few such values fit 64 bits, or a double.
_OF_NAMES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("group_size", "world_size"), (1, _MOST_RANKS)),
    **dict.fromkeys(("rank", "src_rank", "dst_rank"), (0, _MOST_RANKS)),
    **dict.fromkeys(("in_elements", "out_elements", "n_samples"), (0, 2**50)),
    **{f"{what}_{axis}": (0, 2**31) for what in ("grid", "block") for axis in "xyz"},
    "dur_ns": (0, LONGEST_NS),
    "host_dur_ns": (0, 2**62),
    "registers": (0, 2**16),
    "sm_count": (1, 2**20),
    "index": (0, 2**16),
}
_OF_UNITS = {"bytes": (0, 2**50), "bytes/s": (0, 2**60), "ns": (-(2**62), 2**62)}
_MOST_DOUBLE = 1e30
#: Tables in which bytes may be negative: what is given back, and totals that count from the start of the recording.
_SIGNED = ("allocations", "reservations")
_LONGEST_TEXT = 60


def limits_of(table: Table, column: Column) -> tuple[float, float] | None:
    """Least and most that the column can hold; None if it does not hold numbers."""
    if not column.dtype.is_numeric():
        return None
    low, high = _OF_NAMES.get(column.name) or _OF_UNITS.get(column.unit or "") or (-_MOST_DOUBLE, _MOST_DOUBLE)
    if table.name in _SIGNED and column.unit == "bytes":
        low = -high
    if column.dtype.is_integer():
        ends = np.iinfo(str(column.dtype).lower())
        low, high = max(low, ends.min + (ends.min < 0)), min(high, ends.max - (ends.min == 0))
    return low, high


def is_numbered(table: Table) -> bool:
    """Whether other tables refer to the numbers of its rows."""
    return _ROWS_OF.get(table.columns[0].name) == table.name


def in_order(table: Table, frame: pl.DataFrame) -> pl.DataFrame:
    """Columns in the order of the table, others last, and rows by the first if that numbers them or is a time."""
    known = [name for name in table.dtypes if name in frame.columns]
    frame = frame[[*known, *(name for name in frame.columns if name not in table.dtypes)]]
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
    first_rows = frame.select(rows.first().alias(str(i)) for i, (_, rows, _) in enumerate(rules)).row(0)
    for row, (name, _, reason) in zip(first_rows, rules, strict=True):
        if row is not None:
            value = frame[name][row]
            return f"{name} in row {row:,} is {'null' if value is None else str(value)[:_LONGEST_TEXT]}: {reason}"
    return None


def _rules(table: Table, n_rows: Mapping[str, int]) -> Iterator[tuple[str, pl.Expr, str]]:
    """For each rule the column that it is about, the rows that break it, and what it says."""
    first = table.columns[0].name
    for column in table.columns:
        name, value, of = column.name, pl.col(column.name), _ROWS_OF.get(column.name, "")
        if name in table.never_null:
            yield name, pl.arg_where(value.is_null()), "it must be known"
        if (limits := limits_of(table, column)) is not None:
            reason = "it must lie between {:,} and {:,}".format(*limits)
            yield name, pl.arg_where(value.is_between(*limits).not_()), reason
        if name == first and is_numbered(table):
            yield name, pl.arg_where(value != pl.int_range(pl.len(), dtype=pl.UInt32)), "rows are numbered from 0"
        elif of:
            n = n_rows.get(of, 0)
            yield name, pl.arg_where(value >= n), f"{of} has {n:,} rows"
    if table is SPANS:
        yield from _rules_of_spans()
    elif [column.name for column in table.columns if column.key] == ["span_id"]:
        yield first, pl.arg_where(pl.col(first).shift() == pl.col(first)), "each has one row"


def _rules_of_spans() -> Iterator[tuple[str, pl.Expr, str]]:
    track, start, dur, parent = (pl.col(name) for name in ("track_id", "ts_ns", "dur_ns", "parent_id"))
    same, unknown = track.shift() == track, start.is_null()
    for name, broken, reason in (
        ("ts_ns", unknown != unknown.first(), "all spans have a start, or none has"),
        ("dur_ns", dur.is_null() & start.is_not_null(), "it must be known"),
        ("track_id", start.is_not_null() & (track.shift() > track), "spans are sorted by track"),
        ("ts_ns", same & (start.shift() > start), "spans of a track are sorted by start"),
        (
            "dur_ns",
            same & (start.shift() == start) & (dur.shift() < dur),
            "the longest of spans that start together is first",
        ),
        ("parent_id", parent >= pl.col("span_id"), "a parent begins before its child"),
        ("parent_id", track.gather(parent, null_on_oob=True) != track, "a parent is on the track of its child"),
    ):
        yield name, pl.arg_where(broken), reason
    for name in ("launch_id", "op_id"):
        link = pl.col(name)
        rows = pl.arg_where(link.is_not_null())
        of_target = link.gather(link.gather(rows), null_on_oob=True)
        yield name, rows.filter(of_target.is_not_null()), "the span that it names has one of its own"
