"""Values of spans by their ids, and the innermost span of some kind around another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["nearest_span", "of_spans"]


def nearest_span(spans: pl.DataFrame, ids: pl.Series, wanted: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """For each id the innermost wanted span among that host span and those around it; null if there is none."""
    nearest = ids.cast(pl.Int64).fill_null(-1).to_numpy().copy()
    pending = np.flatnonzero(nearest >= 0)
    while pending.size:
        at = pl.Series(nearest[pending], dtype=pl.UInt32())
        passed = ~wanted(at)
        pending = pending[passed.to_numpy()]
        above = of_spans(spans, at.filter(passed), "parent_id")
        nearest[pending] = above.cast(pl.Int64).fill_null(-1).to_numpy()
        pending = pending[nearest[pending] >= 0]
    return pl.Series(nearest).replace(-1, None).cast(pl.UInt32())


def of_spans(spans: pl.DataFrame, ids: pl.Series, column: str) -> pl.Series:
    """That column of the spans with these ids, row by row; null where the id is null."""
    have = spans["span_id"]
    if spans.height and have[0] == 0 and have[-1] == spans.height - 1 and have.is_sorted():
        return spans[column].gather(ids)  # ids are row numbers, unless someone has filtered the table
    looked_up = ids.to_frame("span_id").join(
        spans.select("span_id", column), on="span_id", how="left", maintain_order="left"
    )
    return looked_up[column]
