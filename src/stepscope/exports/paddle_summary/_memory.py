"""Paddle's Memory Summary: what was allocated and freed, for each memory, under each name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.exports.paddle_summary._text import Sheet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.paddle_summary._tree import Tree

    Ints = NDArray[np.int64]

_WIDTHS = (50, 12, 15, 15, 15, 15, 15)
_FREES = ("Free", "ReservedFree")
#: The header's third cell is wider than its column, which moves what follows.
_HEAD = ("Name", "Type", "Allocation Count", "Free Count", "Allocation Size", "Free Size", "Increased Size")


def memory_summary(tree: Tree, allocations: pl.DataFrame, reservations: pl.DataFrame) -> str:
    """A table for each memory in which tensors were allocated. Empty if that was not recorded.

    An operator has what its direct children did as well as its own, so that kernel launches are there twice: under the
    operator's name and under their own.
    """
    kinds = (("Allocated", allocations), ("Reserved", reservations))
    records = pl.concat([_attributed(tree, frame).with_columns(kind=pl.lit(kind)) for kind, frame in kinds])
    if records.is_empty():
        return ""
    text = ""
    for place in records.filter(pl.col("kind") == "Allocated")["place"].unique(maintain_order=True):
        text += _table(place, records.filter(pl.col("place") == place))
    return text


def _attributed(tree: Tree, frame: pl.DataFrame) -> pl.DataFrame:
    """Memory events under the names that Paddle gives them, in the order in which it meets them."""
    host = tree.host
    rows = np.searchsorted(host.span, frame["span_id"].cast(pl.Int64).fill_null(-1).to_numpy())
    known = np.flatnonzero(frame["span_id"].is_not_null().to_numpy())
    rows = rows[known]
    up = host.node[rows]
    is_op = np.append(host.type.where("Operator"), False)
    inherited = np.flatnonzero(is_op[up])
    own = np.flatnonzero(~host.type.where("OperatorInner")[rows])
    at = np.concatenate((inherited, own))
    node = np.concatenate((up[inherited], rows[own]))
    is_own = np.repeat([0, 1], (inherited.size, own.size))
    order = np.lexsort((known[at], rows[at], is_own, tree.visit[node]))
    texts = pl.Series([*host.name.texts, ""], dtype=pl.String)
    named = texts.gather(host.name.codes[node[order]])
    words = pl.col("recorded_category", "place").cast(pl.String).fill_null("")
    picked = frame.select(words, "bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    return picked[known[at[order]]].with_columns(name=named)


def _table(place: str, records: pl.DataFrame) -> str:
    sheet = Sheet(_WIDTHS)
    sheet.title(f"Memory Summary - {place}")
    for what in ("Allocated", "Reserved"):
        peak = records.select(pl.col(f"peak_{what.lower()}_bytes").max().fill_null(0)).item()
        sheet.lines.append(f"Peak {what} Memory: {peak}")
    sheet.head(*_HEAD)
    size, is_free = pl.col("bytes"), pl.col("recorded_category").is_in(_FREES)
    sums = records.group_by("kind", "name", maintain_order=True).agg(
        n_allocations=(~is_free).sum(),
        n_frees=is_free.sum(),
        allocated=size.filter(~is_free).sum(),
        freed=-size.filter(is_free).sum(),
        increase=size.sum(),
    )
    for kind in ("Allocated", "Reserved"):
        mine = sums.filter(pl.col("kind") == kind).sort("increase", descending=True, maintain_order=True)
        for _, name, *numbers in mine.iter_rows():
            sheet.row(name, kind, *map(str, numbers))
    return sheet.done()
