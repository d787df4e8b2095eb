"""How many collectives there are of each size, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.collectives import algorithm_bandwidth, bus_bandwidth
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import PARALLELISMS, parallelism_of
from stepscope.core.errors import MissingTable
from stepscope.core.table import Column, Table

MESSAGE_SIZES = Table(
    "message-sizes",
    "how many collectives there are of each size",
    (
        Column("parallelism", pl.Enum(PARALLELISMS), "what the groups are for", key=True),
        Column("kind", pl.String(), "kind of collective", key=True),
        Column("group_size", pl.Int32(), "ranks in each group", key=True),
        Column("from_bytes", pl.Int64(), "sizes from here; null: size unknown", "bytes", key=True),
        Column("below_bytes", pl.Int64(), "to below this", "bytes", key=True),
        Column("exchanges", pl.Int64(), "number of collectives"),
        Column("exchanges_ratio", pl.Float64(), "share of all of that kind", "ratio"),
        Column("mean_transfer_ns", pl.Float64(), "mean transfer time of one", "ns"),
        Column("bus_bytes_per_s", pl.Float64(), "the same times the part that each rank sends", "bytes/s"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size over transfer time", "bytes/s"),
        Column("size_bytes", pl.Int64(), "of all together", "bytes"),
        Column("transfer_ns", pl.Int64(), "time once all ranks had arrived, of all together", "ns"),
    ),
)


def message_sizes(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """One row per parallelism, kind of collective, group size and bin of sizes: how many, and how fast.

    Bins double in size. Small messages cost latency, not bytes: where bandwidth drops, sending more at a time helps.

    Units: bytes, ns, bytes/s.
    Source: bins of powers of two; size, transfer and bandwidths as in `collectives`.
    Raises MissingTable (no collective has a size).
    """
    job = job_of(parts)
    labels = pl.Series([label for label, _ in parallelism_of(job)], dtype=pl.Enum(PARALLELISMS))
    sizes = pl.Series([group.size for group in job.groups], dtype=pl.Int32)
    rows = job.collectives.select(
        pl.col("kind").cast(pl.String),
        "size_bytes",
        parallelism=labels.gather(job.collectives["group"]),
        group_size=sizes.gather(job.collectives["group"]),
        transfer_ns=pl.Series(transfers_of(job)).fill_nan(None).cast(pl.Int64),
    )
    if rows["size_bytes"].null_count() == rows.height:
        hint = "record the shapes of operators, or with a PyTorch that writes metadata of collectives (2.2 and later)"
        raise MissingTable("sizes of collectives", needed_by="message-sizes", hint=hint)
    power = pl.col("size_bytes").cast(pl.Float64).log(2).floor().cast(pl.Int64)
    low = pl.when(pl.col("size_bytes") > 0).then(pl.lit(2).pow(power)).when(pl.col("size_bytes") == 0).then(0)
    rows = rows.with_columns(from_bytes=low.cast(pl.Int64))
    sort = ["parallelism", "kind", "group_size"]
    timed = pl.col("transfer_ns").is_not_null()
    frame = rows.group_by(*sort, "from_bytes").agg(
        exchanges=pl.len().cast(pl.Int64),
        size_bytes=pl.when(pl.col("from_bytes").first().is_not_null()).then(pl.col("size_bytes").sum()),
        timed_bytes=pl.col("size_bytes").filter(timed).sum(),
        transfer_ns=pl.when(timed.any()).then(pl.col("transfer_ns").sum()),
        mean_transfer_ns=pl.col("transfer_ns").mean(),
    )
    frame = frame.with_columns(
        below_bytes=pl.when(pl.col("from_bytes") > 0)
        .then(pl.col("from_bytes") * 2)
        .when(pl.col("from_bytes") == 0)
        .then(1),
        exchanges_ratio=pl.col("exchanges") / pl.col("exchanges").sum().over(sort),
        algorithm_bytes_per_s=algorithm_bandwidth("timed_bytes"),
        bus_bytes_per_s=bus_bandwidth("timed_bytes"),
    )
    return MESSAGE_SIZES.conform(frame.sort(*sort, "from_bytes", nulls_last=True))


ANALYSIS = analysis_of(
    message_sizes,
    MESSAGE_SIZES,
    "How many collectives there are of each size, in bins that double, and how fast they are.",
    scope="ranks",
)
