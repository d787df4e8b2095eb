"""Pipeline bubbles: time in which a stage computes nothing because it waits for its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.ranks.calls import RankCalls
from stepscope.analyses.ranks.grouped_medians import Floats
from stepscope.analyses.ranks.lateness import transfers_of
from stepscope.analyses.ranks.matching import Job, job_of
from stepscope.analyses.ranks.parallel_groups import parallelism_of
from stepscope.core.collectives import POINT_TO_POINT, SYNCHRONISING
from stepscope.core.errors import MissingTable
from stepscope.core.table import Column, Table

PIPELINE_BUBBLES = Table(
    "pipeline-bubbles",
    "how long stages of a pipeline wait for each other",
    (
        Column("rank", pl.Int32(), "rank of the process in its job", key=True),
        Column("group", pl.String(), "its pipeline", key=True),
        Column("stage", pl.Int32(), "its index in the pipeline, from 0"),
        Column("stages", pl.Int32(), "stages of the pipeline"),
        Column("microbatches", pl.Float64(), "microbatches of a step, by the messages that it receives"),
        Column("steps", pl.Int64(), "number of steps (1: no steps are recorded)"),
        Column("step_ns", pl.Float64(), "mean time of a step, from its first collective to that of the next", "ns"),
        Column("bubble_ns", pl.Float64(), "of that, waiting for other stages while nothing computes", "ns"),
        Column("bubble_ratio", pl.Float64(), "bubble over step", "ratio"),
        Column("ideal_ratio", pl.Float64(), "bubble ratio of an even pipeline with a 1F1B schedule", "ratio"),
        Column("compute_ns", pl.Float64(), "of a step, computing", "ns"),
        Column(
            "excess_compute_ratio", pl.Float64(), "how much longer it computes than the mean of the stages", "ratio"
        ),
    ),
)


def pipeline_bubbles(parts: Sequence[RankCalls]) -> pl.DataFrame:
    """One row per rank and pipeline: how long the rank waits for other stages per step, and what is ideal.

    `bubble_ns` is the time of messages that the rank waits for (nothing computes when they end), including their
    transfer, and the time that it waits for other stages in collectives with them, such as that of the gradients' norm
    after the last microbatch. A pipeline of p even stages and m microbatches has bubbles of (p − 1) / (m + p − 1) of
    its time with 1F1B and GPipe schedules alike (`ideal_ratio`); interleaved schedules have less. A stage that computes
    longer than the mean (`excess_compute_ratio`) makes all others wait.

    Units: ns, ratio.
    Source: bubble of pipeline schedules after Narayanan et al., Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM, SC 2021.
    Raises MissingTable (no group is a pipeline).
    """
    job = job_of(parts)
    pipelines = [g for g, (label, _) in enumerate(parallelism_of(job)) if label == "PP"]
    if not pipelines:
        hint = "a pipeline's ranks send each other messages; show parallel-groups lists what groups are for"
        raise MissingTable("a pipeline-parallel group", needed_by="pipeline-bubbles", hint=hint)
    at = {number: i for i, number in enumerate(job.ranks)}
    transfer = np.nan_to_num(transfers_of(job))
    rows = [
        _row(job, transfer, g, stage, at[number])
        for g in pipelines
        for stage, number in enumerate(job.groups[g].ranks)
        if number in at
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    mean = pl.col("compute_ns").mean().over("group")
    frame = frame.with_columns(excess_compute_ratio=pl.col("compute_ns") / mean - 1)
    return PIPELINE_BUBBLES.conform(frame.sort("rank", "group"))


def _row(job: Job, transfer: Floats, group: int, stage: int, rank: int) -> dict[str, object]:
    own = np.flatnonzero(job.rank == rank)
    start, end = job.start[own], job.end[own]
    calls = job.calls[own]
    mine = (calls["group"] == group).to_numpy() & calls["kind"].is_in(POINT_TO_POINT).to_numpy()
    waits = np.where(mine & calls["blocks"].fill_null(value=True).to_numpy(), end - start, 0)
    stages = set(job.groups[group].ranks)
    wide = [g for g, other in enumerate(job.groups) if g != group and len(stages.intersection(other.ranks)) > 1]
    joint = calls["group"].is_in(wide).to_numpy() & calls["kind"].is_in(SYNCHRONISING).to_numpy()
    waits = waits + np.where(joint, np.maximum(end - start - transfer[job.collective[own]], 0), 0)
    steps = calls["step"].drop_nulls()
    n_steps = max(steps.n_unique(), 1)
    span = float(end.max() - start.min())
    first = start[np.unique(steps.to_numpy(), return_index=True)[1]] if steps.len() == calls.height else start[:1]
    step_ns = float(np.diff(first).mean()) if first.size > 1 else span
    n_stages = len(job.groups[group].ranks)
    got = calls.filter(pl.Series(mine) & (calls["kind"] != "send")).height / n_steps
    # Inner stages receive a message in each direction per microbatch.
    batches = got / (2 if 0 < stage < n_stages - 1 else 1)
    wait = float(waits.sum()) / n_steps
    known = calls["compute_ns"].null_count() < calls.height
    return {
        "rank": job.ranks[rank],
        "group": job.groups[group].name,
        "stage": stage,
        "stages": n_stages,
        "microbatches": batches or None,
        "steps": n_steps,
        "step_ns": step_ns,
        "bubble_ns": wait,
        "bubble_ratio": wait / step_ns if step_ns else None,
        "ideal_ratio": (n_stages - 1) / (batches + n_stages - 1) if batches else None,
        "compute_ns": float(calls["compute_ns"].sum()) / n_steps if known else None,
    }


ANALYSIS = analysis_of(
    pipeline_bubbles,
    PIPELINE_BUBBLES,
    "How long stages of a pipeline wait for each other, and how long those of an even pipeline would.",
    scope="ranks",
)
