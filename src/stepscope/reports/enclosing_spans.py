"""Where in the program something happened: the names of the spans around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.span_lookup import nearest_span
from stepscope.core.names import is_own_code, map_names

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST = 0.6  # share of an interval that a span must be open for, to be named as what the host was in


def most_of(
    spans: pl.DataFrame, ids: pl.Series, weights: pl.Series, categories: Sequence[str], since: pl.Series | None = None
) -> tuple[str, float] | None:
    """The name of the spans that enclose most of these ids by weight, and its share; None if nothing encloses them.

    For each id the innermost enclosing span of the categories counts. Frames of libraries are skipped. With `since`
    weights are lengths of intervals from these times on, and count as far as the span was open in them.
    """
    if ids.is_empty() or not weights.sum():
        return None
    known = spans["name"].filter(spans["category"].is_in(list(categories)))
    own = known.unique().cast(pl.String)
    own = own.filter(map_names(own, is_own_code, pl.Boolean()))
    wanted = own.cast(spans["name"].dtype)
    if wanted.is_empty():
        return None
    mask = spans["category"].is_in(list(categories)) & spans["name"].is_in(wanted.implode())
    around = nearest_span(spans, ids, mask.gather)
    whole = weights.sum()
    if since is not None:
        begins = spans["ts_ns"].gather(around)
        ends = begins + spans["dur_ns"].gather(around)
        shared = pl.min_horizontal(since + weights, ends) - pl.max_horizontal(since, begins)
        weights = pl.select(shared.clip(lower_bound=0)).to_series()
    sums = pl.DataFrame({"name": spans["name"].gather(around), "weight": weights}).drop_nulls("name")
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


def most_called(spans: pl.DataFrame, low: int, high: int) -> tuple[str, int, int] | None:
    """The runtime calls of one name that took most of [low, high): name, how many, ns in it; None without any."""
    within = pl.min_horizontal(pl.col("ts_ns") + pl.col("dur_ns"), high) - pl.max_horizontal("ts_ns", low)
    calls = spans.filter(pl.col("category").is_in(("runtime", "driver")) & (within > 0))
    sums = calls.group_by(pl.col("name").cast(pl.String)).agg(n=pl.len(), ns=within.sum()).sort("ns", "name")
    return None if sums.is_empty() else sums.row(-1)


def _shortest(spans: pl.DataFrame, categories: Sequence[str]) -> str:
    mine = spans.filter(pl.col("category").is_in(list(categories))).sort("dur_ns")
    return next((name for name in mine["name"].cast(pl.String) if name and is_own_code(name)), "")
