"""Sampled resources such as utilisation, power and memory, summarised per resource."""

from __future__ import annotations

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.core.table import Column, Name, Table

KEYS = ("device", "device_id", "pid", "metric", "unit")

#: Devices that are cores. With more of them than this, how busy each one is says nothing beside how busy all are.
CORE, FEW_CORES = r"^cpu\d+$", 4
COUNTER_SUMMARY = Table(
    "counters",
    "what was sampled, per resource",
    (
        Column("device", Name, "host, cpuN, gpuN, pid:N, a disk, an interface, or the trace's own track", key=True),
        Column("device_id", pl.UInt32(), "accelerator it belongs to, where known", key=True),
        Column("pid", pl.Int64(), "process it belongs to, where known", key=True),
        Column("metric", Name, "what was sampled", key=True),
        Column("unit", Name, "unit of the values, where known"),
        Column("n_samples", pl.Int64(), "how many samples"),
        Column("mean", pl.Float64(), "mean over time: each sample holds until the next"),
        Column("min", pl.Float64(), "lowest sample"),
        Column("p50", pl.Float64(), "median of the samples"),
        Column("p95", pl.Float64(), "95th percentile of the samples"),
        Column("max", pl.Float64(), "highest sample"),
        Column("first", pl.Float64(), "first sample"),
        Column("last", pl.Float64(), "last sample"),
        Column("first_ts_ns", pl.Int64(), "when the first was taken, from the trace's origin", "ns"),
        Column("last_ts_ns", pl.Int64(), "when the last was taken, from the trace's origin", "ns"),
    ),
)


def counters(counters: pl.DataFrame) -> pl.DataFrame:
    """One row per resource and metric: its mean over time, its distribution, and when it was sampled.

    The mean weighs a sample by the time until the next one, so that irregular sampling does not bias it. The last
    sample has no such time. With one sample, or all at the same time, it is the plain mean. Samples without a value, or
    with one that is not a number, are left out.

    Units: those of the metric; ns.
    Source: percentiles interpolate linearly.
    """
    known = counters.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan()).sort(
        "ts_ns", maintain_order=True
    )
    value, time = pl.col("value"), pl.col("ts_ns")
    held = time.shift(-1) - time
    result = known.group_by(KEYS).agg(
        n_samples=pl.len().cast(pl.Int64),
        mean=pl.when(held.sum() > 0).then((value * held).sum() / held.sum()).otherwise(value.mean()),
        min=value.min(),
        p50=value.quantile(0.5, "linear"),
        p95=value.quantile(0.95, "linear"),
        max=value.max(),
        first=value.first(),
        last=value.last(),
        first_ts_ns=time.first(),
        last_ts_ns=time.last(),
    )
    text = [pl.col(c).cast(pl.String) for c in ("device", "metric", "unit")]
    result = result.sort(text[0], "device_id", "pid", *text[1:], nulls_last=True)
    return COUNTER_SUMMARY.conform(result)


ANALYSIS = analysis_of(
    counters, COUNTER_SUMMARY, "Sampled resources (utilisation, power, memory, …): mean over time and distribution."
)
