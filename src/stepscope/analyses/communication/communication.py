"""What the exchanges with other ranks cost: how often, how much, how long, how fast, how much of it hidden."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.communication.collective_calls import collective_calls
from stepscope.core.collectives import bus_factor, kinds_of
from stepscope.core.errors import MissingTable, UnknownName
from stepscope.core.intervals import Intervals, covered, union_by
from stepscope.core.schema import COLLECTIVES, OPS, SPANS, TRACKS, Column, Name, Table

__all__ = ["ANALYSIS", "COMMUNICATION_SUMMARY", "communication"]

By = Literal["collective", "step"]
_WHAT = ("rank", "collective", "group", "dtype", "measured")
KEYS = {"collective": _WHAT, "step": ("step", *_WHAT)}
#: The size of a call is that of the whole: what all gather, what is to be scattered, else what goes in or comes out.
_SIZE = (
    pl.when(pl.col("kind") == "allgather")
    .then("out_bytes")
    .when(pl.col("kind") == "reduce_scatter")
    .then("in_bytes")
    .otherwise(pl.max_horizontal("in_bytes", "out_bytes"))
)
COMMUNICATION_SUMMARY = Table(
    "communication",
    "what the exchanges with other ranks cost",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("step", pl.Int32(), "number of the step that queued it (by step)", key=True),
        Column("collective", Name, "as recorded, or else as its operator or its kernel is called", key=True),
        Column("group", Name, "process group", key=True),
        Column("dtype", Name, "element type", key=True),
        Column(
            "measured",
            Name,
            "its time is that of: device, its kernels; host, its operator; call, what queues it",
            key=True,
        ),
        Column("group_size", pl.Int32(), "ranks in the group; null if it changes"),
        Column("calls", pl.Int64(), "how often"),
        Column("in_bytes", pl.Int64(), "sent in by this rank; null where the trace has no sizes", "bytes"),
        Column("mean_in_bytes", pl.Float64(), "mean of a call", "bytes"),
        Column("out_bytes", pl.Int64(), "got by this rank", "bytes"),
        Column("mean_out_bytes", pl.Float64(), "mean of a call", "bytes"),
        Column("total_ns", pl.Int64(), "summed time", "ns"),
        Column("mean_ns", pl.Float64(), "mean time of a call", "ns"),
        Column("merged_ns", pl.Int64(), "time during which at least one was under way", "ns"),
        Column("hidden_ns", pl.Int64(), "of it, while something computes", "ns"),
        Column("exposed_ns", pl.Int64(), "of it, while nothing computes", "ns"),
        Column("hidden_ratio", pl.Float64(), "hidden part of the merged time", "ratio"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size of the whole by summed time", "bytes/s"),
        Column("bus_bytes_per_s", pl.Float64(), "the same times what each rank sends of it", "bytes/s"),
    ),
)


def communication(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    collectives: pl.DataFrame | None = None,
    ops: pl.DataFrame | None = None,
    *,
    by: By = "collective",
    communication: str = "library",
) -> pl.DataFrame:
    """What each collective cost, by process group and element type, or also by step; longest in total first.

    `collectives` and `ops` are the trace's tables; without the former, collectives are told by their names, and their
    size by the shapes of their operator's inputs. A call is what one operator queued: of several kernels the times add
    up and the sizes count once. Where no device exchanges data, as on CPUs, host operators stand for it: those of Gloo
    and MPI last as long as the exchange, of all others only the time to queue it is known (`call`). Where no device
    computes, all other operators of the host do. `communication` says which kernels exchange data, as in `timeline`.

    `merged_ns` counts once what runs at the same time, and is `hidden_ns` + `exposed_ns`. Names that run at the same
    time share their time.

    A kernel also waits until the other ranks are there: how much of its time is that and how much the transfer cannot
    be told from one rank. The bandwidths are therefore lower bounds. They are those of the calls whose size and time
    are known, and null for `call`.

    Units: ns, bytes, bytes/s, ratio.
    Source: size and bus bandwidth as nccl-tests define them: size / time × 2(n−1)/n for all-reduce, (n−1)/n for
    all-gather, reduce-scatter, all-to-all, gather and scatter, 1 for broadcast, reduce and messages, n ranks in the
    group.
    Raises MissingTable (nothing was exchanged; by step: no steps), UnknownName (by).
    """
    if by not in KEYS:
        raise UnknownName("grouping of communication", by, KEYS)
    records = COLLECTIVES.empty() if collectives is None else collectives
    inputs = OPS.empty() if ops is None else ops
    parts, computing = collective_calls(spans, tracks, records, inputs, communication=communication)
    if parts.is_empty():
        hint = "traces of distributed jobs have them, as kernels or operators of NCCL, RCCL, Gloo, …"
        raise MissingTable("exchanges with other ranks", needed_by="communication", hint=hint)
    if by == "step" and parts["step"].null_count() == parts.height:
        raise MissingTable("steps", needed_by="communication by step", hint="call profiler.step() after each iteration")
    keys = KEYS[by]
    calls = parts.group_by("call_id", maintain_order=True).agg(
        *(pl.col(c).first() for c in (*keys, "group_size", "in_bytes", "out_bytes")), ns=pl.col("dur_ns").sum()
    )
    calls = calls.with_columns(kind=kinds_of(calls["collective"])).with_columns(size=_SIZE)
    result = calls.group_by(keys).agg(
        group_size=pl.when(pl.col("group_size").n_unique() == 1).then(pl.col("group_size").first()),
        calls=pl.len().cast(pl.Int64),
        in_bytes=_known_sum("in_bytes"),
        mean_in_bytes=pl.col("in_bytes").mean(),
        out_bytes=_known_sum("out_bytes"),
        mean_out_bytes=pl.col("out_bytes").mean(),
        total_ns=pl.col("ns").sum(),
        mean_ns=pl.col("ns").mean(),
        algorithm_bytes_per_s=_rate(pl.col("size")),
        bus_bytes_per_s=_rate(pl.col("size") * bus_factor(pl.col("kind"), pl.col("group_size"))),
    )
    result = result.join(_merged(parts, keys, computing), on=keys, how="left", nulls_equal=True)
    result = result.with_columns(
        exposed_ns=pl.col("merged_ns") - pl.col("hidden_ns"),
        hidden_ratio=pl.when(pl.col("merged_ns") > 0).then(pl.col("hidden_ns") / pl.col("merged_ns")),
    )
    first = [c for c in ("step", "rank") if c in keys]
    last = [c for c in keys if c not in first]
    order = [*first, pl.col("total_ns").neg(), *(pl.col(c).cast(pl.String) for c in last)]
    result = result.sort(*order, nulls_last=True)
    return result.select(pl.col(k).cast(t) for k, t in COMMUNICATION_SUMMARY.dtypes.items() if k in result.columns)


def _known_sum(column: str) -> pl.Expr:
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _rate(size: pl.Expr) -> pl.Expr:
    """Bytes by seconds, over the calls that have both; null where none has."""
    timed = size.is_not_null() & (pl.col("ns") > 0) & (pl.col("measured") != "call")
    seconds = pl.col("ns").filter(timed).sum() / 1e9
    return pl.when(seconds > 0).then(size.filter(timed).sum() / seconds)


def _merged(parts: pl.DataFrame, keys: tuple[str, ...], computing: dict[int | None, Intervals]) -> pl.DataFrame:
    """Per combination of keys the time of its exchanges, each moment once, and how much of it something computes."""
    groups = parts.select(keys).unique(maintain_order=True).with_row_index("key")
    rows = parts.join(groups, on=keys, how="left", nulls_equal=True, maintain_order="left")
    starts, durations = rows["ts_ns"].to_numpy(), rows["dur_ns"].to_numpy()
    of, low, high = union_by(rows["key"].cast(pl.Int64).to_numpy(), starts, starts + durations)
    merged, hidden = np.zeros(groups.height, np.int64), np.zeros(groups.height, np.int64)
    np.add.at(merged, of, high - low)
    rank = groups["rank"]
    for number, intervals in computing.items():
        own = rank.eq_missing(pl.Series([number], dtype=rank.dtype)).to_numpy()[of]
        np.add.at(hidden, of[own], covered(intervals, low[own], high[own]))
    return groups.select(keys).with_columns(merged_ns=pl.Series(merged), hidden_ns=pl.Series(hidden))


ANALYSIS = Analysis(
    name="communication",
    doc="Exchanges with other ranks: how often, how much, how long, how fast, how much of it hidden.",
    inputs=(SPANS, TRACKS),
    output=COMMUNICATION_SUMMARY,
    run=communication,
    optional=(COLLECTIVES, OPS),
)
