"""Collectives matched across ranks: how large, how fast, and who waited how long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.clocks import clocks_of
from stepscope.analyses.ranks.lateness import lateness_of, transfers_of
from stepscope.analyses.ranks.matching import STATUSES, Job, job_of, missing_ranks
from stepscope.analyses.ranks.parallel_groups import PARALLELISMS, parallelism_of, roles_of
from stepscope.core.collectives import bus_factor
from stepscope.core.table import Column, Name, Table


def algorithm_bandwidth(size: str = "size_bytes", time: str = "transfer_ns") -> pl.Expr:
    """Size by time, in bytes/s; null where either is unknown or no time passed."""
    return pl.when((pl.col(time) > 0) & (pl.col(size) > 0)).then(pl.col(size) / pl.col(time) * 1e9)


def bus_bandwidth(size: str = "size_bytes", time: str = "transfer_ns", *, n: str = "group_size") -> pl.Expr:
    """Algorithm bandwidth times what each of n ranks has to send of the whole, by `kind`. Units: bytes/s.

    Source: nccl-tests (see `bus_factor`). Null for a barrier, and for a group of one.
    """
    return algorithm_bandwidth(size, time) * bus_factor(pl.col("kind").cast(pl.String), pl.col(n))


By = Literal["exchange", "rank", "step", "group", "call"]
COLLECTIVES_OF_RANKS = Table(
    "collectives",
    "collectives matched across ranks",
    (
        Column("rank", pl.Int32(), "rank of the process in its job (by rank, step, call)", key=True),
        Column("exchange", pl.Int64(), "its number, in order of time (by exchange, call)", key=True),
        Column("group", pl.String(), "process group, or its ranks if it has no name", key=True),
        Column(
            "parallelism", pl.Enum(PARALLELISMS), "what the group is for; show parallel-groups gives the rule", key=True
        ),
        Column("kind", pl.String(), "kind of collective", key=True),
        Column("exchanges", pl.Int64(), "number of collectives (by rank, step, group)"),
        Column("unmatched", pl.Int64(), "of them, those that do not match (by rank, step, group)"),
        Column(
            "size_bytes", pl.Int64(), "size of the whole; summed by rank, step, group; null if one is unknown", "bytes"
        ),
        Column(
            "transfer_ns", pl.Int64(), "time once all had arrived: the shortest on any rank; null for one rank", "ns"
        ),
        Column("bus_bytes_per_s", pl.Float64(), "the same times the part that each rank sends", "bytes/s"),
        Column("wait_ns", pl.Int64(), "time waited for other ranks, by this rank or all together", "ns"),
        Column("last_rank", pl.Int32(), "the rank that arrived last, as it waited least"),
        Column("came_last", pl.Int64(), "how often this rank arrived last (by rank, step)"),
        Column(
            "late_ns",
            pl.Int64(),
            "by how much its own work made it late; below 0: early (by step, call)",
            "ns",
        ),
        Column("status", pl.Enum(STATUSES), "whether it is the same on all ranks"),
        Column("missing", pl.String(), "ranks with a trace that lack it"),
        Column("step", pl.Int32(), "number of the step that queued it", key=True),
        Column("max_wait_ns", pl.Int64(), "longest wait of a rank", "ns"),
        Column("algorithm_bytes_per_s", pl.Float64(), "size over transfer time", "bytes/s"),
        Column("total_ns", pl.Int64(), "summed time of the rank's calls, or of all ranks'", "ns"),
        Column(
            "start_ns", pl.Int64(), "when the first rank arrived, from the job's first collective, in true time", "ns"
        ),
        Column("end_ns", pl.Int64(), "when it ended on the last", "ns"),
        Column("ts_ns", pl.Int64(), "when the rank arrived, on the clock of its trace (by call)", "ns"),
        Column("seq", pl.Int64(), "its number within the group, if recorded", key=True),
        Column("collective", Name, "name as recorded", key=True),
        Column("dtype", Name, "element type", key=True),
        Column("group_size", pl.Int32(), "ranks in the group"),
        Column("n_ranks", pl.Int32(), "ranks whose traces contain it"),
    ),
)


def collectives(parts: Sequence[RankCalls], *, by: By = "exchange") -> pl.DataFrame:
    """One row per collective, rank, step and rank, group and kind, or per rank's call; matched across ranks.

    Calls on different ranks are the same collective if group and number agree, if every call has a number (NCCL's
    metadata); otherwise they are matched by their order in the step, or in the recording. `status` says where ranks
    disagree, `missing` which ranks lack it.

    The last rank to arrive waits for nobody. So the shortest duration on any rank is the transfer, and what a rank's
    call takes longer is its wait, whatever the clocks. `start_ns` and `end_ns` are on the median rank's clock; other
    clocks are corrected as in `clock-offsets`. If traces of ranks are missing, waits are lower bounds.

    `late_ns` is how much longer the rank worked since its previous collective than the median of its peers, as in
    `stragglers`: a rank that others delayed is not late.

    `size_bytes` is all that is gathered or scattered, else what goes in or out; for an all-to-all the ranks' mean.
    Bandwidths are those of the transfer alone.

    Units: ns, bytes, bytes/s.
    Source: bus bandwidth as NCCL's tests define it: size / time × 2(n−1)/n for all-reduce, (n−1)/n for all-gather,
    reduce-scatter, all-to-all, gather and scatter, 1 for others. Transfer as the shortest duration over ranks, as in
    TraceLens.
    Raises MissingTable (no ranks), UnknownName (by).
    """
    job = job_of(parts)
    calls = _calls(job)
    if by == "rank":
        return _by_rank(job, calls)
    if by in ("step", "call"):
        late = np.rint(lateness_of(job, roles_of(job)).excess)
        calls = calls.with_columns(late_ns=pl.Series(late).fill_nan(None).cast(pl.Int64))
    if by == "step":
        known = pl.when(pl.col("late_ns").count() > 0).then(pl.col("late_ns").sum())
        return _by_rank(job, calls, known.alias("late_ns"), keys=("step", "rank"))
    matched = _matched(job, calls)
    if by == "group":
        return _by_group(matched)
    return _by_call(calls, matched) if by == "call" else _declared(matched)


def _calls(job: Job) -> pl.DataFrame:
    """Per call its collective, duration, true times, transfer and wait; both null if one rank alone has it."""
    transfer = transfers_of(job)
    length = job.end - job.start
    clocks = clocks_of(job)
    start, end = clocks.true(job.rank, job.start), clocks.true(job.rank, job.end)
    first = start.min()
    own = transfer[job.collective]
    return pl.DataFrame({
        "rank": np.array(job.ranks, np.int32)[job.rank],
        "exchange": job.collective,
        "start_ns": np.rint(start - first).astype(np.int64),
        "end_ns": np.rint(end - first).astype(np.int64),
        "ts_ns": job.start - np.array(job.shifts, np.int64)[job.rank],
        "total_ns": length,
        "transfer_ns": pl.Series(own).fill_nan(None).cast(pl.Int64),
        "wait_ns": pl.Series(length - own).fill_nan(None).cast(pl.Int64),
    })  # fmt: skip


def _matched(job: Job, calls: pl.DataFrame) -> pl.DataFrame:
    times = calls.group_by("exchange").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("total_ns").sum(),
        pl.col("transfer_ns").first(),
        wait_ns=pl.when(pl.col("wait_ns").count() > 0).then(pl.col("wait_ns").sum()),
        max_wait_ns=pl.col("wait_ns").max(),
        last_rank=pl.when(pl.len() > 1).then(pl.col("rank").sort_by("wait_ns").first()),
    )
    frame = job.collectives.with_row_index("exchange").with_columns(pl.col("exchange").cast(pl.Int64))
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


def _by_group(matched: pl.DataFrame) -> pl.DataFrame:
    """By group, kind and element type; bandwidths of the collectives whose size and transfer are known."""
    keys = ["group", "parallelism", "kind", "dtype", "group_size"]
    timed = pl.col("size_bytes").is_not_null() & pl.col("transfer_ns").is_not_null()
    frame = matched.group_by("index", *keys, maintain_order=True).agg(
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


def _by_rank(job: Job, calls: pl.DataFrame, *more: pl.Expr, keys: Sequence[str] = ("rank",)) -> pl.DataFrame:
    matched = job.collectives.select("step", "size_bytes", "status").with_row_index("exchange")
    rows = calls.with_columns(pl.col("exchange").cast(pl.UInt32)).join(matched, on="exchange", how="left")
    least = pl.col("wait_ns") == pl.col("wait_ns").min().over("exchange")
    rows = rows.with_columns(last=least & pl.col("transfer_ns").is_not_null())
    last = pl.col("last").sum().cast(pl.Int64).alias("came_last")
    frame = rows.group_by(keys).agg(*_sums(pl.col("wait_ns").max().alias("max_wait_ns"), last, *more))
    return _declared(frame.sort(keys, nulls_last=True))


def _by_call(calls: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    copied = ("group", "parallelism", "kind", "collective", "dtype", "seq", "step", "status", "group_size", "n_ranks")
    facts = matched.select("exchange", *copied, "size_bytes")
    return _declared(calls.join(facts, on="exchange", how="left", maintain_order="left").sort("exchange", "rank"))


def _declared(frame: pl.DataFrame) -> pl.DataFrame:
    """The declared columns that the frame has, in their order."""
    full = COLLECTIVES_OF_RANKS.conform(frame)
    return full.select(name for name in full.columns if name in frame.columns)


ANALYSIS = analysis_of(
    collectives,
    COLLECTIVES_OF_RANKS,
    "Collectives matched across ranks: size, bandwidth, transfer, waits, who arrived last, what does not match.",
    scope="ranks",
)
