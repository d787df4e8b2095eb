"""What each process group is for (tensor, data, pipeline, expert parallelism), and which ranks do the same work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.grouped_medians import numbered
from stepscope.analyses.ranks.groups import Group, listed, stride_of
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.core.collectives import POINT_TO_POINT
from stepscope.core.intervals import Ints
from stepscope.core.patterns import regex
from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analyses.ranks.calls import RankCalls
    from stepscope.analyses.ranks.matching import Job

PARALLELISMS = ("TP", "DP", "FSDP", "PP", "EP", "CP", "world", "unknown")
RULES = ("description", "exchanges", "phase", "sizes", "layout", "all ranks", "one rank")
PARALLEL_GROUPS = Table(
    "parallel-groups",
    "the process groups of a job, and what each is for",
    (
        Column("group", pl.String(), "its name, or its ranks if it has none", key=True),
        Column("ranks", pl.String(), "ranks in it, as far as known", key=True),
        Column("parallelism", pl.Enum(PARALLELISMS), "what it is for"),
        Column("named_by", pl.Enum(RULES), "rule that says so"),
        Column("description", pl.String(), "description by its creator, if recorded"),
        Column("group_size", pl.Int32(), "ranks in it"),
        Column("n_present", pl.Int32(), "of them, those with a trace"),
        Column("kinds", pl.String(), "kinds of its collectives, most frequent first"),
        Column("exchanges", pl.Int64(), "number of its collectives"),
        Column("size_bytes", pl.Int64(), "of all its collectives; null if one is unknown", "bytes"),
    ),
)

_LABELS = (
    ("EP", regex(r"(^|[^a-z])(ep|expert|moe)([^a-z]|$)|expert")),
    ("TP", regex(r"(^|[^a-z])(tp|mp)([^a-z]|$)|tensor")),
    ("PP", regex(r"(^|[^a-z])pp([^a-z]|$)|pipeline")),
    ("CP", regex(r"(^|[^a-z])(cp|sp|ulysses)([^a-z]|$)|context|sequence")),
    ("FSDP", regex(r"fsdp|shard|zero")),
    ("DP", regex(r"(^|[^a-z])(dp|ddp)([^a-z]|$)|data|replicate")),
)
_MOSTLY, _NEARLY_ALL = 0.5, 0.9
_MANY = 16  # all-reduces per step
#: Groups with a smaller part of a rank's calls do not count for its role.
_MINOR = 0.05


def parallelism_of(job: Job) -> list[tuple[str, str]]:
    """For each group of the job what it is for, and the rule that says so (one of RULES); see `parallel_groups`."""
    mix = _mix(job)
    several = [i for i, g in enumerate(job.groups) if g.size > 1 and i in mix]
    n_ranks = max(len(job.ranks), *(part.world_size or 0 for part in job.parts))
    return [_named(group, mix.get(i, {}), len(several), n_ranks) for i, group in enumerate(job.groups)]


def _named(group: Group, mix: Mapping[str, float], n_groups: int, n_ranks: int) -> tuple[str, str]:
    text = (group.description or "").lower()
    for label, pattern in _LABELS:
        if pattern.search(text):
            return label, "description"
    if group.size < 2:
        return "unknown", "one rank"
    whole = group.size >= n_ranks
    forward = bool(mix.get("forward allreduce"))
    by_mix = _from_collectives(mix, forward=forward)
    if by_mix is not None:
        return by_mix, "exchanges"
    if (forward or mix.get("alike")) and (not whole or n_groups == 1):
        return "TP", "phase" if forward else "sizes"
    if whole:
        return ("DP" if n_groups == 1 else "world"), "all ranks"
    return {None: "unknown", 1: "TP"}.get(stride_of(group.ranks), "DP"), "layout"


def _from_collectives(mix: Mapping[str, float], *, forward: bool) -> str | None:
    every = mix.get("all", 0.0)
    if not every:
        return None
    if sum(mix.get(kind, 0.0) for kind in POINT_TO_POINT) == every:
        return "PP"
    if mix.get("alltoall", 0.0) > _MOSTLY * every:
        return "EP"
    return "FSDP" if mix.get("allgather") and mix.get("reduce_scatter") and not forward else None


def _mix(job: Job) -> dict[int, dict[str, float]]:
    """Per group the number of calls of each kind, `all`, and `forward allreduce`: those before the backward pass."""
    calls = job.calls.select("group", "kind", "work_ns", "backward_ns", "optimizer_ns")
    mixes: dict[int, dict[str, float]] = {}
    for group, kind, n in calls.group_by("group", "kind").len().iter_rows():
        mix = mixes.setdefault(group, {"all": 0.0})
        mix[kind] = float(n)
        mix["all"] += n
    _alike(job, mixes)
    if calls["backward_ns"].null_count() == calls.height:
        return mixes
    known = calls.filter((pl.col("kind") == "allreduce") & (pl.col("work_ns") > 0))
    # Tensor parallelism has many forward all-reduces; a few, of the loss or of a flag, are no evidence.
    forward = (pl.col("backward_ns") + pl.col("optimizer_ns") < pl.col("work_ns") / 2).sum()
    phases = known.group_by("group").agg(forward.alias("n"), pl.len().alias("all"), pl.col("backward_ns").sum())
    for group, n, n_all, backward in phases.iter_rows():
        if 4 * n >= n_all and backward:
            mixes[group]["forward allreduce"] = float(n)
    return mixes


def _alike(job: Job, mixes: dict[int, dict[str, float]]) -> None:
    """Mark groups with many all-reduces per step of nearly equal size: activations, as buckets of gradients differ."""
    sizes = job.collectives.filter((pl.col("kind") == "allreduce") & pl.col("size_bytes").is_not_null())
    counts = (
        sizes.group_by("group", "size_bytes").len().group_by("group").agg(pl.col("len").max(), all=pl.col("len").sum())
    )
    steps = job.collectives.group_by("group").agg(pl.col("step").n_unique())
    for group, most, every, n_steps in counts.join(steps, on="group").iter_rows():
        if every >= _MANY * max(n_steps, 1) and most >= _NEARLY_ALL * every:
            mixes[group]["alike"] = float(most)


def parallel_groups(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """One row per process group, those with most collectives first: its ranks, and what it is for (`parallelism`).

    `named_by` is the first rule that applies. `description`: a usual word in the group's description (tp, tensor, dp,
    data, pp, pipeline, ep, expert, cp, fsdp …). `exchanges`: only messages between two ranks are PP, mostly all-to-all
    EP, all-gathers with reduce-scatters and no all-reduce in the forward pass FSDP. `phase`: all-reduces in the forward
    pass are TP, as gradients are reduced in the backward pass. `sizes`: many all-reduces per step of nearly equal size
    are TP, as activations have one size. `all ranks`: a group of all ranks is DP if it is the only one, else the world.
    `layout`: contiguous ranks are TP, ranks with a stride DP.

    Units: bytes.
    Source: Megatron-LM numbers ranks so that tensor-parallel ones are neighbours, then data, then pipeline parallel.
    Raises MissingTable (no ranks).
    """
    job = job_of(parts)
    rows = job.collectives.group_by("group").agg(
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


ANALYSIS = analysis_of(
    parallel_groups,
    PARALLEL_GROUPS,
    "Process groups and what they are for: tensor, data, pipeline, expert parallelism.",
    scope="ranks",
)


class Roles(msgspec.Struct, frozen=True):
    """A number for each rank and each group (by index), equal for those with the same role."""

    of_rank: Ints
    of_group: Ints


def roles_of(job: Job) -> Roles:
    """The role of each rank and group.

    Groups of one parallelism, size and stride have the same role. Ranks have the same role if the groups of most of
    their calls do, and if they are at the same stage of their pipeline, as stages do different work.
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
