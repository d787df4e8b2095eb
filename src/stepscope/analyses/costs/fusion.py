"""Runs of memory-bound kernels that one kernel could replace, and what their memory traffic in between costs.

A run is split into stages: a kernel with counters, or the kernels of one operator's call, whose traffic follows from
its shapes. Launches of an optimizer's kernel in succession are one stage, as each works on a part of a list of tensors.
Amounts are in bytes, or in ns at peak bandwidth where only shares of it are known and the device is not.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.costs.kernel_costs import moved, uses_matrix_units
from stepscope.analyses.costs.op_costs import priced
from stepscope.analyses.costs.roofline import Roofs, roof_of, roofs_of
from stepscope.analyses.kernels.kernel_launches import with_ratios
from stepscope.analyses.kernels.utilisation import with_limits
from stepscope.core.counter_roles import measured
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import FUSIBLE, is_sync_call, kernel_class, map_names, transfer_kind
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, OPS
from stepscope.core.table import Column, Table

METHODS = ("counters", "dram share", "shapes")
By = Literal["sequence", "run", "all"]
_THEN = " → "

FUSION = Table(
    "fusion",
    "runs of memory-bound kernels that one kernel could replace",
    (
        Column("run", pl.Int64(), "number of the run, from 0 in order (by run)", key=True),
        Column("kernels", pl.String(), "names of its kernels in order; ×3: three times in succession", key=True),
        Column("ops", pl.String(), "operators that launched them, as far as known"),
        Column("n_runs", pl.Int64(), "how many such runs"),
        Column("mean_kernels", pl.Float64(), "kernels of a run"),
        Column("total_ns", pl.Int64(), "summed duration of their kernels", "ns"),
        Column("saved_high_ns", pl.Float64(), "of it, what fusion saves at best", "ns"),
        Column("saved_low_ns", pl.Float64(), "of it, what fusion saves if each output is still written", "ns"),
        Column("gap_ns", pl.Int64(), "time between their kernels in which nothing ran: saved as well", "ns"),
        Column("share_ratio", pl.Float64(), "part of the duration of all device work", "ratio"),
        Column("mean_ns", pl.Float64(), "duration of a run's kernels, mean", "ns"),
        Column("calls", pl.Int64(), "kernels in all such runs"),
        Column("bytes", pl.Float64(), "bytes that they read and wrote, as far as known", "bytes"),
        Column("between_bytes", pl.Float64(), "of them, what fusion avoids at best", "bytes"),
        Column("known_ratio", pl.Float64(), "part of their duration for which the bytes are known", "ratio"),
        Column(
            "method", pl.Enum(METHODS), "how bytes are known: counters, share of peak bandwidth, shapes of operators"
        ),
        Column("step", pl.Int32(), "step that queued it (by run)"),
        Column("ts_ns", pl.Int64(), "start, from the trace's origin (by run)", "ns"),
        Column("first_id", pl.UInt32(), "span_id of the first kernel of the first such run"),
        Column("reason", pl.String(), "why some bytes are unknown"),
    ),
)
_MEMBER, _PASSED, _OTHER = 0, 1, 2
_PARTLY = "its operator launches other work too"
_NO_BYTES = "no counters of its bytes, and no operator with shapes"


def fusion(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    ops: pl.DataFrame = OPS.empty(),
    kernel_metrics: pl.DataFrame = KERNEL_METRICS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    *,
    by: By = "sequence",
    min_kernels: int = 2,
    max_gap_ns: int = 1_000_000,
    hardware: str | None = None,
    accelerator: str | None = None,
) -> pl.DataFrame:
    """One row per distinct sequence of memory-bound kernels on a stream, per run of kernels, or one for all runs.

    A run's kernels are elementwise, norm, softmax, reduction, copy, embedding, random, rope, quantization or optimizer
    kernels by their full name, except those that counters show to be compute-bound. A run ends at other work on the
    stream (GEMM, attention, convolution, collective, copy to or from the host …), at the end of the step, at a gap
    longer than `max_gap_ns`, and where the host waits for the device between two launches. Without a clock it ends
    where a kernel other than an optimizer's is launched again with the same grid, as benchmarks do. Fills and copies
    within the device are skipped. Runs of fewer than `min_kernels` are left out.

    `bytes` come from counters of DRAM traffic, else from the share of peak bandwidth, else from the shapes of the
    operators. What fusion saves has two bounds. At best (`saved_high_ns`), one kernel reads the largest input and
    writes the last output, and nothing in between is stored. At worst (`saved_low_ns`), all outputs are still written,
    as a backward pass may need them, but the next kernel does not read them again. Time is proportional to bytes.
    `gap_ns` is saved as well if the host keeps up; it is null without a clock.

    Both bounds assume that each kernel works on the output of the previous one. Unrelated kernels in succession (an
    operator on each of many parameters) save only gaps. An optimizer's kernel that is launched several times, for parts
    of a list of tensors, counts as one. Kernels of unknown bytes save nothing and split a run; the bounds are null if
    no two kernels in succession are known.

    `hardware` and `accelerator` are those of `roofline`: a known device turns shares of bandwidth into bytes.

    Units: ns, bytes, ratio.
    Source: our own definition; the premise is Kitsune's (arXiv 2502.18403): running kernels one by one costs the DRAM
    traffic between them.
    Raises MissingTable (no device work, no kernels), UnknownName (by, accelerator), StepscopeError (min_kernels,
    max_gap_ns, hardware).
    """
    if min_kernels < 2:
        raise StepscopeError(f"min-kernels is {min_kernels}, and a run has at least 2")
    if max_gap_ns < 0:
        raise StepscopeError(f"max-gap-ns is {max_gap_ns}, and must be 0 or more")
    work = device_work(spans, tracks, needed_by="fusion").select(pl.exclude("sort"))
    if not (work["category"] == "kernel").any():
        raise MissingTable("kernels", needed_by="fusion", hint="for copies and fills there is show transfers")
    roofs = roofs_of(devices, hardware, accelerator)
    members = members_of_runs(work, spans, kernel_metrics, kernels, min_kernels=min_kernels, max_gap_ns=max_gap_ns)
    stages = stages_of(members, work, spans, ops, kernel_metrics, roofs)
    runs = _runs(members, spans).join(savings_of(stages), on="run", how="left", maintain_order="left")
    return _summed(runs, by, whole_ns=int(work["dur_ns"].sum()))


def _runs(members: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """One row per run, ordered by track and time."""
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
    named = pl.col("ops").list.drop_nulls().list.len() > 0
    first = {
        "first_id": pl.col("first_id").first(),
        "ops": pl.coalesce(pl.col("ops").filter(named).first(), pl.col("ops").first()),
    }
    if by == "all":
        result = runs.select(**measures)
    elif by == "run":
        own = ("step", "ts_ns")
        result = runs.group_by("run", "names", maintain_order=True).agg(
            **measures, **first, **{c: pl.col(c).first() for c in own}
        )
    else:
        result = (
            runs.group_by("names", maintain_order=True)
            .agg(**measures, **first)
            .sort("total_ns", descending=True, maintain_order=True)
        )
    result = result.with_columns(
        share_ratio=pl.col("total_ns") / pl.lit(whole_ns or None, pl.Float64),
        known_ratio=pl.when(pl.col("total_ns") > 0).then(pl.col("known_ns") / pl.col("total_ns")),
    )
    if by != "all":
        result = _as_texts(result)
    return result.select(pl.col(k).cast(t) for k, t in FUSION.dtypes.items() if k in result.columns)


def _sum(column: str) -> pl.Expr:
    """The sum of the known values, null if there are none."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _as_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """The lists of names and operators as texts."""
    kernels, ops = _joined(rows["names"]), _joined(rows["ops"])
    return rows.with_columns(kernels=kernels, ops=ops)


def _joined(lists: pl.Series) -> pl.Series:
    """Each list as 'mul → add ×3 → sum', with '?' for unknown names; null if all are unknown."""
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


def members_of_runs(
    work: pl.DataFrame,
    spans: pl.DataFrame,
    metrics: pl.DataFrame = KERNEL_METRICS.empty(),
    kernels: pl.DataFrame = KERNELS.empty(),
    *,
    min_kernels: int,
    max_gap_ns: int,
) -> pl.DataFrame:
    """The kernels of all runs in order, with `run` (from 0), `kernel_class` and `gap_ns` since the one before.

    A run is a sequence of kernels of memory-bound classes on a track. Fills and copies within the device are skipped.
    Any other work on the track ends it, and so do another step, a gap longer than `max_gap_ns`, a synchronising call of
    the host between two launches, and, without a clock, the same launch once more. `gap_ns` is the time in which
    nothing ran on the track; null for the first of a run, and without a clock. Units: ns.
    """
    columns = ("span_id", "track_id", "ts_ns", "end_ns", "dur_ns", "name", "category", "launch_id", "op_id", "step")
    work = work.select(*columns, "device_id").sort("track_id", "ts_ns", maintain_order=True)
    classes = map_names(work["name"], kernel_class, pl.String())
    computes = with_limits(with_ratios(work.select("span_id"), metrics))["limit"] == "compute"
    work = work.with_columns(kernel_class=classes, role=_roles(work, classes, computes.fill_null(value=False)))
    work = work.with_columns(idle_ns=_idle_before().cum_sum().over("track_id"))
    work = work.filter(pl.col("role") != _PASSED)
    called = of_spans(spans, work["launch_id"], "ts_ns")
    before = {name: pl.col(name).shift(1) for name in ("track_id", "role", "step", "idle_ns")}
    gap = pl.col("idle_ns") - before["idle_ns"]
    follows = (
        (before["track_id"] == pl.col("track_id"))
        & (before["role"] == _MEMBER)
        & (pl.col("role") == _MEMBER)
        & before["step"].eq_missing(pl.col("step"))
        & (gap <= max_gap_ns).fill_null(value=True)
        & ~_synchronised(called, spans)
        & ~_repeats(work, kernels)
    ).fill_null(value=False)
    work = work.with_columns(follows=follows, gap_ns=pl.when(follows & pl.col("ts_ns").is_not_null()).then(gap))
    work = work.with_columns(run=(~pl.col("follows")).cum_sum()).filter(pl.col("role") == _MEMBER)
    work = work.filter(pl.len().over("run") >= min_kernels)
    return work.with_columns(run=pl.col("run").rle_id().cast(pl.Int64)).drop("role", "follows", "idle_ns")


def _repeats(work: pl.DataFrame, kernels: pl.DataFrame) -> pl.Series:
    """Whether a launch has the name and the known grid of the one before it, in a recording without a clock."""
    shape = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    known = kernels.select("span_id", *shape)
    launches = work.select("span_id", "name", "ts_ns", "kernel_class").join(
        known, on="span_id", how="left", maintain_order="left"
    )
    same = pl.all_horizontal(pl.col(c) == pl.col(c).shift(1) for c in ("name", *shape))
    again = same & pl.col("ts_ns").is_null() & (pl.col("kernel_class") != "optimizer")
    return launches.select(again.fill_null(value=False)).to_series()


def _roles(work: pl.DataFrame, classes: pl.Series, computes: pl.Series) -> pl.Series:
    """`computes` says which kernels counters show to be compute-bound."""
    fusible = classes.is_in(FUSIBLE) & ~computes
    inside = map_names(work["name"], transfer_kind, pl.String()).is_in(["DtoD", "memset"])
    is_kernel = work["category"] == "kernel"
    stays = pl.select(pl.when(is_kernel).then(classes == "memory").otherwise(inside)).to_series()
    role = pl.when(is_kernel & fusible).then(_MEMBER).when(stays & inside).then(_PASSED).otherwise(_OTHER)
    return pl.select(role.cast(pl.Int8)).to_series()


def _idle_before() -> pl.Expr:
    """Time before each piece of work in which nothing ran on its track."""
    reached = pl.col("end_ns").cum_max().shift(1).over("track_id")
    return (pl.col("ts_ns") - reached).clip(lower_bound=0).fill_null(0)


def _synchronised(called: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Whether the host waited for the device between the previous launch and this one; False if either is unknown."""
    host = spans.select("ts_ns", "dur_ns", "name").filter(spans["category"].is_in(["runtime", "driver"]))
    waits = host.filter(map_names(host["name"], is_sync_call, pl.Boolean())).sort("ts_ns")
    if waits.is_empty():
        return pl.Series([False] * len(called), dtype=pl.Boolean)
    starts = waits["ts_ns"].to_numpy()
    ends = np.append(starts + waits["dur_ns"].to_numpy(), np.iinfo(np.int64).max)
    first_end = np.minimum.accumulate(ends[::-1])[::-1]  # of the waits from each on, the first end
    low, high = called.shift(1).fill_null(2**62).to_numpy(), called.fill_null(-1).to_numpy()
    return pl.Series(first_end[np.searchsorted(starts, low)] <= high)


def stages_of(
    members: pl.DataFrame,
    work: pl.DataFrame,
    spans: pl.DataFrame,
    ops: pl.DataFrame,
    metrics: pl.DataFrame,
    roofs: Roofs,
) -> pl.DataFrame:
    """One row per stage, in order: run, dur_ns, read, written, largest (input), method, in_bytes, reason.

    `members` are the kernels of all runs in order, `work` is all device work. Counters of bytes are preferred, then the
    share of peak bandwidth, then shapes. If only the sum of both directions is known, each gets half.
    """
    counted = _by_counters(members, metrics, roofs)
    shaped = _by_shapes(members, work, spans, ops)
    columns = ("run", "span_id", "dur_ns", "name", "kernel_class")
    rows = members.select(columns).join(counted, on="span_id", how="left", maintain_order="left")
    rows = rows.join(shaped, on="span_id", how="left", maintain_order="left")
    alike = pl.struct("run", "name", "method")
    is_part = (pl.col("kernel_class") == "optimizer") & (alike == alike.shift(1))
    by_itself = pl.col("method").is_not_null() | pl.col("call_id").is_null()
    own = -1 - (~is_part.fill_null(value=False)).cum_sum().cast(pl.Int64)
    rows = rows.with_columns(stage=pl.when(by_itself).then(own).otherwise("call_id"))
    amounts = ("read", "written", "largest")
    stages = rows.group_by("run", pl.col("stage").rle_id().alias("at"), maintain_order=True).agg(
        pl.col("dur_ns").sum(),
        *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in amounts),
        *(pl.col(f"{name}_shape").first() for name in amounts),
        pl.col("method", "in_bytes", "n_work", "reason").first(),
        n=pl.len(),
    )
    whole = pl.col("n") == pl.col("n_work")
    has_shapes = pl.col("written_shape").is_not_null() & whole
    return stages.select(
        "run",
        "dur_ns",
        *(pl.coalesce(name, pl.when(has_shapes).then(f"{name}_shape")).alias(name) for name in amounts),
        method=pl.coalesce("method", pl.when(has_shapes).then(pl.lit("shapes"))).cast(pl.Enum(METHODS)),
        in_bytes=pl.col("in_bytes").fill_null(value=True),
        reason=pl.when(pl.col("written_shape").is_not_null() & ~whole)
        .then(pl.lit(_PARTLY))
        .otherwise(pl.coalesce("reason", pl.lit(_NO_BYTES))),
    )


def _by_counters(members: pl.DataFrame, metrics: pl.DataFrame, roofs: Roofs) -> pl.DataFrame:
    """span_id, read, written, largest, method, in_bytes of launches whose traffic was counted."""
    bytes_of = moved(members, metrics)
    half = pl.col("bytes") / 2
    read, written = pl.coalesce("read_bytes", half), pl.coalesce("written_bytes", half)
    exact = bytes_of.select(
        "span_id", read=read, written=written, method=pl.lit("counters"), in_bytes=pl.lit(value=True)
    )
    share = members.select("span_id", "dur_ns", "device_id").join(measured(metrics, "dram"), on="span_id")
    share = share.join(exact, on="span_id", how="anti")
    devices = share["device_id"].unique().to_list()
    products = {device: roof_of(roofs, device) for device in devices}
    known = [(d, None if isinstance(p, str) else p.memory_bytes_per_s) for d, p in products.items()]
    rates = pl.DataFrame(known, schema={"device_id": pl.UInt32, "rate": pl.Float64}, orient="row")
    share = share.join(rates, on="device_id", how="left", nulls_equal=True)
    amount = pl.col("value") * pl.col("dur_ns") * (pl.col("rate") / 1e9).fill_null(1.0) / 2
    rough = share.select(
        "span_id", read=amount, written=amount, method=pl.lit("dram share"), in_bytes=pl.col("rate").is_not_null()
    )
    return pl.concat([exact, rough]).with_columns(largest="read")


def _by_shapes(members: pl.DataFrame, work: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """span_id, call_id, n_work, reason and the amounts of the call that each launch is attributed to."""
    columns: dict[str, type[pl.DataType]] = {
        "span_id": pl.UInt32, "call_id": pl.Int64, "n_work": pl.Int64, "reason": pl.String,
        "read_shape": pl.Float64, "written_shape": pl.Float64, "largest_shape": pl.Float64,
    }  # fmt: skip
    if work["ts_ns"].null_count() == work.height or members["op_id"].null_count() == members.height:
        return pl.DataFrame(schema=columns)  # a source without operators
    marked = work.with_columns(tensor_core=uses_matrix_units(work, KERNELS.empty()))
    mine, calls = priced(marked, spans, ops)
    mine = mine.select("span_id", "call_id").join(members.select("span_id"), on="span_id", how="semi")
    amounts = calls.select(
        "call_id",
        "n_work",
        "reason",
        read_shape=pl.col("bytes") - pl.col("written_bytes"),
        written_shape="written_bytes",
        largest_shape="largest_bytes",
    )
    return mine.join(amounts, on="call_id", how="left").select(*columns)


def savings_of(stages: pl.DataFrame) -> pl.DataFrame:
    """One row per run: the amount moved, how much fusion avoids, what is known, and both bounds of the time saved.

    Bounds hold for stretches of two or more stages of known traffic. At best one kernel reads the largest input and
    writes the last output. At worst each stage still writes its output, and only the next stage does not read it again.
    Time is proportional to the amount: over the stretch at best, over the stage that reads at worst.
    """
    amount = pl.col("read") + pl.col("written")
    known = amount.is_not_null()
    stages = stages.with_columns(
        amount=amount,
        stretch=pl.struct("run", "in_bytes", known.alias("known")).rle_id(),
        handed=pl.min_horizontal(pl.col("written").shift(1), pl.col("read")),
    )
    first = pl.col("stretch") != pl.col("stretch").shift(1).fill_null(2**32 - 1)
    stages = stages.with_columns(handed=pl.when(~first & known).then("handed").otherwise(0.0))
    reread_ns = (
        pl.when(pl.col("amount") > 0).then(pl.col("handed") / pl.col("amount") * pl.col("dur_ns")).otherwise(0.0)
    )
    stretches = stages.group_by("run", "stretch", maintain_order=True).agg(
        known.first().alias("known"),
        pl.col("dur_ns", "amount").sum(),
        reread_ns=reread_ns.sum(),
        least=pl.col("largest").max() + pl.col("written").last(),
        n=pl.len(),
        in_bytes=pl.col("in_bytes").all(),
        method=pl.col("method").first(),
        reason=pl.col("reason").first(),
    )
    fusible = pl.col("known") & (pl.col("n") > 1) & (pl.col("amount") > 0)
    between = pl.when(fusible).then((pl.col("amount") - pl.col("least")).clip(lower_bound=0.0)).otherwise(0.0)
    high = pl.when(fusible).then(between / pl.col("amount") * pl.col("dur_ns")).otherwise(0.0)
    low = pl.min_horizontal(pl.when(fusible).then("reread_ns").otherwise(0.0), high)
    some, can_save = pl.col("known").any(), fusible.any()
    return (
        stretches.with_columns(between=between, high_ns=high, low_ns=low)
        .group_by("run", maintain_order=True)
        .agg(
            bytes=pl.when(some & pl.col("in_bytes").all()).then(pl.col("amount").sum()),
            between_bytes=pl.when(can_save & pl.col("in_bytes").all()).then(pl.col("between").sum()),
            known_ns=pl.col("dur_ns").filter("known").sum(),
            saved_low_ns=pl.when(can_save).then(pl.col("low_ns").sum()),
            saved_high_ns=pl.when(can_save).then(pl.col("high_ns").sum()),
            method=pl.col("method").drop_nulls().first(),
            reason=pl.col("reason").filter(~pl.col("known")).first(),
        )
    )


ANALYSIS = analysis_of(
    fusion,
    FUSION,
    "Runs of memory-bound kernels that one kernel could replace, and what their memory traffic costs.",
    needs_clock=False,
)
