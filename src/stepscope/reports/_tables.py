"""The small tables at the end of a report: the costliest operators, kernels, tracks or names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import own_time
from stepscope.analyses.kernels.kernels import KERNEL_SUMMARY
from stepscope.analyses.program.operators import OPERATORS
from stepscope.core.intervals import union_by
from stepscope.core.names import map_names, without_number
from stepscope.core.report import Block
from stepscope.core.table import Column, Name, Table, filtered
from stepscope.core.trace import extent_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace

ROWS = 6
_ROWS_OF_RANK = 30  # rows of each rank: enough that names that are large on all ranks remain
_LEAST_SHARE = 0.001

TRACKS = Table(
    "tracks",
    "how busy each track was",
    (
        Column("track", pl.String(), "process and thread or lane", key=True),
        Column("n_spans", pl.Int64(), "spans on it"),
        Column("busy_ns", pl.Int64(), "time in which any span was open", "ns"),
        Column("busy_ratio", pl.Float64(), "the same over the length of the recording", "ratio"),
    ),
)
NAMES = Table(
    "names",
    "what spans of a name took",
    (
        Column("name", Name, "the spans' name", key=True),
        Column("calls", pl.Int64(), "how many"),
        Column("self_ns", pl.Int64(), "summed duration less that of spans inside them", "ns"),
        Column("share_ratio", pl.Float64(), "its part of all", "ratio"),
    ),
)


def operator_block(operators: pl.DataFrame) -> Block:
    """The costliest operators, from the result of that analysis."""
    on_device = operators["device_self_ns"].null_count() == 0
    measures = (
        ("device_self_ns", "share_ratio", "n_kernels", "host_self_ns")
        if on_device
        else ("host_self_ns", "share_ratio", "host_total_ns")
    )
    frame = operators.select("name", "calls", *measures).head(_ROWS_OF_RANK)
    return Block("Operators", OPERATORS, frame, "show operators")


def kernel_block(kernels: pl.DataFrame) -> Block:
    """The costliest kernels, from the result of that analysis."""
    names = map_names(kernels["name"], without_number, pl.String()).cast(Name)
    frame = kernels[["calls", "total_ns", "share_ratio"]].with_columns(name=names)
    frame = (
        frame.group_by("name", maintain_order=True)
        .agg(pl.all().sum())
        .sort("total_ns", "name", descending=[True, False])
    )
    frame = frame.select("name", "calls", "total_ns", "share_ratio", mean_ns=pl.col("total_ns") / pl.col("calls"))
    return Block("Kernels", KERNEL_SUMMARY, frame.head(_ROWS_OF_RANK), "show kernels")


def track_block(trace: Trace) -> Block:
    """The busiest tracks."""
    spans, tracks = trace.spans, trace.tracks
    starts = spans["ts_ns"].to_numpy()
    ids, lows, highs = union_by(
        spans["track_id"].cast(pl.Int64).to_numpy(), starts, starts + spans["dur_ns"].to_numpy()
    )
    busy = pl.DataFrame({"track_id": ids, "busy_ns": highs - lows}).group_by("track_id").agg(pl.col("busy_ns").sum())
    counts = spans.group_by("track_id").agg(n_spans=pl.len().cast(pl.Int64))
    parts = [
        pl.coalesce("process", pl.format("process {}", "pid")),
        pl.coalesce(pl.col("label"), pl.col("tid").cast(pl.String)),
    ]
    name = pl.concat_str(parts, separator=" / ", ignore_nulls=True)
    named = tracks.select("track_id", track=pl.when(name == "").then(pl.format("track {}", "track_id")).otherwise(name))
    first, last = extent_ns(spans)
    whole = last - first
    frame = (
        counts.join(busy.with_columns(pl.col("track_id").cast(pl.UInt32)), on="track_id", how="left")
        .join(named, on="track_id", how="left")
        .with_columns(pl.col("busy_ns").fill_null(0))
        .with_columns(busy_ratio=pl.col("busy_ns") / whole if whole else None)
        .sort("busy_ns", "track_id", descending=[True, False])
    )
    return Block(
        "Tracks, by time in which something is open", TRACKS, TRACKS.conform(frame).head(_ROWS_OF_RANK), "show tracks"
    )


def name_block(trace: Trace) -> Block:
    """The names with the most self time."""
    spans = trace.spans
    own = own_time(spans, np.ones(spans.height, np.bool_))
    frame = spans.select("name").with_columns(self_ns=pl.Series(own))
    frame = frame.group_by("name").agg(calls=pl.len().cast(pl.Int64), self_ns=pl.col("self_ns").sum())
    whole = frame["self_ns"].sum()
    frame = frame.with_columns(share_ratio=pl.col("self_ns") / whole if whole else None)
    frame = NAMES.conform(frame).sort("self_ns", "calls", "name", descending=[True, True, False]).head(_ROWS_OF_RANK)
    return Block("Names, by their own time", NAMES, frame, "show spans --sort dur")


def merged(blocks: Sequence[Sequence[Block]]) -> tuple[Block, ...]:
    """The blocks of all ranks as one set: sums over ranks, averages computed anew, the first rows only."""
    tables = []
    for title in dict.fromkeys(block.title for of_rank in blocks for block in of_rank):
        mine = [block for of_rank in blocks for block in of_rank if block.title == title]
        ratio = next((c for c in ("share_ratio", "busy_ratio", "mean_threads") if c in mine[0].frame.columns), None)
        if ratio is None:  # no shares of a whole: nothing to add up
            frame = pl.concat([block.frame for block in mine], how="diagonal")
            frame = frame.unique(maintain_order=True).head(_ROWS_OF_RANK)  # ranks that say the same say it once
            tables.append(Block(title, mine[0].table, frame, mine[0].command))
            continue
        frame = mine[0].frame if len(mine) == 1 else _summed([block.frame for block in mine], ratio)
        frame = filtered(frame, frame[ratio].fill_null(1.0) >= _LEAST_SHARE).head(ROWS)
        note = f"Sums over {len(mine)} traces." if len(mine) > 1 else ""
        if not frame.is_empty():
            tables.append(Block(title, mine[0].table, frame, mine[0].command, note))
    return tuple(tables)


def _summed(frames: Sequence[pl.DataFrame], ratio: str) -> pl.DataFrame:
    """Sums over frames with the same columns. `ratio` is part of the wholes of all frames together."""
    columns = frames[0].columns
    key, order = columns[0], next((c for c in columns if c.endswith(("_ns", "_bytes"))), columns[1])
    known = [frame for frame in frames if frame.columns == columns]
    wholes = [float(frame[order].sum()) / share for frame in known if (share := float(frame[ratio].sum()))]
    whole = sum(wholes)
    sums = [pl.col(c).sum() for c in columns[1:] if c not in (ratio, "mean_ns")]
    frame = pl.concat(known).group_by(key).agg(*sums)
    frame = frame.with_columns((pl.col(order) / whole if whole else pl.lit(None, pl.Float64())).alias(ratio))
    if "mean_ns" in columns:
        frame = frame.with_columns(mean_ns=pl.col("total_ns") / pl.col("calls"))
    return frame.select(columns).sort(order, key, descending=[True, False])


def known_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns that have a value in some row."""
    return frame.select(c for c in frame.columns if frame[c].null_count() < frame.height)


def number(value: object) -> float:
    """A median of numbers, which Polars declares as anything."""
    return float(value) if isinstance(value, int | float) else 0.0
