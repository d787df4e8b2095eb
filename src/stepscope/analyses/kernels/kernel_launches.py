"""Kernel launches in order, with their class and how much of the device they used. Several analyses start here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.collective_calls import communicates
from stepscope.core.counter_roles import measured
from stepscope.core.errors import MissingTable
from stepscope.core.names import kernel_rule, map_names

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Shares of what the hardware can do: tensor cores, memory, multiprocessors.
RATIOS = ("tensor_ratio", "dram_ratio", "sm_ratio")
#: What to ask ncu for, so that all of it is there.
NCU_METRICS = (
    "gpu__time_duration.sum,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed,"
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed"
)
#: Launches by which a library chooses or checks its kernels.
_TRIALS = "(?i)redzone"


#: What `shares_by_name` calls all matrix products together.
GEMM = "(all matrix products)"


def kernel_launches(spans: pl.DataFrame, *, needed_by: str, without_trials: bool = False) -> pl.DataFrame:
    """`span_id`, `name`, `dur_ns`, `kernel_class`, `is_gemm` of kernels, in order of launch; with a clock, of start.

    `without_trials` leaves out kernels that only check other kernels (XLA's redzone checkers). Raises MissingTable if
    there are no kernels, or if none has a duration.
    """
    work = spans.filter(pl.col("category") == "kernel").select(
        "span_id", "ts_ns", "name", "dur_ns", "category", "recorded_category", "op_id"
    )
    if work.is_empty():
        raise MissingTable("kernels", needed_by=needed_by, providers=("ncu, nsys, rocprof, or a framework's profiler",))
    if work["dur_ns"].null_count() == work.height:
        hint = f"ask ncu for it: --metrics {NCU_METRICS}"
        raise MissingTable("durations of kernels", needed_by=needed_by, hint=hint)
    if without_trials:
        names = work["name"].unique().cast(pl.String)
        trials = names.filter(names.str.contains(_TRIALS))
        work = work.filter(~work["name"].is_in(trials.implode()))
    classes = map_names(work["name"], lambda name: kernel_rule(name)[0], pl.String())
    talks = communicates(work, spans)
    work = work.with_columns(
        kernel_class=pl.when(talks).then(pl.lit("collective")).otherwise(classes), is_gemm=classes == "gemm"
    )
    work = work.sort("ts_ns", maintain_order=True)
    return work.select("span_id", "name", "dur_ns", "kernel_class", "is_gemm")


def with_ratios(launches: pl.DataFrame, metrics: pl.DataFrame, *, needed_by: str = "") -> pl.DataFrame:
    """The launches with the columns RATIOS, 0 to 1, null where not measured; `max_ratio` is the largest of them.

    `metrics` is the table `kernel_metrics`. Raises MissingTable, if `needed_by` is given, where no launch has any.
    """
    for column in RATIOS:
        values = measured(metrics, column.removesuffix("_ratio")).rename({"value": column})
        if values.is_empty():
            launches = launches.with_columns(pl.lit(None, dtype=pl.Float64).alias(column))
        else:
            launches = launches.join(values, on="span_id", how="left", maintain_order="left")
    launches = launches.with_columns(max_ratio=pl.max_horizontal(RATIOS))
    if needed_by and launches["max_ratio"].null_count() == launches.height:
        what = "utilisation of kernels (kernel_metrics)"
        raise MissingTable(what, needed_by=needed_by, hint=f"profile with ncu --csv --metrics {NCU_METRICS}")
    return launches


def with_threads(launches: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The launches with `threads`: blocks by threads of a block, null where the trace does not say."""
    extents = [pl.col(f"{what}_{axis}").cast(pl.Int64) for what in ("grid", "block") for axis in "xyz"]
    sizes = kernels.select("span_id", threads=pl.reduce(lambda a, b: a * b, extents))
    return launches.join(sizes, on="span_id", how="left", maintain_order="left")


def weighted(column: str, weight: str = "dur_ns") -> pl.Expr:
    """Mean weighted by time over the rows that have a value; null if none has."""
    value, time = pl.col(column), pl.col(weight).filter(pl.col(column).is_not_null())
    return pl.when(time.sum() > 0).then((value * pl.col(weight)).sum() / time.sum())


def time_share(condition: pl.Expr, known: Sequence[str] = ()) -> pl.Expr:
    """Share of the time in which a condition holds; null where one of the `known` columns has no value at all."""
    time = pl.col("dur_ns")
    is_known = pl.all_horizontal(pl.col(name).count() > 0 for name in known) if known else pl.lit(value=True)
    return pl.when(is_known & (time.sum() > 0)).then(time.filter(condition).sum() / time.sum())


def ranked(result: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Rows with `share_ratio`, their part of all `total_ns`, longest first; among equals by `keys`."""
    whole = pl.col("total_ns").sum()
    result = result.with_columns(share_ratio=pl.when(whole > 0).then(pl.col("total_ns") / whole))
    order = [pl.col(key).cast(pl.String) for key in keys]
    return result.sort("total_ns", *order, descending=[True, *(False for _ in order)], nulls_last=True)


def shares_by_name(launches: pl.DataFrame, *, merge_gemm: bool) -> pl.DataFrame:
    """`name`, `calls`, `n_names`, `total_ns`, `share_ratio` of each name, longest first."""
    name = pl.col("name").cast(pl.String)
    group = pl.when(pl.col("is_gemm")).then(pl.lit(GEMM)).otherwise(name) if merge_gemm else name
    # By their codes first, as names are many and long and their distinct ones few.
    per_name = launches.group_by("name").agg(
        pl.col("is_gemm").first(), calls=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
    )
    groups = per_name.group_by(group.alias("name")).agg(
        pl.col("calls").sum(), pl.col("total_ns").sum(), n_names=pl.len().cast(pl.Int64)
    )
    return ranked(groups, "name").select("name", "calls", "n_names", "total_ns", "share_ratio")
