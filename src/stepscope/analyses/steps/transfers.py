"""What was copied and filled: how often, how much, how fast."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.core.table import Column, Name, Table

By = Literal["kind", "memory"]
KEYS = {"kind": ("kind",), "memory": ("kind", "src", "dst")}

TRANSFER_SUMMARY = Table(
    "transfers",
    "what was copied and filled, and how fast",
    (
        Column("kind", Name, "HtoD, DtoH, DtoD, PtoP, HtoH, memset, unknown", key=True),
        Column("src", Name, "source memory (by memory)", key=True),
        Column("dst", Name, "destination memory (by memory)", key=True),
        Column("calls", pl.Int64(), "how many"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "its part of the summed duration of all transfers", "ratio"),
        Column("mean_ns", pl.Float64(), "mean duration", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("bytes", pl.Int64(), "bytes moved; null where the trace has no sizes", "bytes"),
        Column("mean_bytes", pl.Float64(), "mean size", "bytes"),
        Column("max_bytes", pl.Int64(), "largest", "bytes"),
        Column("bytes_per_s", pl.Float64(), "bytes moved by summed duration", "bytes/s"),
        Column("min_bytes_per_s", pl.Float64(), "slowest transfer", "bytes/s"),
        Column("p50_bytes_per_s", pl.Float64(), "median of the transfers", "bytes/s"),
        Column("max_bytes_per_s", pl.Float64(), "fastest transfer", "bytes/s"),
    ),
)


def transfers(spans: pl.DataFrame, transfers: pl.DataFrame, *, by: By = "kind") -> pl.DataFrame:
    """One row per direction of copies and fills (by memory: and the memory at both ends), longest in total first.

    The main columns are `calls`, `total_ns`, `bytes` and `bytes_per_s`. `sizes` is the trace's table `transfers`.
    `bytes_per_s` is all bytes by all time of the transfers that have both, so long ones weigh more. Its minimum, median
    and maximum are those of single transfers, as recorded, or else bytes by time: recorders round the time of short
    copies, but not their rate.

    Units: ns, bytes, bytes/s.
    Source: bytes by duration; HTA's memory bandwidth takes the recorded rates and adds those of concurrent copies.
    Raises UnknownName (by).
    """
    moved = transfers.join(spans.select("span_id", "dur_ns"), on="span_id", how="inner")
    size, duration = pl.col("bytes"), pl.col("dur_ns")
    timed = size.is_not_null() & (duration > 0)
    seconds = duration.filter(timed).sum() / 1e9
    recorded = pl.col("recorded_bytes_per_s")
    rate = pl.when(recorded > 0).then(recorded).when(timed).then(size / (duration / 1e9))
    result = (
        moved.group_by(KEYS[by])
        .agg(
            calls=pl.len().cast(pl.Int64),
            total_ns=duration.sum(),
            mean_ns=duration.mean(),
            max_ns=duration.max(),
            bytes=pl.when(size.count() > 0).then(size.sum()),
            mean_bytes=size.mean(),
            max_bytes=size.max(),
            bytes_per_s=pl.when(seconds > 0).then(size.filter(timed).sum() / seconds),
            min_bytes_per_s=rate.min(),
            p50_bytes_per_s=rate.median(),
            max_bytes_per_s=rate.max(),
        )
        .with_columns(
            share_ratio=pl.when(pl.col("total_ns").sum() > 0).then(pl.col("total_ns") / pl.col("total_ns").sum())
        )
    )
    order = [pl.col(key).cast(pl.String) for key in KEYS[by]]
    result = result.sort("total_ns", *order, descending=[True, *(False for _ in order)], nulls_last=True)
    return result.select(pl.col(k).cast(t) for k, t in TRANSFER_SUMMARY.dtypes.items() if k in result.columns)


ANALYSIS = analysis_of(transfers, TRANSFER_SUMMARY, "Copies and fills: how often, how much, how fast.")
