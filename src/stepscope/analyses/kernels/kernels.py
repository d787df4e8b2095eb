"""What each device kernel cost, how it was launched, and which operator launched it."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.device_work import COMMUNICATION, device_work
from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.kernels.kernel_launches import RATIOS, with_ratios
from stepscope.analyses.program.modules import module_of_work
from stepscope.core.collectives import without_run_numbers
from stepscope.core.errors import MissingTable
from stepscope.core.names import is_tensor_core, kernel_class, map_names
from stepscope.core.schema import FRAMES, KERNEL_METRICS, KERNELS
from stepscope.core.table import Column, Name, Table, filtered

By = Literal["name", "type", "op", "module", "launch", "stream"]
Include = Literal["kernel", "device"]
GRID, BLOCK = ("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z")
PER_BLOCK = ("registers", "shared_bytes")
KEYS = {
    "name": ("name",),
    "type": ("type", "core"),
    "op": ("name", "op"),
    "module": ("name", "module"),
    "launch": ("name", *GRID, *BLOCK, *PER_BLOCK, "op"),
    "stream": ("name", "stream"),
}

KERNEL_SUMMARY = Table(
    "kernels",
    "what each device kernel cost",
    (
        Column("name", Name, "kernel; of HCCL's collectives the operation, without the numbers of the call", key=True),
        Column(
            "type", Name, "what it computes, in the recorder's word, as in MatMulV3 or convolution (by type)", key=True
        ),
        Column("core", Name, "how it occupies the device, in the recorder's word, as in AI_CORE (by type)", key=True),
        Column("stream", pl.Int64(), "stream it ran on (by stream)", key=True),
        Column("grid", pl.String(), "blocks of a launch, as in 104x1x1 (by launch)", key=True),
        Column("block", pl.String(), "threads of a block, as in 128x1x1 (by launch)", key=True),
        Column("op", Name, "operator that launched it; by name and stream: the one that did so most often", key=True),
        Column("module", pl.String(), "module whose forward launched it, as in `modules` (by module)", key=True),
        Column("kernel_class", Name, "what it does, by its name: gemm, attention, norm, collective, …"),
        Column("communication", pl.Boolean(), "it talks to other ranks"),
        Column("tensor_core", pl.Boolean(), "it uses matrix units, as far as its name says"),
        Column("calls", pl.Int64(), "how often it ran"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "its share of the summed duration of all rows", "ratio"),
        Column("tensor_ratio", pl.Float64(), "tensor cores busy, where measured, weighted by duration", "ratio"),
        Column("dram_ratio", pl.Float64(), "memory bandwidth used, where measured, weighted by duration", "ratio"),
        Column("sm_ratio", pl.Float64(), "multiprocessors busy, where measured, weighted by duration", "ratio"),
        Column("mean_ns", pl.Float64(), "mean duration", "ns"),
        Column("min_ns", pl.Int64(), "shortest", "ns"),
        Column("p50_ns", pl.Float64(), "median", "ns"),
        Column("p95_ns", pl.Float64(), "95th percentile", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("std_ns", pl.Float64(), "standard deviation of a sample; null for a single call", "ns"),
        Column("blocks_per_sm", pl.Float64(), "mean blocks per multiprocessor, weighted by duration"),
        Column("est_occupancy_ratio", pl.Float64(), "mean estimated occupancy, weighted by duration", "ratio"),
        Column("registers", pl.Int32(), "registers per thread; tells launches apart (by launch)"),
        Column("shared_bytes", pl.Int32(), "shared memory per block; tells launches apart (by launch)", "bytes"),
        *(Column(c, pl.Int32(), "the same as in `grid`, as a number (by launch)") for c in GRID),
        *(Column(c, pl.Int32(), "the same as in `block`, as a number (by launch)") for c in BLOCK),
    ),
)


def kernels(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    kernels: pl.DataFrame = KERNELS.empty(),
    kernel_metrics: pl.DataFrame = KERNEL_METRICS.empty(),
    frames: pl.DataFrame = FRAMES.empty(),
    *,
    by: By = "name",
    include: Include = "kernel",
    linked_only: bool = False,
    communication: str = "any",
) -> pl.DataFrame:
    """One row per kernel name, type, name and operator, module or stream, or launch, most expensive first.

    The main columns are `calls`, `total_ns`, `share_ratio` and the distribution of durations. A launch is a grid, a
    block, the resources of a block, and an operator. Durations are summed as recorded: kernels that run at the same
    time all count in full. `include="device"` adds copies and fills. `launches` and `metrics` are the trace's tables
    `kernels` and `kernel_metrics`. `linked_only` and `communication` are those of `timeline`.

    Units: ns, ratio.
    Source: percentiles interpolate linearly; weighted means as in the TensorBoard plugin's kernel view.
    Raises MissingTable (no kernels; no modules), UnknownName (by, include).
    """
    work = device_work(spans, tracks, needed_by="kernels", linked_only=linked_only, communication=communication)
    if include == "kernel":
        work = work.filter(pl.col("category") == "kernel")
        if work.is_empty():
            raise MissingTable("kernels", needed_by="kernels", hint="include=device shows copies and fills")
    work = work.with_columns(without_run_numbers(work["name"]), type="recorded_category")
    work = _with_launch(work, spans, kernels, KEYS[by])
    if by == "module":
        work = work.with_columns(module=module_of_work(spans, frames, work))
    work = with_ratios(work, kernel_metrics)
    duration = pl.col("dur_ns")
    result = work.group_by(KEYS[by], maintain_order=True).agg(
        kernel_class=pl.col("name").first(),
        communication=(pl.col("sort").first() == COMMUNICATION),
        tensor_core=pl.col("tensor_core").first(),
        **_SUMS,
        mean_ns=duration.mean(),
        min_ns=duration.min(),
        p50_ns=duration.quantile(0.5, "linear"),
        p95_ns=duration.quantile(0.95, "linear"),
        max_ns=duration.max(),
        std_ns=duration.std(),
        blocks_per_sm=_weighted("blocks_per_sm"),
        est_occupancy_ratio=_weighted("est_occupancy_ratio"),
        **{ratio: _weighted(ratio) for ratio in RATIOS if work[ratio].count()},
    )
    if by == "launch":
        result = result.with_columns(grid=pl.format("{}x{}x{}", *GRID), block=pl.format("{}x{}x{}", *BLOCK))
    if "op" not in KEYS[by]:
        result = result.join(_main_op(work, KEYS[by]), on=KEYS[by], how="left", nulls_equal=True)
    named = result["kernel_class"]
    result = result.with_columns(
        share_ratio=_SHARE,
        kernel_class=_classes(named, result["communication"], communication),
        tensor_core=pl.col("tensor_core").fill_null(map_names(named, is_tensor_core, pl.Boolean())),
    )
    result = _costliest_first(result, KEYS[by][0])
    columns = {k: t for k, t in KERNEL_SUMMARY.dtypes.items() if k in result.columns}
    return result.select(pl.col(k).cast(t) for k, t in columns.items())


#: What is summed, and the part of all that a sum is.
_SUMS = {
    "calls": pl.len().cast(pl.Int64),
    "total_ns": pl.when(pl.col("dur_ns").count() > 0).then(pl.col("dur_ns").sum()),
}
_SHARE = pl.col("total_ns") / pl.col("total_ns").sum()


def _costliest_first(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    return rows.sort("total_ns", pl.col(key).cast(pl.String), descending=[True, False], nulls_last=True)


def kernel_times(work: pl.DataFrame) -> pl.DataFrame:
    """`name`, `calls`, `total_ns`, `share_ratio` of kernels by name: the columns of `kernels` that no launch adds to.

    `work` is what `device_work` returns. Units: ns, ratio.
    """
    ran = filtered(work[["name", "dur_ns"]], work["category"] == "kernel")
    sums = ran.with_columns(without_run_numbers(ran["name"])).group_by("name", maintain_order=True).agg(**_SUMS)
    return _costliest_first(sums.with_columns(share_ratio=_SHARE), "name")


def _classes(names: pl.Series, talks: pl.Series, communication: str) -> pl.Series:
    """The class of each name. What communicates is `collective`, also where the name does not say so."""
    classes = map_names(names, kernel_class, pl.String())
    if communication != "any":
        return classes
    return pl.select(pl.when(talks).then(pl.lit("collective")).otherwise(classes)).to_series()


def _with_launch(
    work: pl.DataFrame, spans: pl.DataFrame, launches: pl.DataFrame, keys: tuple[str, ...]
) -> pl.DataFrame:
    own = [column for column in (*GRID, *BLOCK, *PER_BLOCK) if column in keys]
    side = launches.select("span_id", *own, "blocks_per_sm", "est_occupancy_ratio", "tensor_core", core="kernel_type")
    work = work.join(side, on="span_id", how="left", maintain_order="left")
    return work.with_columns(op=of_spans(spans, work["op_id"], "name"))


def _weighted(column: str) -> pl.Expr:
    """Mean weighted by duration over the rows that have a value; the plain mean where none of them lasts."""
    value, weight = pl.col(column), pl.col("dur_ns").filter(pl.col(column).is_not_null()).sum()
    return pl.when(weight > 0).then((value * pl.col("dur_ns")).sum() / weight).otherwise(value.mean())


def _main_op(work: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    counts = work.filter(pl.col("op").is_not_null()).group_by(*keys, "op").agg(n=pl.len(), ns=pl.col("dur_ns").sum())
    ranked = counts.sort("n", "ns", pl.col("op").cast(pl.String), descending=[True, True, False])
    return ranked.group_by(keys, maintain_order=True).agg(pl.col("op").first())


ANALYSIS = analysis_of(
    kernels,
    KERNEL_SUMMARY,
    "What each device kernel cost, how it was launched and by which operator.",
    needs_clock=False,
)
