"""When the host was in spans of one kind."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.intervals import Intervals, union

__all__ = ["open_time"]

_CHUNK = 1 << 17  # rows looked at together, so that scratch space stays small


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
