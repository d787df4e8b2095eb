"""Values that no recording can have: set to unknown once, after every reader, and counted."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.core.schema import ISSUES, TABLES
from stepscope.core.soundness import FACTS, is_numbered, limits_of
from stepscope.core.table import Name, StoredTables, map_names, no_number
from stepscope.core.trace import Result, Results
from stepscope.readers.common.source import IssueLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.table import Table
    from stepscope.core.trace import Trace

#: What a row of the table is about: without it the row is dropped.
_ESSENTIAL = {"allocations": "bytes", "reservations": "bytes", "counters": "value", "kernel_metrics": "value"}

#: The text of all distinct names of spans. Recordings of many gigabytes have a quarter of it.
_MOST_TEXT = 1 << 22
#: A single name is no longer, as some patterns take time that grows with the square of it.
_LEAST_LENGTH, _MOST_LENGTH = 200, 1 << 14


def without_impossible(trace: Trace, before: Trace | None = None) -> Trace:
    """The trace with null for values that cannot be, or without rows that need them; `issues` counts them.

    Durations become the longest that can be, missing names empty, and long names short if there are too many.

    Tables in files, as of stored traces, stay as they are, and so do those that the trace had `before`.
    """
    issues, known = IssueLog(), _frames(before)
    tables = {
        name: _believed(frame, TABLES[name], issues)
        for name, frame in _frames(trace).items()
        if frame is not known.get(name)
    }
    if (spans := tables.get("spans")) is not None:
        tables["spans"] = spans.with_columns(short_enough(spans["name"], issues))
    meta = trace.meta
    for fact, (low, high) in FACTS.items():
        value = getattr(meta, fact)
        if value is not None and not low <= value <= high:
            said = f"the file says {fact} {value:,}, which cannot be"
            issues.add("impossible_values", "warning", 1, said)
            nothing: dict[str, Any] = {fact: None}
            meta = replace(meta, **nothing)
    if isinstance(trace, Results):
        results = {
            name: Result(one.table, _believed(one.frame, one.table, issues)) for name, one in trace.results.items()
        }
        trace = replace(trace, results=results)
    noted = issues.table()
    if noted.height:
        tables["issues"] = pl.concat([ISSUES.conform(trace.issues), noted])
    return replace(trace.with_tables(**tables), meta=meta)


def _frames(trace: Trace | None) -> Mapping[str, pl.DataFrame]:
    """The tables that are not in files."""
    if trace is None:
        return {}
    return trace.tables.made if isinstance(trace.tables, StoredTables) else trace.tables


def short_enough(names: pl.Series, issues: IssueLog) -> pl.Series:
    """The names, of which very long ones are cut, and others if all together are too much; all that differ still do."""
    lengths = names.unique().cast(pl.String).str.len_chars()
    longest = _MOST_LENGTH
    if lengths.sum() > _MOST_TEXT:
        longest = min(longest, max(_LEAST_LENGTH, _MOST_TEXT // max(lengths.len(), 1)))
    n_long = int((lengths > longest).sum())
    if not n_long:
        return names
    what = f"all names have {lengths.sum():,} characters: those of more than {longest:,} were cut"
    issues.add("long_names", "warning", n_long, what)

    def shortened(name: str) -> str:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        return name if len(name) <= longest else f"{name[:longest]}… {digest}"

    return map_names(names, shortened, Name)


def _believed(frame: pl.DataFrame, table: Table, issues: IssueLog) -> pl.DataFrame:
    known = [column for column in table.never_null if column in frame.columns and frame[column].null_count()]
    if known and not is_numbered(table):
        whole = frame.drop_nulls(known)
        what = f"rows of {table.name} without {known[0]} were left out"
        issues.add("impossible_values", "warning", frame.height - whole.height, what)
        frame = whole
    changed = []
    essential = _ESSENTIAL.get(table.name)
    for column in sorted(table.columns, key=lambda column: column.name != essential):
        values = frame[column.name] if column.name in frame.columns else None
        if values is None:
            continue
        if column.name == "name" and values.null_count() and table.name != "devices":
            changed.append(values.fill_null(""))
        limits = limits_of(table, column)
        if limits is None:
            continue
        low: Any = values.min()
        high: Any = values.max()
        is_nan = values.dtype.is_float() and not math.isfinite(values.sum()) and values.is_nan().any()
        if low is None or (limits[0] <= low and high <= limits[1] and not is_nan):
            continue
        can_be = values.is_between(*limits)
        example, n = values.filter(~can_be).to_list()[0], int((~can_be).sum())
        shown = "of too many digits" if column.dtype.is_integer() and example == no_number(column.dtype) else example
        issues.add("impossible_values", "warning", n, f"values that cannot be, as {column.name} {shown}")
        if column.name == "dur_ns":
            changed.append(values.clip(*limits))
        elif column.name == essential:
            frame = frame.filter(can_be)
        else:
            changed.append(pl.select(pl.when(can_be).then(values).alias(column.name)).to_series())
    return frame.with_columns(changed) if changed else frame
