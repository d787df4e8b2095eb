"""When the host was in spans of one kind, and when it computed."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.collective_calls import calls_library, collectives_on_host
from stepscope.core.intervals import Intervals, difference, either, locate, union

__all__ = ["computing_on_host", "open_time"]

_CHUNK = 1 << 17  # rows looked at together, so that scratch space stays small


def computing_on_host(spans: pl.DataFrame, among: pl.Series | None = None) -> Intervals:
    """When some thread was in an operator, as disjoint intervals, and not in a collective within it.

    What runs within the call of a collective library is part of the collective. Operators within other ranges that are
    called after a collective compute. `among` is a mask: only operators of these spans count.
    """
    waits, calls = collectives_on_host(spans), calls_library(spans["name"])
    waiting = spans.filter(waits).partition_by("track_id", as_dict=True)
    called = spans.filter(waits & calls).partition_by("track_id", as_dict=True)
    is_operator = ~waits & (spans["category"] == "operator")
    operators = spans.filter(is_operator if among is None else is_operator & among)
    parts = []
    for key, busy in operators.partition_by("track_id", as_dict=True).items():
        part = _without(_union_of(waiting[key]), busy) if key in waiting else _union_of(busy)
        parts.append(difference(part, _union_of(called[key])) if key in called else part)
    none = np.empty(0, np.int64)
    return union(np.concatenate((none, *(p[0] for p in parts))), np.concatenate((none, *(p[1] for p in parts))))


def _without(waiting: Intervals, operators: pl.DataFrame) -> Intervals:
    """When the operators of a thread are open, without the waiting within them."""
    starts = operators["ts_ns"].to_numpy()
    ends = starts + operators["dur_ns"].to_numpy()
    at = locate(waiting, starts)
    inside = (at >= 0) & (ends <= np.append(waiting[1], 0)[at])
    around = difference(union(starts[~inside], ends[~inside]), waiting)
    return either(around, union(starts[inside], ends[inside]))


def _union_of(spans: pl.DataFrame) -> Intervals:
    starts = spans["ts_ns"].to_numpy()
    return union(starts, starts + spans["dur_ns"].to_numpy())


def open_time(spans: pl.DataFrame, wanted: pl.Series) -> Intervals:
    """When some wanted span is open, on any thread, as disjoint intervals. `wanted` is a mask over all spans."""
    columns = spans["ts_ns"].to_numpy(), spans["dur_ns"].to_numpy(), wanted.to_numpy()
    starts, durations, _ = columns
    parents = spans["parent_id"]
    outer = [_outer(columns, parents, low, min(low + _CHUNK, spans.height)) for low in range(0, spans.height, _CHUNK)]
    rows = np.concatenate([np.empty(0, np.int64), *outer])
    return union(starts[rows], starts[rows] + durations[rows])


def _outer(
    columns: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]], parents: pl.Series, low: int, high: int
) -> NDArray[np.int64]:
    """Rows from low to high that are wanted and not within a wanted parent: no other matters to a union of them all."""
    starts, durations, wanted = columns
    rows = low + np.flatnonzero(wanted[low:high])
    above = parents[low:high].cast(pl.Int64).fill_null(-1).to_numpy()[rows - low]
    inside = (above >= 0) & wanted[above] & (starts[above] + durations[above] >= starts[rows] + durations[rows])
    outer: NDArray[np.int64] = rows[~inside]
    return outer
