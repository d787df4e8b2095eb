"""Values of spans by their ids, and the innermost span of some kind around another.

A span is *around* another one if it was open on the same thread when the other began. `parent_id` leads from each span
to the innermost one around it, but not every span on that way is around the first one: a range that a function opens
outlasts the function, so what happens in the range later is not in that function. Such spans are passed over here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.intervals import NO_ROW, innermost, nearest, own_lengths, stretches
from stepscope.core.names import is_own_code, map_names
from stepscope.core.schema import CAPTURED
from stepscope.core.table import filtered, is_any_of, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.intervals import Bools, Ints

    Rows = NDArray[np.signedinteger[Any]]


def parents_of(spans: pl.DataFrame) -> Rows:
    """The row of each span's parent, -1 for none. `spans` are not filtered: ids are row numbers."""
    dtype = pl.Int32 if spans.height < 1 << 31 else pl.Int64
    parents: Rows = spans["parent_id"].cast(dtype).fill_null(-1).to_numpy()
    return parents


def at_or_around(spans: pl.DataFrame, wanted: Bools, rows: Ints | None = None, *, itself: bool = True) -> Ints:
    """For each span the innermost wanted one among itself and the spans around it; -1 if there is none.

    `wanted` is a mask over all spans, which are not filtered: ids are row numbers. With `rows` only these spans are
    asked about. Without `itself` only spans around count.
    """
    asked: Ints = np.arange(spans.height) if rows is None else rows
    if not wanted.any():
        return np.full(asked.size, -1, np.int64)
    around = _around(parents_of(spans), spans["ts_ns"].to_numpy(), spans["dur_ns"].to_numpy(), wanted, asked)
    return np.where(wanted.take(asked), asked, around) if itself else around.astype(np.int64)


def _around(parents: Rows, starts: Ints, lengths: Ints, wanted: Bools, asked: Ints) -> Rows:
    """For each asked span the innermost wanted one around it, -1 for none."""
    chain = nearest(parents, wanted)

    def above(at: Rows) -> Rows:
        up = parents.take(at)
        return np.where(up >= 0, chain.take(up), -1)

    around = above(asked)
    # The parent itself was open, what is further out may have ended.
    pending = np.flatnonzero((around >= 0) & (around != parents.take(asked)))
    while pending.size:
        outer = around.take(pending)
        ended = starts.take(outer) + lengths.take(outer) <= starts.take(asked.take(pending))
        passed = (outer >= 0) & ended
        pending = pending[passed]
        around[pending] = above(outer[passed])
    return around


def is_captured(spans: pl.DataFrame) -> Bools:
    """Which spans are operators and modules of a replayed graph, whose host time is that of its one launch."""
    return (spans["recorded_category"] == CAPTURED).fill_null(value=False).to_numpy()


def own_time(spans: pl.DataFrame, wanted: Bools) -> Ints:
    """Of each wanted span, in order, its length without what wanted spans in it cover. Units: ns.

    `wanted` is a mask over all spans, which are not filtered.
    """
    parents, starts, lengths = parents_of(spans), spans["ts_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    own, n = np.empty(np.count_nonzero(wanted), np.int64), 0
    for some in stretches(parents):  # of millions of spans each column takes its memory
        up = np.where(parents[some] >= 0, parents[some] - some.start, -1)
        part = _own_time(up, starts[some], lengths[some], wanted[some])
        own[n : n + part.size] = part
        n += part.size
    return own


def _own_time(parents: Rows, starts: Ints, lengths: Ints, wanted: Bools) -> Ints:
    rows = np.flatnonzero(wanted)
    above = parents[rows]
    if not wanted[above[above >= 0]].all():
        above = _around(parents, starts, lengths, wanted, rows)
    position = np.full(parents.size + 1, -1, np.int64)  # the last one, reached by index -1, stays -1
    position[rows] = np.arange(rows.size)
    begins = starts[rows]
    return own_lengths(begins, begins + lengths[rows], position[above])


def callers(spans: pl.DataFrame, span_id: int, frames: pl.DataFrame) -> list[int]:
    """The spans around one span, innermost first, then Python calls of other threads that `frames` names as callers.

    The recorder numbers Python calls: what autograd's thread runs was called by the thread that asked for gradients.
    On one thread its numbers leave out functions that an operator called, so there it counts what was open.
    `spans` are not filtered: ids are row numbers.
    """
    at, around = spans["ts_ns"][span_id], list[int]()
    above = spans["parent_id"][span_id]
    while above is not None:
        if not around or spans["ts_ns"][above] + spans["dur_ns"][above] > at:
            around.append(above)
        above = spans["parent_id"][above]
    numbered = frames.drop_nulls("python_id")
    calls = numbered.filter(pl.col("span_id").is_in([*around, span_id]))
    if calls.is_empty():
        return around
    outermost = next(one for one in (*around[::-1], span_id) if one in calls["span_id"])
    caller = calls.filter(pl.col("span_id") == outermost)["python_parent_id"][0]
    while caller is not None:
        row = numbered.filter(pl.col("python_id") == caller).head(1)
        if row.is_empty() or row["span_id"][0] in around:
            break
        if spans["ts_ns"][row["span_id"][0]] + spans["dur_ns"][row["span_id"][0]] > at:
            around.append(row["span_id"][0])
        caller = row["python_parent_id"][0]
    return around


def nearest_span(spans: pl.DataFrame, ids: pl.Series, wanted: Bools) -> pl.Series:
    """For each id the innermost wanted span among that host span and those around it; null if there is none.

    `wanted` is a mask over the rows of `spans`, which may be filtered.
    """
    have = spans["span_id"]
    first, parents = (row_numbers(have, column) for column in (ids, spans["parent_id"]))
    rows = innermost(first, parents, (spans["ts_ns"].to_numpy(), spans["dur_ns"].to_numpy()), wanted)
    return _ids_in(have, rows)


def are_among(spans: pl.DataFrame, ids: pl.Series) -> Bools:
    """Which spans have one of these ids. A mask; ids that no span has are left out."""
    rows, is_one = row_numbers(spans["span_id"], ids), np.zeros(spans.height, np.bool_)
    is_one[rows[rows < spans.height]] = True
    return is_one


def _ids_in(have: pl.Series, rows: NDArray[np.uint32]) -> pl.Series:
    """The ids in these rows, null for `NO_ROW`."""
    is_none = rows == NO_ROW
    ids = rows if _is_numbered(have) else have.to_numpy()[np.where(is_none, 0, rows)] if have.len() else rows
    return pl.Series(ids).set(pl.Series(is_none), None) if is_none.any() else pl.Series(ids)


def row_numbers(have: pl.Series, ids: pl.Series) -> NDArray[np.uint32]:
    """The rows of a table with these span ids, at which others are found; `NO_ROW` for null and what is not there."""
    wanted = ids.cast(pl.UInt32)
    rows: NDArray[np.uint32] = (wanted.fill_null(NO_ROW) if wanted.null_count() else wanted).to_numpy()
    if _is_numbered(have):
        beyond = rows >= have.len()
        return np.where(beyond, NO_ROW, rows) if beyond.any() else rows
    known = have.to_numpy()  # looked up in NumPy: a join of the two is planned for as long as it takes
    order = None if have.is_sorted() else np.argsort(known, kind="stable")
    at = np.searchsorted(known, rows, sorter=order)
    beyond = at == known.size
    at[beyond] = 0
    if order is not None:
        at = order[at]
    beyond |= known[at] != rows if known.size else True
    at[beyond] = NO_ROW
    return at.astype(np.uint32)


def of_spans(spans: pl.DataFrame, ids: pl.Series, column: str) -> pl.Series:
    """That column of the spans with these ids, row by row; null where the id is null."""
    have = spans["span_id"]
    if _is_numbered(have):
        return spans[column][ids.cast(pl.UInt32)]  # unlike `gather` it plans no query
    rows = pl.Series(row_numbers(have, ids))
    return spans[column][rows.set(rows == NO_ROW, None)]


def of_ids(table: pl.DataFrame, ids: pl.Series, key: str = "span_id") -> list[pl.Series]:
    """For each id the other columns of a table by `key`, of the first of its rows; null where it has none.

    Ids are below 2³² - 1. Of large tables, joining one to a column of ids takes as long; of small ones far longer.
    """
    known = table[key]
    if known.n_unique() < known.len():
        table = table.unique(key, keep="first", maintain_order=True)
    rows = row_numbers(table[key], ids)
    return without(table, key)[pl.Series(rows).set(pl.Series(rows == NO_ROW), None)].get_columns()


def in_rows(values: pl.Series, rows: Ints) -> pl.Series:
    """The values in rows of these numbers, all of which are there: `gather` without planning a query."""
    return values[pl.Series(rows.astype(np.uint32))]


def _is_numbered(have: pl.Series) -> bool:
    """Whether the span ids of a table are its row numbers: they are unless someone has filtered it."""
    return bool(have.len() and have[0] == 0 and have[-1] == have.len() - 1 and have.is_sorted())


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
    category = spans["category"]
    is_one = is_any_of(category, categories)
    if not is_one.any():
        return None
    own = spans["name"].filter(is_one).unique().cast(pl.String)
    own = own.filter(map_names(own, is_own_code, pl.Boolean()))
    wanted = own.cast(spans["name"].dtype)
    if wanted.is_empty():
        return None
    mask = is_one & spans["name"].is_in(wanted.implode())
    around = nearest_span(spans, ids, mask.fill_null(value=False).to_numpy())
    whole = weights.sum()
    if since is not None:
        begins = spans["ts_ns"][around]
        ends = begins + spans["dur_ns"][around]
        shared = pl.min_horizontal(since + weights, ends) - pl.max_horizontal(since, begins)
        weights = pl.select(shared.clip(lower_bound=0)).to_series()
    sums = pl.DataFrame({"name": spans["name"][around], "weight": weights}).drop_nulls("name")
    if sums.is_empty() or not whole:
        return None
    top = sums.group_by("name").agg(pl.col("weight").sum()).sort("weight", "name", descending=[True, False]).row(0)
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
    mine = filtered(spans, is_any_of(spans["category"], categories)).sort("dur_ns")
    return next((name for name in mine["name"].cast(pl.String) if name and is_own_code(name)), "")
