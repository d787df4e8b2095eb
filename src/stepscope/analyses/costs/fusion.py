"""Runs of memory-bound kernels that one kernel could stand for, and the time that the traffic between them costs."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import Analysis
from stepscope.analyses.common.device_work import device_work, of_spans
from stepscope.analyses.costs.fusion_runs import members_of_runs
from stepscope.analyses.costs.fusion_traffic import METHODS, savings_of, stages_of
from stepscope.analyses.costs.roofs import roofs_of
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import DEVICES, KERNEL_METRICS, OPS, SPANS, TRACKS, Column, Table

__all__ = ["ANALYSIS", "FUSION", "fusion"]

By = Literal["sequence", "run", "all"]
_THEN = " → "

FUSION = Table(
    "fusion",
    "runs of memory-bound kernels that one kernel could stand for",
    (
        Column("run", pl.Int64(), "number of the run, from 0 in order (by run)", key=True),
        Column("kernels", pl.String(), "names of its kernels in order; ×3: three times in succession", key=True),
        Column("ops", pl.String(), "operators that launched them, as far as known"),
        Column("n_runs", pl.Int64(), "how many such runs"),
        Column("mean_kernels", pl.Float64(), "kernels of a run"),
        Column("total_ns", pl.Int64(), "summed duration of their kernels", "ns"),
        Column("saved_high_ns", pl.Float64(), "of it, what fusion saves at best", "ns"),
        Column("saved_low_ns", pl.Float64(), "of it, what fusion saves if each output is still written", "ns"),
        Column("gap_ns", pl.Int64(), "between their kernels nothing ran: saved as well", "ns"),
        Column("share_ratio", pl.Float64(), "part of the duration of all device work", "ratio"),
        Column("mean_ns", pl.Float64(), "duration of a run's kernels, mean", "ns"),
        Column("calls", pl.Int64(), "kernels in all of them"),
        Column("bytes", pl.Float64(), "what they read and wrote, as far as known", "bytes"),
        Column("between_bytes", pl.Float64(), "of it, what fusion leaves out at best", "bytes"),
        Column("known_ratio", pl.Float64(), "part of their duration for which the bytes are known", "ratio"),
        Column(
            "method", pl.Enum(METHODS), "how bytes are known: counters, share of peak bandwidth, shapes of operators"
        ),
        Column("step", pl.Int32(), "step that queued it (by run)"),
        Column("ts_ns", pl.Int64(), "start, from the trace's origin (by run)", "ns"),
        Column("first_id", pl.UInt32(), "span_id of the first kernel of the first such run"),
        Column("reason", pl.String(), "why some bytes are not known"),
    ),
)


def fusion(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    ops: pl.DataFrame | None = None,
    metrics: pl.DataFrame | None = None,
    devices: pl.DataFrame | None = None,
    *,
    by: By = "sequence",
    min_kernels: int = 2,
    max_gap_ns: int = 1_000_000,
    hardware: str | None = None,
    accelerator: str | None = None,
) -> pl.DataFrame:
    """Runs of memory-bound kernels on a stream, in succession: per distinct sequence of names, each alone, or in all.

    Members are kernels that are elementwise, norm, softmax, reduction, copy, embedding, random, rope, quantization or
    optimizer by their full name. A run ends where other work follows on the stream (GEMM, attention, convolution,
    collective, copy to or from the host …), with the step, at a gap longer than `max_gap_ns`, and where the host waits
    for the device between two launches. Fills and copies within the device neither belong to it nor end it. Runs of
    fewer than `min_kernels` do not count.

    Bytes come from counters of DRAM traffic, else from the share of peak bandwidth, else from the shapes of the
    operators. What fusion saves lies between two bounds. At best one kernel reads the largest input and writes the last
    output, and nothing in between is stored. At worst all outputs are still written, as a backward pass may need
    them, and only what one kernel hands to the next is not read again. Both take it that each kernel works on what the
    one before it wrote: kernels that have nothing to do with each other (an operator on each of many parameters) save
    gaps alone; an optimizer's kernel that is launched several times in succession, for parts of a list of tensors,
    counts as one. Kernels of unknown bytes save nothing, and stretches before and after them count for themselves; what
    is saved is null where no two kernels in succession are known. Time goes with bytes. `gap_ns` comes on top where
    the host keeps up; it is null without a clock.

    `hardware` and `accelerator` are those of `roofline`: a known device turns shares of bandwidth into bytes.

    Units: ns, bytes, ratio.
    Source: definition of stepscope's own; the premise is Kitsune's (arXiv 2502.18403), that traffic between kernels
    through DRAM is what running them one by one costs.
    Raises MissingTable (no device work, no kernels), UnknownName (by, accelerator), StepscopeError (min_kernels,
    max_gap_ns, hardware).
    """
    if by not in ("sequence", "run", "all"):
        raise UnknownName("grouping of fusion", by, ("sequence", "run", "all"))
    if min_kernels < 2:
        raise StepscopeError(f"min-kernels is {min_kernels}, and a run has at least 2")
    if max_gap_ns < 0:
        raise StepscopeError(f"max-gap-ns is {max_gap_ns}, and must be 0 or more")
    work = device_work(spans, tracks, needed_by="fusion").select(pl.exclude("sort"))
    if not (work["category"] == "kernel").any():
        raise MissingTable("kernels", needed_by="fusion", hint="show transfers tells about copies and fills")
    roofs = roofs_of(DEVICES.empty() if devices is None else devices, hardware, accelerator)
    members = members_of_runs(work, spans, min_kernels=min_kernels, max_gap_ns=max_gap_ns)
    stages = stages_of(
        members,
        work,
        spans,
        OPS.empty() if ops is None else ops,
        KERNEL_METRICS.empty() if metrics is None else metrics,
        roofs,
    )
    runs = _runs(members, spans).join(savings_of(stages), on="run", how="left", maintain_order="left")
    return _summed(runs, by, whole_ns=int(work["dur_ns"].sum()))


def _runs(members: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """A row per run, in order of the track and of time."""
    members = members.with_columns(op=of_spans(spans, members["op_id"], "name"))
    return members.group_by("run", maintain_order=True).agg(
        names=pl.col("name"),
        ops=pl.col("op"),
        n=pl.len().cast(pl.Int64),
        first_id=pl.col("span_id").first(),
        step=pl.col("step").first(),
        ts_ns=pl.col("ts_ns").first(),
        total_ns=pl.col("dur_ns").sum(),
        gap_ns=pl.when(pl.col("ts_ns").count() > 0).then(pl.col("gap_ns").sum()),
    )


def _summed(runs: pl.DataFrame, by: By, *, whole_ns: int) -> pl.DataFrame:
    measures = {
        "n_runs": pl.len().cast(pl.Int64),
        "mean_kernels": pl.col("n").mean(),
        "calls": pl.col("n").sum(),
        "total_ns": pl.col("total_ns").sum(),
        "mean_ns": pl.col("total_ns").mean(),
        "known_ns": pl.col("known_ns").sum(),
        **{name: _sum(name) for name in ("saved_high_ns", "saved_low_ns", "gap_ns", "bytes", "between_bytes")},
        "method": pl.col("method").drop_nulls().first(),
        "reason": pl.col("reason").drop_nulls().first(),
    }
    told = pl.col("ops").list.drop_nulls().list.len() > 0
    first = {
        "first_id": pl.col("first_id").first(),
        "ops": pl.coalesce(pl.col("ops").filter(told).first(), pl.col("ops").first()),
    }
    if by == "all":
        found = runs.select(**measures)
    elif by == "run":
        own = ("step", "ts_ns")
        found = runs.group_by("run", "names", maintain_order=True).agg(
            **measures, **first, **{c: pl.col(c).first() for c in own}
        )
    else:
        found = (
            runs.group_by("names", maintain_order=True)
            .agg(**measures, **first)
            .sort("total_ns", descending=True, maintain_order=True)
        )
    found = found.with_columns(
        share_ratio=pl.col("total_ns") / pl.lit(whole_ns or None, pl.Float64),
        known_ratio=pl.when(pl.col("total_ns") > 0).then(pl.col("known_ns") / pl.col("total_ns")),
    )
    if by != "all":
        found = _in_words(found)
    return found.select(pl.col(k).cast(t) for k, t in FUSION.dtypes.items() if k in found.columns)


def _sum(column: str) -> pl.Expr:
    """The sum of what is known, null if nothing is."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _in_words(found: pl.DataFrame) -> pl.DataFrame:
    """The lists of names and operators as texts."""
    kernels, ops = _joined(found["names"]), _joined(found["ops"])
    return found.with_columns(kernels=kernels, ops=ops)


def _joined(lists: pl.Series) -> pl.Series:
    """Each list as 'mul → add ×3 → sum'; what is unknown is '?', and nothing known is null."""
    long = pl.DataFrame({"row": pl.int_range(len(lists), eager=True), "text": lists}).explode("text")
    long = long.with_columns(pl.col("text").cast(pl.String).fill_null("?"), known=pl.col("text").is_not_null())
    blocks = long.group_by("row", pl.struct("row", "text").rle_id().alias("block"), maintain_order=True).agg(
        pl.col("text").first(), n=pl.len(), known=pl.col("known").any()
    )
    text = pl.when(pl.col("n") > 1).then(pl.format("{} ×{}", "text", "n")).otherwise("text")
    joined = blocks.group_by("row", maintain_order=True).agg(
        text=pl.when(pl.col("known").any()).then(text.str.join(_THEN))
    )
    return joined["text"]


ANALYSIS = Analysis(
    name="fusion",
    doc="Runs of memory-bound kernels that one kernel could stand for, and what their traffic in between costs.",
    inputs=(SPANS, TRACKS),
    output=FUSION,
    run=fusion,
    optional=(OPS, KERNEL_METRICS, DEVICES),
    needs_clock=False,
)
