"""Exchanges matched across ranks: how much, how fast, and who waited how long for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.ranks.bandwidth import algorithm_bandwidth, bus_bandwidth
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import STATUSES, Job, job_of, missing_ranks
from stepscope.analyses.ranks.parallel_groups import PARALLELISMS, parallelism_of
from stepscope.core.errors import UnknownName
from stepscope.core.schema import Column, Name, Table

__all__ = ["ANALYSIS", "COLLECTIVES_OF_RANKS", "collectives"]

By = Literal["exchange", "rank", "group", "call"]
COLLECTIVES_OF_RANKS = Table(
    "collectives",
    "exchanges matched across ranks",
    (
        Column("rank", pl.Int32(), "rank of the process in its job (by rank, call)", key=True),
        Column("exchange", pl.Int64(), "its number, in order of time (by exchange, call)", key=True),
        Column("group", pl.String(), "process group, or its ranks if it has no name", key=True),
        Column("parallelism", pl.Enum(PARALLELISMS), "what the group is for; show parallel-groups says why", key=True),
        Column("kind", pl.String(), "what sort of exchange", key=True),
        Column("exchanges", pl.Int64(), "how many (by rank, group)"),
        Column("unmatched", pl.Int64(), "of them, those that are not matched (by rank, group)"),
        Column(
            "size_bytes", pl.Int64(), "size of the whole; summed by rank and group, null if one is unknown", "bytes"
        ),
        Column("transfer_ns", pl.Int64(), "time once all had come: the shortest on any rank; null for one rank", "ns"),
        Column("bus_bytes_per_s", pl.Float64(), "the same times what each rank sends of it", "bytes/s"),
        Column("wait_ns", pl.Int64(), "waited for others: by this rank, or all together", "ns"),
        Column("last_rank", pl.Int32(), "the rank that waited least, so came last"),
        Column("came_last", pl.Int64(), "how often this rank came last (by rank)"),
        Column("status", pl.Enum(STATUSES), "whether it is the same on all ranks"),
        Column("missing", pl.String(), "ranks at hand whose traces lack it"),
        Column("step", pl.Int32(), "number of the step that queued it", key=True),
        Column("max_wait_ns", pl.Int64(), "longest wait of a rank", "ns"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size by transfer time", "bytes/s"),
        Column("total_ns", pl.Int64(), "summed time of the rank's calls, or of all ranks'", "ns"),
        Column("start_ns", pl.Int64(), "when the first rank came, from the job's first exchange, in true time", "ns"),
        Column("end_ns", pl.Int64(), "when it ended on the last", "ns"),
        Column("seq", pl.Int64(), "its number within the group, where recorded", key=True),
        Column("collective", Name, "as recorded", key=True),
        Column("dtype", Name, "element type", key=True),
        Column("group_size", pl.Int32(), "ranks in the group"),
        Column("n_ranks", pl.Int32(), "ranks whose traces hold it"),
    ),
)


def collectives(parts: Sequence[RankCalls], *, by: By = "exchange") -> pl.DataFrame:
    """Exchanges matched across ranks, in order of time; or summed by rank or by group and kind; or each rank's call.

    Calls on different ranks are one exchange if group and number agree, where every call carries a number (NCCL's
    metadata); otherwise by their order in the step, or in the recording. `status` says where ranks disagree, `missing`
    who lacks it.

    The last to come waits for nobody: the shortest duration on any rank is the transfer, what a rank's call takes
    longer is its wait. Both hold whatever the clocks. `start_ns` and `end_ns` are on the median rank's clock, all
    others being put right as `clock-offsets` says. Where ranks' traces are missing, waits are lower bounds.

    `size_bytes` is that of the whole: what all gather, what is to be scattered, else what goes in or comes out; of an
    all-to-all the ranks' mean. Bandwidths are of the transfer alone.

    Units: ns, bytes, bytes/s.
    Source: bus bandwidth as NCCL's tests define it: size / time × 2(n−1)/n for all-reduce, (n−1)/n for all-gather,
    reduce-scatter, all-to-all, gather and scatter, 1 for others. Transfer as the shortest duration over ranks, as in
    TraceLens.
    Raises MissingTable (no ranks), UnknownName (by).
    """
    if by not in {"exchange", "rank", "group", "call"}:
        raise UnknownName("grouping of collectives", by, ("exchange", "rank", "group", "call"))
    job = job_of(parts)
    calls = _calls(job)
    if by == "rank":
        return _by_rank(job, calls)
    exchanges = _exchanges(job, calls)
    if by == "group":
        return _by_group(exchanges)
    return _by_call(job, calls, exchanges) if by == "call" else _declared(exchanges)


def _calls(job: Job) -> pl.DataFrame:
    """For each call its exchange, duration, transfer and wait, and true times; null where one rank alone has it."""
    transfer = transfers_of(job)
    length = job.end - job.start
    clocks = clocks_of(job)
    start, end = clocks.true(job.rank, job.start), clocks.true(job.rank, job.end)
    first = start.min()
    own = transfer[job.exchange]
    return pl.DataFrame({
        "rank": np.array(job.ranks, np.int32)[job.rank],
        "exchange": job.exchange,
        "start_ns": np.rint(start - first).astype(np.int64),
        "end_ns": np.rint(end - first).astype(np.int64),
        "total_ns": length,
        "transfer_ns": pl.Series(own).fill_nan(None).cast(pl.Int64),
        "wait_ns": pl.Series(length - own).fill_nan(None).cast(pl.Int64),
    })  # fmt: skip


def _exchanges(job: Job, calls: pl.DataFrame) -> pl.DataFrame:
    times = calls.group_by("exchange").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("total_ns").sum(),
        pl.col("transfer_ns").first(),
        wait_ns=pl.when(pl.col("wait_ns").count() > 0).then(pl.col("wait_ns").sum()),
        max_wait_ns=pl.col("wait_ns").max(),
        last_rank=pl.when(pl.len() > 1).then(pl.col("rank").sort_by("wait_ns").first()),
    )
    frame = job.exchanges.with_row_index("exchange").with_columns(pl.col("exchange").cast(pl.Int64))
    frame = frame.join(times, on="exchange", how="left", maintain_order="left")
    frame = frame.rename({"group": "index"}).join(_groups(job), on="index", how="left", maintain_order="left")
    frame = frame.with_columns(
        pl.col("kind").cast(pl.String), algorithm_bytes_per_s=algorithm_bandwidth(), bus_bytes_per_s=bus_bandwidth()
    )
    lacking = frame.filter(pl.col("n_ranks") < pl.col("n_expected"))["exchange"].to_list()
    missing = pl.DataFrame(
        {"exchange": lacking, "missing": missing_ranks(job, lacking)},
        schema={"exchange": pl.Int64(), "missing": pl.String()},
    )
    return frame.join(missing, on="exchange", how="left", maintain_order="left")


def _groups(job: Job) -> pl.DataFrame:
    labels = [label for label, _ in parallelism_of(job)]
    return pl.DataFrame(
        {
            "index": np.arange(len(job.groups)),
            "group": [group.name for group in job.groups],
            "parallelism": labels,
            "group_size": [group.size for group in job.groups],
        },
        schema={
            "index": pl.Int32(),
            "group": pl.String(),
            "parallelism": pl.Enum(PARALLELISMS),
            "group_size": pl.Int32(),
        },
    )


def _sums(*more: pl.Expr) -> list[pl.Expr]:
    known = pl.col("size_bytes").null_count() == 0
    return [
        pl.len().cast(pl.Int64).alias("exchanges"),
        (pl.col("status") != "matched").sum().cast(pl.Int64).alias("unmatched"),
        pl.when(known).then(pl.col("size_bytes").sum()).alias("size_bytes"),
        pl.col("total_ns", "transfer_ns").sum(),
        pl.when(pl.col("wait_ns").count() > 0).then(pl.col("wait_ns").sum()).alias("wait_ns"),
        *more,
    ]


def _by_group(exchanges: pl.DataFrame) -> pl.DataFrame:
    """By group, kind and element type; bandwidths of those exchanges whose size and transfer are known."""
    keys = ["group", "parallelism", "kind", "dtype", "group_size"]
    timed = pl.col("size_bytes").is_not_null() & pl.col("transfer_ns").is_not_null()
    frame = exchanges.group_by("index", *keys, maintain_order=True).agg(
        *_sums(
            pl.col("max_wait_ns").max(),
            pl.col("size_bytes").filter(timed).sum().alias("timed_bytes"),
            pl.col("transfer_ns").filter(timed).sum().alias("timed_ns"),
        )
    )
    frame = frame.with_columns(
        algorithm_bytes_per_s=algorithm_bandwidth("timed_bytes", "timed_ns"),
        bus_bytes_per_s=bus_bandwidth("timed_bytes", "timed_ns"),
    )
    return _declared(frame.sort("total_ns", descending=True, maintain_order=True))


def _by_rank(job: Job, calls: pl.DataFrame) -> pl.DataFrame:
    exchanges = job.exchanges.select("size_bytes", "status").with_row_index("exchange")
    rows = calls.with_columns(pl.col("exchange").cast(pl.UInt32)).join(exchanges, on="exchange", how="left")
    least = pl.col("wait_ns") == pl.col("wait_ns").min().over("exchange")
    rows = rows.with_columns(last=least & pl.col("transfer_ns").is_not_null())
    frame = rows.group_by("rank").agg(
        *_sums(pl.col("wait_ns").max().alias("max_wait_ns"), pl.col("last").sum().cast(pl.Int64).alias("came_last"))
    )
    return _declared(frame.sort("rank"))


def _by_call(job: Job, calls: pl.DataFrame, exchanges: pl.DataFrame) -> pl.DataFrame:
    del job
    told = ("group", "parallelism", "kind", "collective", "dtype", "seq", "step", "status", "group_size", "n_ranks")
    facts = exchanges.select("exchange", *told, "size_bytes")
    return _declared(calls.join(facts, on="exchange", how="left", maintain_order="left").sort("exchange", "rank"))


def _declared(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with the columns that it has of the declared ones, in their order."""
    full = COLLECTIVES_OF_RANKS.conform(frame)
    return full.select(name for name in full.columns if name in frame.columns)


ANALYSIS = Analysis(
    name="collectives",
    doc="Exchanges matched across ranks: size, bandwidth, transfer, waits, who came last, what does not match.",
    inputs=(),
    output=COLLECTIVES_OF_RANKS,
    run=collectives,
    scope="ranks",
)
