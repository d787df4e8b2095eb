"""What happens in each turn of a loop: how well the turns agree, and which at the borders were recorded in part only.

A true cycle holds all that the program does over and over, each thing as often in one turn as in the next. A piece of
a cycle (a layer) lacks what stands outside it; two pieces that alternate differ from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.cycle_membership import NOWHERE

__all__ = ["Content", "agreement", "content_of", "counts", "is_whole", "reach"]

Ints = NDArray[np.int64]

_MOST_ROWS = 400_000
_MOST_NAMES = 300
_MOST_CYCLES = 1500
#: A name is steady if so many of the turns have it as often as the typical turn.
_STEADY = 0.8
#: A turn at the border is partial if it has so many of the steady names less often than is typical.
_MISSING = 0.2
_NEARLY_ALL = 0.9
#: For that question half the turns suffice: in a short recording the partial ones are many.
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Content:
    """Events by time and name, of the names that take most time."""

    at: Ints  # ascending
    code: Ints  # 0 … n_names-1
    n_names: int


def content_of(at: Ints, names: pl.Series, durations: pl.Series, wanted: pl.Series) -> Content:
    """Of the wanted spans those of the names that take most time; a name that occurs once or twice tells nothing."""
    keep = wanted & pl.Series(at != NOWHERE)
    rows = pl.DataFrame({"at": at, "name": names, "dur_ns": durations}).filter(keep)
    by_name = rows.group_by("name").agg(n=pl.len(), ns=pl.col("dur_ns").sum()).filter(pl.col("n") >= 3)
    top = by_name.sort("ns", "name", descending=[True, False]).head(_MOST_NAMES)
    top = top.filter((pl.col("n").cum_sum() <= _MOST_ROWS) | (pl.int_range(pl.len()) == 0))
    top = top.with_row_index("code")
    found = rows.join(top.select("name", "code"), on="name").sort("at")
    return Content(found["at"].to_numpy(), found["code"].cast(pl.Int64).to_numpy(), top.height)


def counts(content: Content, lows: Ints, highs: Ints) -> NDArray[np.float64]:
    """How often each name (column) comes in each window [low, high) (row)."""
    row = np.searchsorted(lows, content.at, side="right") - 1
    inside = (row >= 0) & (content.at < highs[row])
    key = row[inside] * content.n_names + content.code[inside]
    flat = np.bincount(key, minlength=lows.size * content.n_names)
    return flat.reshape(lows.size, content.n_names).astype(np.float64)


def agreement(content: Content, starts: Ints) -> float:
    """Share of the names that come as often in one turn as in the next, 0..1; turns last from start to start.

    A name counts as steady if at least 8 of 10 turns have it exactly as often as the median turn, and that is at least
    once. 0 where there are fewer than two turns, or no names.
    """
    starts = starts[: _MOST_CYCLES + 1]
    if starts.size < 3 or content.n_names == 0:
        return 0.0
    found = counts(content, starts[:-1], starts[1:])
    seen = found.sum(axis=0) > 0
    if reach(content, starts) < _NEARLY_ALL:
        seen[:] = True  # what comes only before or after these turns counts against them
    typical = np.median(found, axis=0)
    steady = ((found == typical).mean(axis=0) >= _STEADY) & (typical > 0)
    return float(steady.sum() / max(int(seen.sum()), 1))


def reach(content: Content, starts: Ints) -> float:
    """Share of the events that lie within the turns, 0..1, were the last turn as long as the median one.

    Events and not time: a long way in, or a wait for work, does not make a loop less of one.
    """
    if starts.size < 2 or content.at.size == 0:
        return 0.0
    end = starts[-1] + np.median(np.diff(starts))
    inside = np.searchsorted(content.at, end) - np.searchsorted(content.at, starts[0])
    return float(inside / content.at.size)


def is_whole(found: NDArray[np.float64], kinds: Sequence[str | None] = ()) -> NDArray[np.bool_]:
    """Whether each turn (row of counts by name) was recorded whole: false for turns at a border that lack much.

    From both ends inwards, turns count as partial while at least a fifth of the steady names come less often in them
    than in the typical turn of their kind. Never more than half of the turns; a kind with fewer than three tells
    nothing. Without `kinds` all are of one.
    """
    n = found.shape[0]
    whole = np.ones(n, np.bool_)
    if n < 3 or found.shape[1] == 0:
        return whole
    lacks = np.zeros(n, np.bool_)
    kind = np.array([str(k) for k in kinds] if kinds else [""] * n)
    for one in np.unique(kind):
        mine = kind == one
        if mine.sum() >= 3:
            lacks[mine] = _lacks_much(found[mine])
    first = int(np.argmin(lacks)) if lacks[0] else 0
    last = n - (int(np.argmin(lacks[::-1])) if lacks[-1] else 0)
    if lacks.all() or last - first < (n + 1) // 2:
        return whole
    whole[:first] = False
    whole[last:] = False
    return whole


def _lacks_much(found: NDArray[np.float64]) -> NDArray[np.bool_]:
    typical = np.median(found, axis=0)
    steady = ((found == typical).mean(axis=0) >= _MOSTLY) & (typical > 0)
    if not steady.any():
        return np.zeros(found.shape[0], np.bool_)
    share: NDArray[np.float64] = (found[:, steady] < typical[steady]).mean(axis=1)
    return share >= _MISSING
