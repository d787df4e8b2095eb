"""What kinds of work kernels do, which part of their names says so, and how well they use the device."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.kernels.kernel_launches import RATIOS, kernel_launches, ranked, weighted, with_ratios
from stepscope.core.names import kernel_rule, map_names
from stepscope.core.patterns import regex
from stepscope.core.schema import KERNEL_METRICS
from stepscope.core.table import Column, Name, Table

By = Literal["class", "rule", "name", "gemm"]
KEYS = {
    "class": ("kernel_class",),
    "rule": ("kernel_class", "rule"),
    "name": ("kernel_class", "rule", "name"),
    "gemm": ("is_gemm",),
}

#: What is left of templates that hold all sorts of kernels, in names cut at the first bracket.
_VAGUE = regex(r"Kernel2?|device_kernel")

KERNEL_CLASS_SUMMARY = Table(
    "kernel-classes",
    "what kinds of work kernels do",
    (
        Column("is_gemm", pl.Boolean(), "matrix products, or all else (by gemm)", key=True),
        Column("kernel_class", Name, "gemm, convolution, attention, norm, softmax, elementwise, …", key=True),
        Column("rule", Name, "part of the name that decides the class (by rule, name)", key=True),
        Column("name", Name, "kernel (by name)", key=True),
        Column("calls", pl.Int64(), "how often they ran"),
        Column("n_names", pl.Int64(), "distinct names"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("share_ratio", pl.Float64(), "part of all kernels' time", "ratio"),
        Column("tensor_ratio", pl.Float64(), "tensor cores busy, weighted by time", "ratio"),
        Column("dram_ratio", pl.Float64(), "memory bandwidth used, weighted by time", "ratio"),
        Column("sm_ratio", pl.Float64(), "multiprocessors busy, weighted by time", "ratio"),
        Column("vague_calls", pl.Int64(), "of these, with a name cut so short that the class is likely, not certain"),
    ),
)


def kernel_classes(
    spans: pl.DataFrame, kernel_metrics: pl.DataFrame = KERNEL_METRICS.empty(), *, by: By = "class"
) -> pl.DataFrame:
    """One row per class of kernels (gemm: two rows; or per rule or name), most expensive first.

    The main columns are `calls`, `total_ns`, `share_ratio` and, where measured, the shares of the device's peak. The
    first rule that matches the full name, before it is shortened, decides the class; by rule or name the part that
    matched is shown. By gemm there are two rows. Launches whose names were shortened to `Kernel` count as what they
    nearly always are, and `vague_calls` counts them. `metrics` is the table `kernel_metrics`.

    Units: ns, ratio.
    Source: rules of `stepscope.core.names`; casio's list of GEMM names and its README's pattern are the start of that
    rule.
    Raises MissingTable (no kernels, no durations), UnknownName (by).
    """
    launches = with_ratios(kernel_launches(spans, needed_by="kernel-classes"), kernel_metrics)
    launches = launches.with_columns(
        rule=map_names(launches["name"], lambda name: kernel_rule(name)[1], pl.String()),
        vague=map_names(launches["name"], lambda name: _VAGUE.fullmatch(name) is not None, pl.Boolean()),
    )
    has_any = [ratio for ratio in RATIOS if launches[ratio].null_count() < launches.height]
    result = launches.group_by(KEYS[by], maintain_order=True).agg(
        calls=pl.len(),
        n_names=pl.col("name").n_unique(),
        total_ns=pl.col("dur_ns").sum(),
        **{ratio: weighted(ratio) for ratio in has_any},
        vague_calls=pl.col("vague").sum(),
    )
    result = ranked(result, *KEYS[by])
    return result.select(pl.col(k).cast(t) for k, t in KERNEL_CLASS_SUMMARY.dtypes.items() if k in result.columns)


ANALYSIS = analysis_of(
    kernel_classes,
    KERNEL_CLASS_SUMMARY,
    "What kinds of work kernels do, by which part of their names, and how well they use the device.",
    needs_clock=False,
)
