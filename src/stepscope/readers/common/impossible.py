"""Values that no recording can have: set to unknown once, after every reader, and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.schema import ISSUES, TABLES
from stepscope.core.trace import Result, Results, StoredTables
from stepscope.readers.common.source import IssueLog

if TYPE_CHECKING:
    from stepscope.core.schema import Column, Table
    from stepscope.core.trace import Trace

_MOST_RANKS = 2**24
#: Least and most of a column of that name; sums and products of a few such values fit 64 bits, or a double.
_OF_NAMES = {
    **dict.fromkeys(("group_size", "world_size"), (1, _MOST_RANKS)),
    **dict.fromkeys(("rank", "src_rank", "dst_rank"), (0, _MOST_RANKS)),
    **dict.fromkeys(("in_elements", "out_elements", "n_samples"), (0, 2**50)),
    **{f"{what}_{axis}": (0, 2**31) for what in ("grid", "block") for axis in "xyz"},
    "dur_ns": (0, 30 * 86_400 * 10**9),
    "registers": (0, 2**16),
    "sm_count": (1, 2**20),
    "index": (0, 2**16),
}
_OF_UNITS = {"bytes": (0, 2**50), "bytes/s": (0, 2**60), "ns": (-(2**62), 2**62)}
_MOST_DOUBLE = 1e30
#: Tables in which bytes may be negative: what is given back, and totals that count from the start of the recording.
_SIGNED = ("allocations", "reservations")


#: What a row of the table is about: without it the row is dropped.
_ESSENTIAL = {"allocations": "bytes", "reservations": "bytes", "counters": "value", "kernel_metrics": "value"}


def without_impossible(trace: Trace) -> Trace:
    """The trace with null for values that cannot be, or without rows that are about such; `issues` counts them.

    Durations become the longest that can be, and missing names empty.

    Tables in files, as of stored traces, stay as they are.
    """
    if isinstance(trace.tables, StoredTables):
        return trace
    issues = IssueLog()
    tables = {name: _believed(frame, TABLES[name], issues) for name, frame in trace.tables.items()}
    meta = trace.meta
    for fact, low, high in (("rank", 0, _MOST_RANKS), ("world_size", 1, _MOST_RANKS), ("origin_unix_ns", 0, 2**61)):
        value = getattr(meta, fact)
        if value is not None and not low <= value < high:
            issues.add("impossible_values", "warning", 1, f"{fact} {value}")
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
    return replace(trace, meta=meta, tables=tables)


def _believed(frame: pl.DataFrame, table: Table, issues: IssueLog) -> pl.DataFrame:
    changed = []
    for column in table.columns:
        values = frame[column.name] if column.name in frame.columns else None
        if values is None:
            continue
        if column.name == "name" and values.null_count() and table.name != "devices":
            changed.append(values.fill_null(""))
        limits = _limits(column, table)
        if limits is None:
            continue
        low: Any = values.min()
        high: Any = values.max()
        if low is None or (limits[0] <= low and high <= limits[1] and not values.is_nan().any()):
            continue
        can_be = values.cast(pl.Float64).is_between(*limits)
        example, n = values.filter(~can_be).to_list()[0], int((~can_be).sum())
        issues.add("impossible_values", "warning", n, f"values that cannot be, as {column.name} {example}")
        if column.name == "dur_ns":
            changed.append(values.clip(*limits))
            continue
        if _ESSENTIAL.get(table.name) == column.name:
            return _believed(frame.filter(can_be), table, issues)
        changed.append(pl.select(pl.when(can_be).then(values).alias(column.name)).to_series())
    return frame.with_columns(changed) if changed else frame


def _limits(column: Column, table: Table) -> tuple[float, float] | None:
    if not column.dtype.is_numeric():
        return None
    low, high = _OF_NAMES.get(column.name) or _OF_UNITS.get(column.unit or "") or (-_MOST_DOUBLE, _MOST_DOUBLE)
    if column.dtype.is_integer() and high == _MOST_DOUBLE:
        return None
    return (-high if table.name in _SIGNED and column.unit == "bytes" else low), high
