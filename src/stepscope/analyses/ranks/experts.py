"""How evenly experts of a model (MoE) load the ranks that they are spread over, and what unevenness costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.core.errors import MissingTable
from stepscope.core.table import Column, Table

By = Literal["layer", "rank"]
EXPERTS = Table(
    "experts",
    "how evenly the experts of a model load the ranks",
    (
        Column("group", pl.String(), "ranks that the experts are spread over, by the name of their group", key=True),
        Column("layer", pl.Int64(), "number of the uneven layer in a step, or in the recording (by layer)", key=True),
        Column("rank", pl.Int32(), "the rank (by rank); by layer: the one that gets most", key=True),
        Column("n", pl.Int64(), "how often tokens were sent to experts"),
        Column("received_bytes", pl.Float64(), "tokens that the rank gets each time, as bytes; by layer: the mean of"
               " all ranks", "bytes"),
        Column("most_bytes", pl.Float64(), "what the rank gets that gets most, each time (by layer)", "bytes"),
        Column("load_ratio", pl.Float64(), "what this rank gets, over the mean of all ranks; 1 is even", "ratio"),
        Column("imbalance_ratio", pl.Float64(), "what the rank with most gets each time, over the mean; 1 is even"
               " (by layer)", "ratio"),
        Column("wait_ns", pl.Float64(), "wait for other ranks when results are sent back, each time; by layer: the"
               " mean of all ranks", "ns"),
        Column("total_wait_ns", pl.Float64(), "the same of all times together", "ns"),
    ),
)  # fmt: skip


def experts(parts: Sequence[RankCalls], *, by: By = "layer") -> pl.DataFrame:
    """One row per layer of experts, the costliest first, or per rank: what ranks get, and how long they wait.

    The main columns are `imbalance_ratio` and `wait_ns`, or by rank `load_ratio`. Tokens go to the ranks of their
    experts in an all-to-all, and their results come back in the next one of the same group. The first of the two is the
    one whose ranks receive less evenly than they send. What a rank receives is its number of tokens, in bytes. Until
    the rank with most tokens has computed them, all others wait in the second: that is what unevenness costs.

    Experts of one rank share its messages, so one cannot say which of them gets most. Layers in which all ranks get the
    same have no row, and no number.

    Units: ns, bytes; ratios.
    Source: imbalance as the largest load over the mean one; waits as in `collectives`.
    Raises MissingTable (no all-to-all whose ranks receive different amounts), UnknownName (by).
    """
    job = job_of(parts)
    calls = _to_experts(job)
    if calls.is_empty():
        hint = "they are those of expert parallelism; record the shapes of operators, or metadata of collectives"
        what = "all-to-alls with sizes in which ranks receive different amounts"
        raise MissingTable(what, needed_by="experts", hint=hint)
    keys = ["group", "layer"] if by == "layer" else ["group", "rank"]
    of_rank = calls.group_by("group", "layer", "rank", maintain_order=True).agg(pl.col("out_bytes").sum())
    busiest = of_rank.sort("out_bytes", "rank", descending=[True, False]).unique(["group", "layer"], keep="first")
    frame = calls.group_by(keys, maintain_order=True).agg(
        n=pl.col("exchange").n_unique().cast(pl.Int64),
        received_bytes=pl.col("out_bytes").mean(),
        wait_ns=pl.col("wait_ns").mean(),
        total=pl.col("wait_ns").sum(),
        n_ranks=pl.col("rank").n_unique(),
        uneven=pl.col("most").sum() / pl.col("mean").sum(),
        most=pl.col("most").mean(),
        own=pl.col("out_bytes").sum() / pl.col("mean").sum(),
    )
    if by == "rank":
        frame = frame.with_columns(load_ratio="own", total_wait_ns="total").sort("load_ratio", descending=True)
    else:
        frame = frame.join(busiest.select("group", "layer", "rank"), on=["group", "layer"], how="left")
        frame = frame.with_columns(
            most_bytes="most", imbalance_ratio="uneven", total_wait_ns=pl.col("total") / pl.col("n_ranks")
        ).sort("total_wait_ns", "layer", descending=[True, False], nulls_last=True)
    names = [group.name for group in job.groups]
    named = frame.with_columns(group=pl.Series([names[i] for i in frame["group"]], dtype=pl.String))
    return EXPERTS.conform(named).select(_COLUMNS[by])


_COLUMNS: dict[By, list[str]] = {
    "layer": ["group", "layer", "rank", "n", "imbalance_ratio", "wait_ns", "total_wait_ns", "received_bytes",
              "most_bytes"],
    "rank": ["group", "rank", "n", "load_ratio", "received_bytes", "wait_ns", "total_wait_ns"],
}  # fmt: skip


def _to_experts(job: Job) -> pl.DataFrame:
    """A row per rank of each all-to-all that sends tokens to experts, with the wait in that which sends them back."""
    wait = (job.end - job.start).astype(np.float64) - transfers_of(job)[job.collective]
    ranks = np.array(job.ranks, np.int32)[job.rank]
    calls = job.calls.with_columns(rank=pl.Series(ranks), wait_ns=pl.Series(wait).fill_nan(None))
    calls = calls.filter(pl.col("kind").cast(pl.String) == "alltoall").drop_nulls(["in_bytes", "out_bytes"])
    spread = {name: (pl.col(name).max() / pl.col(name).mean()).fill_nan(1.0) for name in ("in_bytes", "out_bytes")}
    each = calls.group_by("group", "exchange").agg(
        start=pl.col("start_ns").min(),
        step=pl.col("step").first(),
        is_uneven=(spread["out_bytes"] > spread["in_bytes"]) & (pl.len() > 1),
        most=pl.col("out_bytes").max().cast(pl.Float64),
        mean=pl.col("out_bytes").mean(),
    )
    each = each.sort("group", "start").with_columns(
        back=pl.when(~pl.col("is_uneven").shift(-1).over("group")).then(pl.col("exchange").shift(-1).over("group"))
    )
    number = pl.col("start").rank("ordinal").over("group", "step").cast(pl.Int64) - 1
    each = each.filter("is_uneven").with_columns(layer=number)
    rows = calls.select("group", "exchange", "rank", "out_bytes").join(each, on=["group", "exchange"])
    waits = calls.select("rank", "wait_ns", back="exchange")
    return rows.join(waits, on=["back", "rank"], how="left", maintain_order="left").sort("group", "start", "rank")


ANALYSIS = analysis_of(
    experts,
    EXPERTS,
    "How evenly experts load the ranks, by the all-to-alls that bring them tokens, and what unevenness costs.",
    scope="ranks",
)
