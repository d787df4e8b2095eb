"""Which spans are communication, and what collective each is: as the recorder calls it, the kernel's name comes second.

Every analysis, report and comparison asks these functions. The table of names is in `core/collectives.py`.
"""

from __future__ import annotations

import polars as pl

from stepscope.analyses.common.span_lookup import nearest_span, of_spans
from stepscope.core.collectives import HOST_LIBRARIES, RECORDED, kinds_of, library_of, talks_to_ranks
from stepscope.core.names import kernel_class, map_names

__all__ = ["HOST", "calls_library", "collectives_on_host", "communicates", "named_calls"]

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
    candidates = spans["category"].is_in(HOST)
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
    recorded_ids = collectives["span_id"].implode()
    recorded = nearest_span(spans, rows["caller"], lambda ids: ids.is_in(recorded_ids))
    operator = nearest_span(spans, rows["caller"], lambda ids: _names_library(of_spans(spans, ids, "name")))
    rows = rows.with_columns(
        call_id=pl.coalesce(recorded, operator, "span_id"),
        record=pl.when(pl.col("span_id").is_in(recorded_ids)).then("span_id").otherwise(recorded),
        operator=operator,
    )
    known = collectives.select("span_id", "collective").unique("span_id", keep="first")
    known = rows.select(span_id="record").join(known, on="span_id", how="left", maintain_order="left")
    own = of_spans(spans, rows["span_id"], "name")
    return rows.with_columns(
        collective=pl.coalesce(
            known["collective"].cast(pl.String),
            kinds_of(of_spans(spans, operator, "name")),
            kinds_of(own),
            own.cast(pl.String),
        )
    )


def _names_library(names: pl.Series) -> pl.Series:
    return map_names(names, lambda name: library_of(name) is not None, pl.Boolean())
