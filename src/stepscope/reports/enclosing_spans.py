"""Where in the program something happened: the names of the spans around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.core.names import is_own_code, map_names

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOPS = 500  # deeper nesting is a damaged trace, not a program
_MOST = 0.6  # share of an interval that a span must be open for, to be named as what the host was in


def most_of(
    spans: pl.DataFrame, ids: pl.Series, weights: pl.Series, categories: Sequence[str]
) -> tuple[str, float] | None:
    """The name of the spans that enclose most of these ids by weight, and its share; None if nothing encloses them.

    For each id the innermost enclosing span of the categories counts. Frames of libraries are skipped.
    """
    if ids.is_empty() or not weights.sum():
        return None
    known = spans["name"].filter(spans["category"].is_in(list(categories)))
    own = known.unique().cast(pl.String)
    own = own.filter(map_names(own, is_own_code, pl.Boolean()))
    wanted = own.cast(spans["name"].dtype)
    if wanted.is_empty():
        return None
    around = _nearest(spans, ids, categories, wanted)
    sums = pl.DataFrame({"name": spans["name"].gather(around), "weight": weights}).drop_nulls("name")
    whole = weights.sum()
    if sums.is_empty() or not whole:
        return None
    top = sums.group_by("name").agg(pl.col("weight").sum()).sort("weight", descending=True).row(0)
    return str(top[0]), top[1] / whole


def during(spans: pl.DataFrame, low: int, high: int) -> str:
    """What the host was in for most of [low, high): a call and a place in the program; '' if no span covers it."""
    overlap = pl.min_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), high) - pl.max_horizontal("ts_ns", low)
    open_ = spans.lazy().select("ts_ns", "dur_ns", "name", "category").filter(overlap > _MOST * (high - low)).collect()
    call = _shortest(open_, ("operator", "runtime", "driver", "dataloader"))
    place = _shortest(open_, ("python",)) or _shortest(open_, ("user_range",))
    return " at ".join(filter(None, (call, place)))


def _shortest(spans: pl.DataFrame, categories: Sequence[str]) -> str:
    mine = spans.filter(pl.col("category").is_in(list(categories))).sort("dur_ns")
    return next((name for name in mine["name"].cast(pl.String) if name and is_own_code(name)), "")


def _nearest(spans: pl.DataFrame, ids: pl.Series, categories: Sequence[str], names: pl.Series) -> pl.Series:
    """For each id the nearest span of the categories and names: itself or an enclosing one; null if there is none."""
    wanted = (spans["category"].is_in(list(categories)) & spans["name"].is_in(names.implode())).to_numpy()
    above = spans["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    row = ids.cast(pl.Int64).fill_null(-1).to_numpy()
    nearest = np.full(row.size, -1, np.int64)
    at = np.flatnonzero(row >= 0)
    row = row[at]
    for _ in range(_HOPS):
        if not row.size:
            break
        hit = wanted[row]
        nearest[at[hit]] = row[hit]
        row, at = above[row[~hit]], at[~hit]
        row, at = row[row >= 0], at[row >= 0]
    known = pl.Series(nearest)
    return known.set(known < 0, None).cast(pl.UInt32)
