"""Which spans are communication, and what collective each is: as the recorder calls it, the kernel's name comes second.

Every analysis, report and comparison asks these functions. The table of names is in `core/collectives.py`.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.span_lookup import are_among, in_rows, nearest_span, of_ids, of_spans
from stepscope.core.collectives import HOST_LIBRARIES, RECORDED, kinds_of, library_of, talks_to_ranks
from stepscope.core.intervals import Intervals, apart, difference, either, locate, union
from stepscope.core.names import kernel_class, map_names
from stepscope.core.table import filtered, integers, is_any_of

#: What PyTorch's operator around the call of a collective library is called.
RECORD = "record_param_comms"
#: What may be a collective as the host sees it.
HOST = ("operator", "user_range")


def communicates(work: pl.DataFrame, spans: pl.DataFrame, communication: str = "any") -> pl.Series:
    """Which rows of device work exchange data with other ranks. A mask.

    `communication` is `any`: kernels that the recorder lists among collectives, whose name says so, or whose purpose is
    unknown and which an operator of a collective library launched itself; `library`: kernels of collective libraries,
    as TraceLens counts; or a regular expression of kernel names. `spans` holds the operators.

    Raises StepscopeError if `communication` is no regular expression.
    """
    is_kernel = work["category"] == "kernel"
    named = talks_to_ranks(work["name"], communication)
    if communication in {"any", "library"}:
        named |= map_names(work["recorded_category"], lambda category: category == RECORDED, pl.Boolean()).fill_null(
            value=False
        )
    talks = is_kernel & named
    if communication != "any" or not (is_kernel & ~talks).any():
        return talks
    unclear = map_names(work["name"], lambda name: kernel_class(name) == "other", pl.Boolean())
    operators = work["op_id"].filter(is_kernel & ~talks & unclear).drop_nulls().unique()
    callers = operators.filter(calls_library(of_spans(spans, operators, "name")))
    return talks | (is_kernel & unclear & work["op_id"].is_in(callers.implode())) if callers.len() else talks


def calls_library(names: pl.Series) -> pl.Series:
    """Which names of host spans are those of a call of a collective library. A mask."""
    return map_names(names, lambda name: name == RECORD or library_of(name) is not None, pl.Boolean()).fill_null(
        value=False
    )


def collectives_on_host(spans: pl.DataFrame) -> pl.Series:
    """Which spans are collectives as the host sees them: operators and ranges with the name of one. A mask.

    Where libraries move data on the host (Gloo, MPI, UCC), or where kernels communicate, those libraries' operators are
    the only ones: all others only queue the transfer.
    """
    candidates = is_any_of(spans["category"], HOST)
    names = spans["name"].filter(candidates).unique()
    names = names.filter(talks_to_ranks(names))
    by_host = names.filter(map_names(names, lambda name: library_of(name) in HOST_LIBRARIES, pl.Boolean()))
    if by_host.len() or talks_to_ranks(spans["name"].filter(spans["category"] == "kernel").unique()).any():
        names = by_host
    return candidates & spans["name"].is_in(names.implode()) if names.len() else candidates & False


def named_calls(rows: pl.DataFrame, spans: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """The rows with the call that each belongs to, and the name of its collective. `collectives` is the trace's table.

    `rows` has span_id, and caller: the launch of a kernel (its operator if that is not known), or the operator itself.
    Added are record, the span with the call's entry in `collectives`; operator, the innermost one around the caller
    that names a library; call_id, the first known of both and of the span itself; and collective: as recorded, else the
    kind that the operator names, else the kind that the span's own name says, else that name.
    """
    recorded_ids = collectives["span_id"].to_numpy()
    recorded = nearest_span(spans, rows["caller"], are_among(spans, collectives["span_id"]))
    names_library = map_names(spans["name"], lambda name: library_of(name) is not None, pl.Boolean())
    operator = nearest_span(spans, rows["caller"], names_library.fill_null(value=False).to_numpy())
    rows = rows.with_columns(
        call_id=pl.coalesce(recorded, operator, "span_id"),
        record=pl.when(pl.Series(np.isin(rows["span_id"].to_numpy(), recorded_ids)))
        .then("span_id")
        .otherwise(recorded),
        operator=operator,
    )
    (known,) = of_ids(collectives[["span_id", "collective"]], rows["record"])
    own = of_spans(spans, rows["span_id"], "name")
    return rows.with_columns(
        collective=pl.coalesce(
            known.cast(pl.String),
            kinds_of(of_spans(spans, operator, "name")),
            kinds_of(own),
            own.cast(pl.String),
        )
    )


_CHUNK = 1 << 17  # rows looked at together, so that scratch space stays small


def computing_on_host(spans: pl.DataFrame, among: pl.Series | None = None) -> Intervals:
    """When some thread was in an operator, as disjoint intervals, and not in a collective within it.

    What runs within the call of a collective library is part of the collective. Operators within other ranges that are
    called after a collective compute. `among` is a mask: only operators of these spans count.
    """
    waits, calls = collectives_on_host(spans).fill_null(value=False), calls_library(spans["name"])
    is_operator = ~waits & (spans["category"] == "operator")
    busy = is_operator if among is None else is_operator & among
    rows = filtered(spans[["track_id", "ts_ns", "dur_ns"]], waits | busy)
    if not busy.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    times = rows["ts_ns"].to_numpy()
    starts, ends, back = apart(rows["track_id"].cast(pl.Int64).to_numpy(), times, times + rows["dur_ns"].to_numpy())

    def of(mask: pl.Series) -> Intervals:
        own = mask.filter(waits | busy).fill_null(value=False).to_numpy()
        return starts[own], ends[own]

    return union(*back(difference(_without(union(*of(waits)), of(busy)), union(*of(waits & calls)))))


def _without(waiting: Intervals, operators: Intervals) -> Intervals:
    """When the operators of a thread are open, without the waiting within them."""
    starts, ends = operators
    at = locate(waiting, starts)
    inside = (at >= 0) & (ends <= np.append(waiting[1], 0)[at])
    around = difference(union(starts[~inside], ends[~inside]), waiting)
    return either(around, union(starts[inside], ends[inside]))


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
    if not rows.size:
        return rows
    above = integers(in_rows(parents, rows))
    inside = (above >= 0) & wanted[above] & (starts[above] + durations[above] >= starts[rows] + durations[rows])
    outer: NDArray[np.int64] = rows[~inside]
    return outer
