"""Who makes the others wait: ranks that come late by their own doing, links that are slow; why, at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.ranks.causes import CAUSES, NETWORK, PHASES, cause_of
from stepscope.analyses.ranks.clocks import Clocks, clocks_of
from stepscope.analyses.ranks.grouped_medians import segments
from stepscope.analyses.ranks.groups import listed
from stepscope.analyses.ranks.lateness import Blocks, Lateness, blocks_of, lateness_of
from stepscope.analyses.ranks.links import SlowLink, slow_links
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.analyses.ranks.outliers import PATTERNS, Found, is_outlier, stand_out
from stepscope.analyses.ranks.parallel_groups import Roles, roles_of
from stepscope.analyses.ranks.replay import Change, job_times
from stepscope.core.errors import MissingTable
from stepscope.core.schema import Column, Table
from stepscope.core.units import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analyses.ranks.calls import RankCalls

__all__ = ["ANALYSIS", "STRAGGLERS", "Evidence", "straggler_evidence", "stragglers"]

STRAGGLERS = Table(
    "stragglers",
    "who makes the other ranks wait",
    (
        Column("rank", pl.Int32(), "the rank to blame; null: one of the group's, which cannot be told", key=True),
        Column("kind", pl.Enum(("slow rank", "slow link")), "it comes late, or exchanges with it take long", key=True),
        Column("cause", pl.Enum(CAUSES), "what makes it late"),
        Column("lateness_ns", pl.Float64(), "how much later than the median rank it comes, all together", "ns"),
        Column("blame_ns", pl.Float64(), "by how much sooner the job were done without it", "ns"),
        Column("confidence", pl.Float64(), "1 − chance that any of so many ranks looks as bad by accident", "ratio"),
        Column("pattern", pl.Enum(PATTERNS), "always, since some time, for a while, every n steps, now and then"),
        Column("evidence", pl.String(), "why that cause"),
        Column("phase", pl.Enum(PHASES), "in which part of the step most of it arises"),
        Column("since_step", pl.Int32(), "number of the step in which it begins"),
        Column("until_step", pl.Int32(), "number of the step in which it ends"),
        Column("since_ns", pl.Int64(), "when it begins, from the first exchange of the job", "ns"),
        Column("until_ns", pl.Int64(), "when it ends", "ns"),
        Column("period", pl.Int32(), "of a periodic one: steps from one time to the next"),
        Column("mean_late_ns", pl.Float64(), "of that, on average of an exchange while the pattern holds", "ns"),
        Column("share_ratio", pl.Float64(), "that part of the recording", "ratio"),
        Column("step_ns", pl.Float64(), "mean time of a step", "ns"),
        Column("step_without_ns", pl.Float64(), "what it would be without it", "ns"),
        Column("exchanges", pl.Int64(), "exchanges compared"),
        Column("peer", pl.Int32(), "of a slow link between two: the other end", key=True),
        Column("group", pl.String(), "of a slow link: ranks that exchange over it", key=True),
        Column("slower_ns", pl.Float64(), "of a slow link: how much longer transfers took, all together", "ns"),
    ),
)

#: Where fewer than 8 ranks do the same work, it is not known how far apart healthy ones are: then what counts is how
#: much it costs, or that it is far beyond all others.
_FEW_SHARE = 0.03
_MOST_TRIED = 32


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of who is late in a job.

    `job`, `clocks` and `lateness` are what it follows from; `by_rank` has a row per rank: `rank`, `role`, `exchanges`,
    `lateness_ns` (signed; of healthy ranks it is near 0), `wait_ns` (time in exchanges in which others were waited
    for); `stragglers` a STRAGGLERS table of those to blame, worst first. `recorded_ns` is the job's time, from its
    first arrival to its last end.
    """

    job: Job
    clocks: Clocks
    lateness: Lateness
    by_rank: pl.DataFrame
    stragglers: pl.DataFrame
    recorded_ns: float


def straggler_evidence(parts: Sequence[RankCalls], *, min_share: float = 0.001) -> Evidence:
    """Who is late in a job, how sure, what it costs and why. Units: ns.

    `parts` is what `rank_calls` makes of each rank's trace, in any order. `min_share` is the least part of the
    recording that a straggler costs. Raises MissingTable (fewer than two ranks, or they share no exchange).
    """
    job = job_of(parts)
    if len(job.ranks) < 2 or not (job.exchanges["n_ranks"] > 1).any():
        hint = "name the traces of all ranks; show collectives says which exchanges match"
        raise MissingTable("exchanges that two ranks share", needed_by="stragglers", hint=hint)
    clocks = clocks_of(job)
    roles = roles_of(job)
    lateness = lateness_of(job, roles)
    blocks = blocks_of(job)
    values = blocks.sums(job.rank, lateness.excess, blocks.of_exchange[job.exchange], len(job.ranks))
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


@dataclass(frozen=True, slots=True)
class _Context:
    job: Job
    clocks: Clocks
    roles: Roles
    lateness: Lateness
    blocks: Blocks
    recorded: float
    late_ns: list[float]  # of each rank


def _blame(job: Job, clocks: Clocks, changes: Sequence[Change], min_share: float) -> tuple[float, list[float]]:
    """The job's time, and what each change saves; of one that worse ones hide, what it saves once those are gone."""
    recorded, others = job_times(job, clocks, changes)
    saved = [recorded - other for other in others]
    hidden = [i for i, much in enumerate(saved) if much < min_share * recorded]
    seen = [change for i, change in enumerate(changes) if i not in hidden]
    if not hidden or not seen:
        return recorded, saved
    gone = seen[0]
    for change in seen[1:]:
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
    return Change(none.astype(np.int64), none, link.exchanges, link.excess)


def _beyond(
    found: Found, values: np.ndarray[Any, np.dtype[np.float64]], role: np.ndarray[Any, Any], share: float
) -> bool:
    """Whether a rank of few is clearly apart from the others, or costs much; of many that is tested already."""
    if not np.isnan(found.apart):
        return True
    if share >= _FEW_SHARE:
        return True
    alike = np.flatnonzero(role == role[found.series])
    means = np.nanmean(values[np.ix_(alike, found.blocks)], axis=1)
    return is_outlier(float(means[alike == found.series][0]), means[alike != found.series])


def _rank_row(context: _Context, found: Found, saved: float) -> dict[str, Any]:
    job, lateness = context.job, context.lateness
    rank = job.rank
    every = np.flatnonzero((rank == found.series) & np.isfinite(lateness.excess))
    rows = every[np.isin(context.blocks.of_exchange[job.exchange[every]], found.blocks)]
    cause = cause_of(job, context.roles, lateness, found.series, rows)
    return {
        "rank": job.ranks[found.series],
        "kind": "slow rank",
        "cause": cause.name,
        "phase": cause.phase,
        "exchanges": every.size,
        "lateness_ns": context.late_ns[found.series],
        "mean_late_ns": float(lateness.excess[rows].mean()),
        "evidence": cause.evidence,
        **_when(context, found, job.exchange[rows]),
        **_costs(context, found, saved),
    }


def _link_row(context: _Context, link: SlowLink, saved: float) -> dict[str, Any]:
    job = context.job
    ranks = sorted({r for g in link.groups.tolist() for r in job.groups[g].ranks})
    groups = "; ".join(listed(job.groups[g].ranks) for g in link.groups.tolist()[:4])
    usual = float(context_usual(job, link))
    return {
        "rank": None if link.rank is None else job.ranks[link.rank],
        "kind": "slow link",
        "peer": None if link.peer is None else job.ranks[link.peer],
        "group": groups if link.groups.size <= 4 else listed(ranks),
        "cause": NETWORK,
        "exchanges": link.exchanges.size,
        "lateness_ns": None if link.rank is None else context.late_ns[link.rank],
        "slower_ns": float(link.excess.sum()),
        "evidence": f"transfers take {percent(float(link.excess.sum()) / usual)} longer than those of other groups",
        **_when(context, link.found, link.exchanges),
        **_costs(context, link.found, saved),
    }


def context_usual(job: Job, link: SlowLink) -> float:
    """What the transfers of a slow link would take together, were they like the others'."""
    length = (job.end - job.start).astype(np.float64)
    shortest = -job.by_exchange.largest(-length)
    return max(float(shortest[link.exchanges].sum() - link.excess.sum()), 1.0)


def _when(context: _Context, found: Found, exchanges: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    job, clocks = context.job, context.clocks
    rank = job.rank
    start, end = (clocks.true(rank, job.calls[c].to_numpy()) for c in ("start_ns", "end_ns"))
    within = np.zeros(job.exchanges.height, bool)
    within[exchanges] = np.isin(context.blocks.of_exchange[exchanges], found.blocks)
    rows = within[job.exchange]
    steps = job.exchanges["step"].filter(pl.Series(within)).drop_nulls()
    stepped = bool(steps.len()) and job.exchanges["step"].null_count() == 0
    per_block = context.blocks.steps is not None
    return {
        "pattern": found.pattern,
        "period": found.period if per_block else None,
        "since_ns": round(float(start[rows].min() - start.min())),
        "until_ns": round(float(end[rows].max() - start.min())),
        "since_step": int(steps.to_numpy().min()) if stepped else None,
        "until_step": int(steps.to_numpy().max()) if stepped else None,
    }


def _costs(context: _Context, found: Found, saved: float) -> dict[str, Any]:
    step = _step_ns(context.job)
    ratio = saved / context.recorded
    return {
        "blame_ns": saved,
        "share_ratio": ratio,
        "step_ns": step,
        "step_without_ns": None if step is None else step * (1.0 - ratio),
        "confidence": 1.0 - found.p_value,
    }


def _step_ns(job: Job) -> float | None:
    lengths = [part.steps["dur_ns"] for part in job.parts if part.steps is not None and part.steps.height]
    return float(pl.concat(lengths).to_numpy().mean()) if lengths else None


def _by_rank(job: Job, roles: Roles, lateness: Lateness) -> pl.DataFrame:
    rank, exchange = job.rank, job.exchange
    length = (job.end - job.start).astype(np.float64)
    transfer = -job.by_exchange.largest(-length)
    n = len(job.ranks)
    known = np.isfinite(lateness.excess)
    late = np.bincount(rank[known], lateness.excess[known], minlength=n).astype(np.float64)
    # The mean of arrivals lies behind their middle where some are very late; what counts is the median rank.
    alike = segments(roles.of_rank)
    late -= alike.spread_out(alike.median(late))
    return pl.DataFrame({
        "rank": pl.Series(job.ranks, dtype=pl.Int32),
        "role": roles.of_rank,
        "exchanges": np.bincount(rank, minlength=n),
        "lateness_ns": late,
        "wait_ns": np.bincount(rank, length - transfer[exchange], minlength=n),
    })  # fmt: skip


def stragglers(parts: Sequence[RankCalls], *, min_share: float = 0.001) -> pl.DataFrame:
    """Ranks that make the others wait and links that are slow, worst first; no rows if none is to blame.

    What counts is how long a rank works from one exchange to its arrival at the next, on its own clock, against the
    median of the others that do the same work. So a clock that is off is not taken for lateness, nor a rank that waited
    for another for a late one. `lateness_ns` is the sum of that over the recording, also of exchanges to which it came
    in time, less that of the median rank; arrivals at exchanges that run beside the work count from one to the next.

    A rank is named if its lateness, summed by step, cannot be chance: normal and exponential scores over the whole
    recording, over windows and over periods, with neighbouring steps being alike taken into account; `confidence` is 1
    minus the probability that any rank of a healthy job looks like that. It must be an outlier among the ranks as well,
    as healthy ones differ too; of fewer than 8, which hardly tell how much, it may cost 3 % of the time instead. And it
    must cost at least `min_share` of the recording.

    `blame_ns` is how much sooner the job ends in a replay in which the rank's work takes as long as the others', all
    else being as recorded: what is left once the next-slowest ranks set the pace. Of a rank that a worse one hides it
    is what it costs once that is gone.

    A link is slow if exchanges over it take longer than those of other groups like it, once all have come. It needs
    three such groups. A rank is named if all its groups are slow, and several are.

    `cause` is what the rank did in the time that the others did not need: reading data; computing (`compute`: more or
    longer kernels; `clock`: everything slower alike); neither, the host being late (`host`; on CPUs also if everything
    is slower alike, as cores are shared); `network` is that of a slow link.

    Units: ns, ratio.
    Source: what-if by replay after Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis,
    OSDI 2025; normal scores after van der Waerden, exponential scores after Savage; family-wise by Bonferroni.
    Raises MissingTable (fewer than two ranks, or they share no exchange).
    """
    return straggler_evidence(parts, min_share=min_share).stragglers


ANALYSIS = Analysis(
    name="stragglers",
    doc="Which rank makes the others wait, or which link is slow: since when, why, what it costs, how sure.",
    inputs=(),
    output=STRAGGLERS,
    run=stragglers,
    scope="ranks",
)
