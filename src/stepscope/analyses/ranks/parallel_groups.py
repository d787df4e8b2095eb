"""Which ranks do the same work, so that their times can be compared, and which groups play the same part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.ranks.grouped_medians import numbered
from stepscope.analyses.ranks.groups import Group, listed, stride_of
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.core.collectives import POINT_TO_POINT
from stepscope.core.intervals import Ints
from stepscope.core.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analyses.ranks.calls import RankCalls
    from stepscope.analyses.ranks.matching import Job

__all__ = ["ANALYSIS", "PARALLELISMS", "PARALLEL_GROUPS", "Roles", "parallel_groups", "parallelism_of", "roles_of"]


PARALLELISMS = ("TP", "DP", "FSDP", "PP", "EP", "CP", "world", "unknown")
RULES = ("description", "exchanges", "phase", "sizes", "layout", "all ranks", "one rank")
PARALLEL_GROUPS = Table(
    "parallel-groups",
    "the process groups of a job, and what each is for",
    (
        Column("group", pl.String(), "its name, or its ranks if it has none", key=True),
        Column("ranks", pl.String(), "ranks in it, as far as they are known", key=True),
        Column("parallelism", pl.Enum(PARALLELISMS), "what it is for"),
        Column("named_by", pl.Enum(RULES), "what tells that"),
        Column("description", pl.String(), "its creator's own word, where recorded"),
        Column("group_size", pl.Int32(), "ranks in it"),
        Column("n_present", pl.Int32(), "of them, those whose traces are at hand"),
        Column("kinds", pl.String(), "what its ranks exchange, most often first"),
        Column("exchanges", pl.Int64(), "how many"),
        Column("size_bytes", pl.Int64(), "of all its exchanges; null if one is unknown", "bytes"),
    ),
)

_WORDS = (
    ("EP", re.compile(r"(^|[^a-z])(ep|expert|moe)([^a-z]|$)|expert")),
    ("TP", re.compile(r"(^|[^a-z])(tp|mp)([^a-z]|$)|tensor")),
    ("PP", re.compile(r"(^|[^a-z])pp([^a-z]|$)|pipeline")),
    ("CP", re.compile(r"(^|[^a-z])(cp|sp|ulysses)([^a-z]|$)|context|sequence")),
    ("FSDP", re.compile(r"fsdp|shard|zero")),
    ("DP", re.compile(r"(^|[^a-z])(dp|ddp)([^a-z]|$)|data|replicate")),
)
_MOSTLY, _NEARLY_ALL = 0.5, 0.9
_MANY = 16  # all-reduces a step


def parallelism_of(job: Job) -> list[tuple[str, str]]:
    """For each group of the job what it is for, and by which rule that is known (one of RULES).

    In this order: the group's own description where it has one of the usual words (tp, tensor, dp, pipeline …); what it
    exchanges: only messages between two are PP, mostly all-to-all EP, all-gathers with reduce-scatters FSDP;
    all-reduces in the forward pass are TP (gradients are reduced in the backward pass). Then its layout: a group of
    contiguous ranks smaller than the job is TP, as tensor-parallel ranks are numbered next to each other, one with a
    stride DP; a group of all ranks is DP if there is no other, else the world.
    """
    mix = _mix(job)
    several = [i for i, g in enumerate(job.groups) if g.size > 1 and i in mix]
    n_ranks = max(len(job.ranks), *(part.world_size or 0 for part in job.parts))
    return [_named(group, mix.get(i, {}), len(several), n_ranks) for i, group in enumerate(job.groups)]


def _named(group: Group, mix: Mapping[str, float], n_groups: int, n_ranks: int) -> tuple[str, str]:
    text = (group.description or "").lower()
    for label, pattern in _WORDS:
        if pattern.search(text):
            return label, "description"
    if group.size < 2:
        return "unknown", "one rank"
    whole = group.size >= n_ranks
    forward = bool(mix.get("forward allreduce"))
    told = _told_by_exchanges(mix, forward=forward)
    if told is not None:
        return told, "exchanges"
    if (forward or mix.get("alike")) and (not whole or n_groups == 1):
        return "TP", "phase" if forward else "sizes"
    if whole:
        return ("DP" if n_groups == 1 else "world"), "all ranks"
    return {None: "unknown", 1: "TP"}.get(stride_of(group.ranks), "DP"), "layout"


def _told_by_exchanges(mix: Mapping[str, float], *, forward: bool) -> str | None:
    every = mix.get("all", 0.0)
    if not every:
        return None
    if sum(mix.get(kind, 0.0) for kind in POINT_TO_POINT) == every:
        return "PP"
    if mix.get("alltoall", 0.0) > _MOSTLY * every:
        return "EP"
    return "FSDP" if mix.get("allgather") and mix.get("reduce_scatter") and not forward else None


def _mix(job: Job) -> dict[int, dict[str, float]]:
    """For each group how many calls of each kind its ranks made, `all`, and `forward allreduce`: before backward."""
    calls = job.calls.select("group", "kind", "work_ns", "backward_ns", "optimizer_ns")
    found: dict[int, dict[str, float]] = {}
    for group, kind, n in calls.group_by("group", "kind").len().iter_rows():
        mix = found.setdefault(group, {"all": 0.0})
        mix[kind] = float(n)
        mix["all"] += n
    _alike(job, found)
    if calls["backward_ns"].null_count() == calls.height:
        return found
    known = calls.filter((pl.col("kind") == "allreduce") & (pl.col("work_ns") > 0))
    # Forward all-reduces are many: a lone one, of the loss or of a flag, says nothing.
    forward = (pl.col("backward_ns") + pl.col("optimizer_ns") < pl.col("work_ns") / 2).sum()
    phases = known.group_by("group").agg(forward.alias("n"), pl.len().alias("all"), pl.col("backward_ns").sum())
    for group, n, n_all, backward in phases.iter_rows():
        if 4 * n >= n_all and backward:
            found[group]["forward allreduce"] = float(n)
    return found


def _alike(job: Job, found: dict[int, dict[str, float]]) -> None:
    """Mark groups with many all-reduces a step nearly all of one size: activations, as buckets of gradients differ."""
    sizes = job.exchanges.filter((pl.col("kind") == "allreduce") & pl.col("size_bytes").is_not_null())
    counts = (
        sizes.group_by("group", "size_bytes").len().group_by("group").agg(pl.col("len").max(), all=pl.col("len").sum())
    )
    steps = job.exchanges.group_by("group").agg(pl.col("step").n_unique())
    for group, most, every, n_steps in counts.join(steps, on="group").iter_rows():
        if every >= _MANY * max(n_steps, 1) and most >= _NEARLY_ALL * every:
            found[group]["alike"] = float(most)


def parallel_groups(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """The process groups, those with most exchanges first, and what each is for.

    By the first rule that tells, as `named_by` says: `description`, a usual word in the group's own description (tp,
    tensor, dp, data, pp, pipeline, ep, expert, cp, fsdp …); `exchanges`, only messages between two are PP, mostly
    all-to-all EP, all-gathers with reduce-scatters and no all-reduce in the forward pass FSDP; `phase`, all-reduces in
    the forward pass are TP, since gradients are reduced in the backward pass; `sizes`, many all-reduces a step nearly
    all of one size are TP, since activations are of one size; `layout`, contiguous ranks are TP, ranks with a stride
    DP; `all ranks`, a group of all ranks is DP if it is the only one, else the world.

    Units: bytes.
    Source: Megatron-LM numbers ranks so that tensor-parallel ones are neighbours, then data, then pipeline parallel.
    Raises MissingTable (no ranks).
    """
    job = job_of(parts)
    rows = job.exchanges.group_by("group").agg(
        kinds=pl.col("kind").cast(pl.String).value_counts(sort=True).struct.field("kind").str.join(", "),
        exchanges=pl.len().cast(pl.Int64),
        size_bytes=pl.when(pl.col("size_bytes").null_count() == 0).then(pl.col("size_bytes").sum()),
    )
    names = parallelism_of(job)
    frame = pl.DataFrame({
        "index": np.arange(len(job.groups), dtype=np.int32),
        "group": [g.name for g in job.groups],
        "ranks": [listed(g.ranks) for g in job.groups],
        "parallelism": [label for label, _ in names],
        "named_by": [rule for _, rule in names],
        "description": [g.description for g in job.groups],
        "group_size": [g.size for g in job.groups],
        "n_present": [len(g.present) for g in job.groups],
    }, strict=False)  # fmt: skip
    frame = frame.join(rows, left_on="index", right_on="group", how="inner", maintain_order="left")
    return PARALLEL_GROUPS.conform(frame.sort("exchanges", descending=True, maintain_order=True))


ANALYSIS = Analysis(
    name="parallel-groups",
    doc="Process groups and what they are for: tensor, data, pipeline, expert parallelism.",
    inputs=(),
    output=PARALLEL_GROUPS,
    run=parallel_groups,
    scope="ranks",
)


#: Groups with a smaller part of a rank's calls say nothing of what it does in the job.
_MINOR = 0.05


@dataclass(frozen=True, slots=True)
class Roles:
    """For each rank and each group (indices) a number, the same for those that play the same part."""

    of_rank: Ints
    of_group: Ints


def roles_of(job: Job) -> Roles:
    """What part each rank and group plays.

    Groups of one parallelism, size and regular layout play the same part. Ranks do if they take part in such groups
    alike, and stand at the same place in their pipeline: its stages do different work.
    """
    labels = [label for label, _ in parallelism_of(job)]
    size = np.array([group.size for group in job.groups])
    stride = np.array([stride_of(group.ranks) or 0 for group in job.groups])
    of_group = numbered(np.array([PARALLELISMS.index(name) for name in labels]), size, stride)
    n_groups = len(job.groups)
    counts = np.bincount(job.rank * n_groups + job.ints("group"), minlength=len(job.ranks) * n_groups)
    counts = counts.reshape(len(job.ranks), n_groups)
    major = counts >= np.maximum(_MINOR * counts.sum(axis=1, keepdims=True), 1)
    at = {number: i for i, number in enumerate(job.ranks)}
    stages: dict[tuple[int, int], int] = {}
    for g, group in enumerate(job.groups):
        if labels[g] == "PP":
            stages |= {(at[number], g): place for place, number in enumerate(group.ranks) if number in at}
    known: dict[tuple[tuple[int, int], ...], int] = {}
    of_rank = np.empty(len(job.ranks), np.int64)
    for i in range(len(job.ranks)):
        key = {(int(of_group[g]), stages.get((i, g), 0)) for g in np.flatnonzero(major[i]).tolist()}
        of_rank[i] = known.setdefault(tuple(sorted(key)), len(known))
    return Roles(of_rank, of_group)
