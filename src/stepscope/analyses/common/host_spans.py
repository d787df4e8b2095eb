"""When the host was in spans of one kind, and which of its spans are collectives."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import Intervals, union

__all__ = ["collectives_on_host", "open_time"]

_CHUNK = 1 << 17  # rows looked at together, so that scratch space stays small


def collectives_on_host(spans: pl.DataFrame) -> pl.Series:
    """Which spans are collectives as the host sees them: operators and ranges with the name of one. A mask."""
    candidates = spans["category"].is_in(("operator", "user_range"))
    names = spans["name"].filter(candidates).unique()
    names = names.filter(talks_to_ranks(names, "any"))
    return candidates & spans["name"].is_in(names.implode()) if names.len() else candidates & False


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
