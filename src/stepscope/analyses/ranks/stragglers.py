"""Stragglers: ranks that arrive late by their own doing and links that are slow, why, and at what cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.causes import CAUSES, NETWORK, PHASES, cause_of
from stepscope.analyses.ranks.clocks import Clocks, clocks_of
from stepscope.analyses.ranks.grouped_medians import segments
from stepscope.analyses.ranks.groups import listed
from stepscope.analyses.ranks.lateness import Blocks, Lateness, blocks_of, lateness_of
from stepscope.analyses.ranks.links import SlowLink, slow_links
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.analyses.ranks.outliers import PATTERNS, Outlier, is_outlier, stand_out
from stepscope.analyses.ranks.parallel_groups import Roles, roles_of
from stepscope.analyses.ranks.replay import Change, job_times
from stepscope.core.errors import MissingTable
from stepscope.core.table import Column, Table
from stepscope.core.units import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.ranks.calls import RankCalls

STRAGGLERS = Table(
    "stragglers",
    "ranks and links that make other ranks wait",
    (
        Column("rank", pl.Int32(), "the rank to blame; null: one of the group, unknown which", key=True),
        Column("kind", pl.Enum(("slow rank", "slow link")), "it arrives late, or its transfers are slow", key=True),
        Column("cause", pl.Enum(CAUSES), "what makes it late"),
        Column("lateness_ns", pl.Float64(), "by how much later than the median rank it arrives, in total", "ns"),
        Column("blame_ns", pl.Float64(), "by how much sooner the job would end without it", "ns"),
        Column(
            "confidence",
            pl.Float64(),
            "1 − the probability that any of that many ranks looks as bad by chance",
            "ratio",
        ),
        Column("pattern", pl.Enum(PATTERNS), "always, since some time, for a while, every n steps, now and then"),
        Column("evidence", pl.String(), "what points to that cause"),
        Column("phase", pl.Enum(PHASES), "part of the step in which most of it arises"),
        Column("since_step", pl.Int32(), "number of the step in which it begins"),
        Column("until_step", pl.Int32(), "number of the step in which it ends"),
        Column("since_ns", pl.Int64(), "when it begins, from the job's first collective", "ns"),
        Column("until_ns", pl.Int64(), "when it ends", "ns"),
        Column("period", pl.Int32(), "of a periodic one: steps per period"),
        Column("mean_late_ns", pl.Float64(), "mean lateness at a collective while the pattern holds", "ns"),
        Column("share_ratio", pl.Float64(), "blame over the recorded time", "ratio"),
        Column("step_ns", pl.Float64(), "mean time of a step", "ns"),
        Column("step_without_ns", pl.Float64(), "mean time of a step without it", "ns"),
        Column("exchanges", pl.Int64(), "number of collectives compared"),
        Column("peer", pl.Int32(), "for a slow link between two ranks: the other end", key=True),
        Column("group", pl.String(), "for a slow link: ranks that communicate over it", key=True),
        Column("slower_ns", pl.Float64(), "for a slow link: by how much longer transfers took, in total", "ns"),
    ),
)

#: With fewer than 8 ranks of one role it is unknown how much healthy ones differ. Then a straggler must cost at least
#: this share, or be far beyond all others.
_FEW_SHARE = 0.03
_MOST_TRIED = 32


class Evidence(msgspec.Struct, frozen=True):
    """The stragglers of a job and the evidence.

    `by_rank` has one row per rank: `rank`, `role`, `exchanges`, `lateness_ns` (signed; near 0 for healthy ranks) and
    `wait_ns` (time in collectives that it waited for other ranks). `stragglers` is a STRAGGLERS table, worst first.
    `recorded_ns` is the job's time, from its first arrival to its last end.
    """

    job: Job
    clocks: Clocks
    lateness: Lateness
    by_rank: pl.DataFrame
    stragglers: pl.DataFrame
    recorded_ns: float


def straggler_evidence(parts: Sequence[RankCalls], *, min_share: float = 0.001) -> Evidence:
    """The stragglers of a job: how certain, what they cost, and why. Units: ns.

    `parts` is what `rank_calls` makes of each rank's trace, in any order. A straggler costs at least the part
    `min_share` of the recording. Raises MissingTable (fewer than two ranks, or they share no collective).
    """
    job = job_of(parts)
    if len(job.ranks) < 2 or not (job.collectives["n_ranks"] > 1).any():
        hint = "name the traces of all ranks; show collectives lists which collectives match"
        raise MissingTable("collectives that two ranks share", needed_by="stragglers", hint=hint)
    clocks = clocks_of(job)
    roles = roles_of(job)
    lateness = lateness_of(job, roles)
    blocks = blocks_of(job)
    values = blocks.sums(job.rank, lateness.excess, blocks.of_collective[job.collective], len(job.ranks))
    late = [f for f in stand_out(values, roles.of_rank) if f.apart >= 1.0 or np.isnan(f.apart)]
    late = [f for f in late if np.nansum(values[f.series][f.blocks]) > 0][:_MOST_TRIED]
    links = slow_links(job, roles, blocks)[:_MOST_TRIED]
    changes = [_not_late(job, lateness, f.series) for f in late] + [_not_slow(link) for link in links]
    recorded, blame = _blame(job, clocks, changes, min_share) if changes else (_recorded(job, clocks), [])
    by_rank = _by_rank(job, roles, lateness)
    context = _Context(job, clocks, roles, lateness, blocks, recorded, by_rank["lateness_ns"].to_list())
    rows = [
        _rank_row(context, f, saved)
        for f, saved in zip(late, blame, strict=False)
        if saved >= min_share * recorded and _beyond(f, values, roles.of_rank, saved / recorded)
    ]
    rows += [
        _link_row(context, link, saved)
        for link, saved in zip(links, blame[len(late) :], strict=True)
        if saved >= min_share * recorded
    ]
    rows.sort(key=lambda row: -row["blame_ns"])
    frame = pl.DataFrame(rows, schema=dict(STRAGGLERS.dtypes)) if rows else STRAGGLERS.empty()
    return Evidence(job, clocks, lateness, by_rank, frame, recorded)


def without_stragglers(parts: Sequence[RankCalls]) -> float:
    """How long the job would take if no rank made the others wait, in relation to the recording.

    `parts` is what `rank_calls` makes of each rank's trace. Raises MissingTable (fewer than two ranks, or they share no
    collective).
    """
    evidence = straggler_evidence(parts)
    job, slow = evidence.job, evidence.stragglers.filter(pl.col("kind") == "slow rank")["rank"].drop_nulls()
    if slow.is_empty():
        return 1.0
    gone, *more = (_not_late(job, evidence.lateness, job.ranks.index(rank)) for rank in slow.unique())
    for change in more:
        gone = gone.also(change)
    recorded, (without,) = job_times(job, evidence.clocks, [gone])
    return without / recorded if recorded else 1.0


class _Context(msgspec.Struct, frozen=True):
    job: Job
    clocks: Clocks
    roles: Roles
    lateness: Lateness
    blocks: Blocks
    recorded: float
    late_ns: list[float]  # of each rank


def _blame(job: Job, clocks: Clocks, changes: Sequence[Change], min_share: float) -> tuple[float, list[float]]:
    """The job's time, and what each change saves; if worse ones hide it, what it saves once those are gone."""
    recorded, changed = job_times(job, clocks, changes)
    saved = [recorded - other for other in changed]
    hidden = [i for i, much in enumerate(saved) if much < min_share * recorded]
    visible = [change for i, change in enumerate(changes) if i not in hidden]
    if not hidden or not visible:
        return recorded, saved
    gone = visible[0]
    for change in visible[1:]:
        gone = gone.also(change)
    _, (without, *rest) = job_times(job, clocks, [gone, *(gone.also(changes[i]) for i in hidden)])
    for i, other in zip(hidden, rest, strict=True):
        saved[i] = without - other
    return recorded, saved


def _recorded(job: Job, clocks: Clocks) -> float:
    rank = job.rank
    start, end = (clocks.true(rank, job.calls[c].to_numpy()) for c in ("start_ns", "end_ns"))
    return float(end.max() - start.min())


def _not_late(job: Job, lateness: Lateness, rank: int) -> Change:
    rows = np.flatnonzero((job.rank == rank) & np.isfinite(lateness.excess))
    none = np.empty(0)
    return Change(rows, lateness.excess[rows], none.astype(np.int64), none)


def _not_slow(link: SlowLink) -> Change:
    none = np.empty(0)
    return Change(none.astype(np.int64), none, link.collectives, link.excess)


def _beyond(
    outlier: Outlier, values: np.ndarray[Any, np.dtype[np.float64]], role: np.ndarray[Any, Any], share: float
) -> bool:
    """Whether a rank is clearly apart from the others, or costs much; `apart` tests that only for many ranks."""
    if not np.isnan(outlier.apart):
        return True
    if share >= _FEW_SHARE:
        return True
    alike = np.flatnonzero(role == role[outlier.series])
    means = np.nanmean(values[np.ix_(alike, outlier.blocks)], axis=1)
    return is_outlier(float(means[alike == outlier.series][0]), means[alike != outlier.series])


def _rank_row(context: _Context, outlier: Outlier, saved: float) -> dict[str, Any]:
    job, lateness = context.job, context.lateness
    rank = job.rank
    every = np.flatnonzero((rank == outlier.series) & np.isfinite(lateness.excess))
    rows = every[np.isin(context.blocks.of_collective[job.collective[every]], outlier.blocks)]
    cause = cause_of(job, context.roles, lateness, outlier.series, rows)
    return {
        "rank": job.ranks[outlier.series],
        "kind": "slow rank",
        "cause": cause.name,
        "phase": cause.phase,
        "exchanges": every.size,
        "lateness_ns": context.late_ns[outlier.series],
        "mean_late_ns": float(lateness.excess[rows].mean()),
        "evidence": cause.evidence,
        **_when(context, outlier, job.collective[rows]),
        **_costs(context, outlier, saved),
    }


def _link_row(context: _Context, link: SlowLink, saved: float) -> dict[str, Any]:
    job = context.job
    ranks = sorted({r for g in link.groups.tolist() for r in job.groups[g].ranks})
    groups = "; ".join(listed(job.groups[g].ranks) for g in link.groups.tolist()[:4])
    usual = float(_usual_ns(job, link))
    return {
        "rank": None if link.rank is None else job.ranks[link.rank],
        "kind": "slow link",
        "peer": None if link.peer is None else job.ranks[link.peer],
        "group": groups if link.groups.size <= 4 else listed(ranks),
        "cause": NETWORK,
        "exchanges": link.collectives.size,
        "lateness_ns": None if link.rank is None else context.late_ns[link.rank],
        "slower_ns": float(link.excess.sum()),
        "evidence": f"transfers take {percent(float(link.excess.sum()) / usual)} longer than those of other groups",
        **_when(context, link.outlier, link.collectives),
        **_costs(context, link.outlier, saved),
    }


def _usual_ns(job: Job, link: SlowLink) -> float:
    """What the transfers of a slow link would take in total if they were like those of other links."""
    length = (job.end - job.start).astype(np.float64)
    shortest = -job.by_collective.largest(-length)
    return max(float(shortest[link.collectives].sum() - link.excess.sum()), 1.0)


def _when(context: _Context, outlier: Outlier, collectives: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    job, clocks = context.job, context.clocks
    rank = job.rank
    start, end = (clocks.true(rank, job.calls[c].to_numpy()) for c in ("start_ns", "end_ns"))
    within = np.zeros(job.collectives.height, bool)
    within[collectives] = np.isin(context.blocks.of_collective[collectives], outlier.blocks)
    rows = within[job.collective]
    steps = job.collectives["step"].filter(pl.Series(within)).drop_nulls()
    stepped = bool(steps.len()) and job.collectives["step"].null_count() == 0
    per_block = context.blocks.steps is not None
    return {
        "pattern": outlier.pattern,
        "period": outlier.period if per_block else None,
        "since_ns": round(float(start[rows].min() - start.min())),
        "until_ns": round(float(end[rows].max() - start.min())),
        "since_step": int(steps.to_numpy().min()) if stepped else None,
        "until_step": int(steps.to_numpy().max()) if stepped else None,
    }


def _costs(context: _Context, outlier: Outlier, saved: float) -> dict[str, Any]:
    step = _step_ns(context.job)
    ratio = saved / context.recorded
    return {
        "blame_ns": saved,
        "share_ratio": ratio,
        "step_ns": step,
        "step_without_ns": None if step is None else step * (1.0 - ratio),
        "confidence": 1.0 - outlier.p_value,
    }


def _step_ns(job: Job) -> float | None:
    lengths = [part.steps["dur_ns"] for part in job.parts if part.steps is not None and part.steps.height]
    return float(pl.concat(lengths).to_numpy().mean()) if lengths else None


def _by_rank(job: Job, roles: Roles, lateness: Lateness) -> pl.DataFrame:
    rank, collective = job.rank, job.collective
    length = (job.end - job.start).astype(np.float64)
    transfer = -job.by_collective.largest(-length)
    n = len(job.ranks)
    known = np.isfinite(lateness.excess)
    late = np.bincount(rank[known], lateness.excess[known], minlength=n).astype(np.float64)
    # Very late arrivals shift sums; the median rank is the reference.
    alike = segments(roles.of_rank)
    late -= alike.spread_out(alike.median(late))
    return pl.DataFrame({
        "rank": pl.Series(job.ranks, dtype=pl.Int32),
        "role": roles.of_rank,
        "exchanges": np.bincount(rank, minlength=n),
        "lateness_ns": late,
        "wait_ns": np.bincount(rank, length - transfer[collective], minlength=n),
    })  # fmt: skip


def stragglers(parts: Sequence[RankCalls], *, min_share: float = 0.001) -> pl.DataFrame:
    """One row per rank that makes others wait and per slow link, worst first; no rows if none is to blame.

    A rank's lateness at a collective is how much longer it worked since the previous one, on its own clock, than the
    median of the other ranks that do the same work. So neither a clock that is off nor a rank that waited for another
    counts as late. `lateness_ns` is the sum over the recording, including collectives at which it arrived early, minus
    that of the median rank. For collectives that overlap the work, the time between arrivals counts.

    A rank is named if its lateness, summed by step, cannot be chance: it tests normal and exponential scores over the
    whole recording, over windows and over periods, corrected for autocorrelation. `confidence` is 1 minus the
    probability that any rank of a healthy job looks like that. It must also be an outlier among the ranks, as healthy
    ones differ too; with fewer than 8 ranks, which hardly show how much, it may cost 3 % of the time instead. And it
    must cost at least `min_share` of the recording.

    `blame_ns` is how much sooner the job ends in a replay in which the rank's work takes as long as the others', and
    all else is as recorded: what remains once the next-slowest ranks set the pace. If a worse rank hides it, it is what
    it costs once that one is gone.

    A link is slow if its transfers take longer than those of similar groups, once all ranks have arrived. At least
    three such groups are needed. A rank is named if it has several groups and all of them are slow.

    `cause` is what the rank did in the extra time: reading data (`data loading`); computing (`compute`: more or longer
    kernels; `clock`: everything slower alike); neither, as the host was late (`host`; on CPUs also if everything is
    slower alike, as cores are shared). Slow links have the cause `network`.

    Units: ns, ratio.
    Source: what-if by replay after Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis,
    OSDI 2025; normal scores after van der Waerden, exponential scores after Savage; family-wise by Bonferroni.
    Raises MissingTable (fewer than two ranks, or they share no collective).
    """
    return straggler_evidence(parts, min_share=min_share).stragglers


ANALYSIS = analysis_of(
    stragglers,
    STRAGGLERS,
    "Which rank makes the others wait, or which link is slow: since when, why, at what cost, how certain.",
    scope="ranks",
)
