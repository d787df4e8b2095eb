"""How large messages are, and how fast exchanges of each size."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.ranks.bandwidth import algorithm_bandwidth, bus_bandwidth
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.analyses.ranks.parallel_groups import PARALLELISMS, parallelism_of
from stepscope.core.errors import MissingTable
from stepscope.core.schema import Column, Table

__all__ = ["ANALYSIS", "MESSAGE_SIZES", "message_sizes"]

MESSAGE_SIZES = Table(
    "message-sizes",
    "how many exchanges there are of each size",
    (
        Column("parallelism", pl.Enum(PARALLELISMS), "what the groups are for", key=True),
        Column("kind", pl.String(), "what sort of exchange", key=True),
        Column("group_size", pl.Int32(), "ranks in each group", key=True),
        Column("from_bytes", pl.Int64(), "sizes from here; null: size not known", "bytes", key=True),
        Column("below_bytes", pl.Int64(), "to below here", "bytes", key=True),
        Column("exchanges", pl.Int64(), "how many"),
        Column("exchanges_ratio", pl.Float64(), "of all of that sort", "ratio"),
        Column("mean_transfer_ns", pl.Float64(), "of one", "ns"),
        Column("bus_bytes_per_s", pl.Float64(), "the same times what each rank sends of it", "bytes/s"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size by transfer time", "bytes/s"),
        Column("size_bytes", pl.Int64(), "all together", "bytes"),
        Column("transfer_ns", pl.Int64(), "time once all had come, all together", "ns"),
    ),
)


def message_sizes(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """How many exchanges there are of each size, in bins that double, by what the groups are for and sort of exchange.

    Small messages cost their latency, not their bytes: where bandwidth falls, sending more at a time helps.

    Units: bytes, ns, bytes/s.
    Source: bins of powers of two; size, transfer and bandwidths as in `collectives`.
    Raises MissingTable (no exchange has a size).
    """
    job = job_of(parts)
    labels = pl.Series([label for label, _ in parallelism_of(job)], dtype=pl.Enum(PARALLELISMS))
    sizes = pl.Series([group.size for group in job.groups], dtype=pl.Int32)
    rows = job.exchanges.select(
        pl.col("kind").cast(pl.String),
        "size_bytes",
        parallelism=labels.gather(job.exchanges["group"]),
        group_size=sizes.gather(job.exchanges["group"]),
        transfer_ns=pl.Series(transfers_of(job)).fill_nan(None).cast(pl.Int64),
    )
    if rows["size_bytes"].null_count() == rows.height:
        hint = "record with record_shapes=True, or with a PyTorch that writes metadata of collectives (2.2 and later)"
        raise MissingTable("sizes of exchanges", needed_by="message-sizes", hint=hint)
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


ANALYSIS = Analysis(
    name="message-sizes",
    doc="How large messages are, in bins that double, and how fast exchanges of each size.",
    inputs=(),
    output=MESSAGE_SIZES,
    run=message_sizes,
    scope="ranks",
)
