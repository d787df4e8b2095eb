"""LatencyPrism's counters_data.csv: samples of resources, each with its process in the counter's name.

Columns: counter_name, timestamp (µs, Unix time), value, hostname. GPUs are not told apart: the samples of all stand
under one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.csv import nanoseconds, read_rows
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.formats import LATENCYPRISM_COUNTERS

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source

#: process_cpu_usage_4013652; some samples have the number as a float, as in 4.013652e+06.
_OF_PROCESS = r"^(process_.*)_([0-9]+(?:\.[0-9]+)?(?:e\+?[0-9]+)?)$"
#: Units by the counter's name; the first that matches.
_UNITS = (
    (r"_frequency$", "MHz"),
    (r"^gpu_sm_(util|occupancy)$", "ratio"),
    (r"^process_gpu_mem_usage$", "bytes"),
    (r"_usage$", "%"),
    (r"_rate$|^gpu_(link|pcie)_", "bytes/s"),
    (r"^host_mem_", "kB"),
    (r"_used$|_free$|^process_mem_", "bytes"),
    (r"_temp$", "°C"),
    (r"_power$", "W"),
)


def read(source: Source) -> Trace:
    """The file as the table `counters`. Raises CorruptInput, StepscopeError (size limit)."""
    issues = IssueLog()
    samples = read_samples(source, issues)
    first = samples["ts_ns"].min()
    origin = first if isinstance(first, int) else 0
    meta = Meta(
        source.label,
        "latencyprism-counters",
        n_events=samples.height,
        size_bytes=source.n_bytes,
        framework="LatencyPrism",
        origin_unix_ns=origin,
    )
    return Trace(meta, {"counters": placed(samples, origin), "issues": issues.table()})


def read_samples(source: Source, issues: IssueLog) -> pl.DataFrame:
    """The samples as in `counters`, but in Unix time. Rows without time, name or value are dropped and counted.

    Raises CorruptInput (columns missing, no rows), StepscopeError (size limit).
    """
    rows = read_rows(source, LATENCYPRISM_COUNTERS, issues)
    name = pl.col("counter_name")
    number = name.str.extract(_OF_PROCESS, 2).cast(pl.Float64)
    pid = pl.when(number == number.round()).then(number.cast(pl.Int64, strict=False))
    metric = pl.when(pid.is_not_null()).then(name.str.extract(_OF_PROCESS, 1)).otherwise(name)
    found = rows.select(
        nanoseconds("timestamp").alias("ts_ns"),
        metric.alias("metric"),
        pid.alias("pid"),
        pl.col("value").cast(pl.Float64, strict=False),
    )
    sound = found.drop_nulls(["ts_ns", "metric", "value"])
    issues.add(
        "counters_dropped", "warning", found.height - sound.height, f"rows of {source.label} without time or value"
    )
    pooled = pl.col("metric").str.starts_with("gpu_")
    issues.add("counters_pooled", "info", sound.filter(pooled).height, "samples of all GPUs stand under one name")
    of_process = pl.format("pid:{}", "pid")
    return sound.with_columns(
        # Null where it is not known which accelerator it was.
        device=pl.when(pl.col("pid").is_not_null()).then(of_process).when(~pooled).then(pl.lit("host")),
        unit=unit_of(pl.col("metric")),
    )


def placed(samples: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """Samples in Unix time as the table `counters`, in order of time from the origin."""
    moved = samples.with_columns(pl.col("ts_ns") - origin_ns).sort("ts_ns", maintain_order=True)
    return COUNTERS.conform(moved)


def unit_of(metric: pl.Expr) -> pl.Expr:
    """The unit of a counter, by its name; null where the name does not tell."""
    found: pl.Expr = pl.lit(None, dtype=pl.String)
    for pattern, unit in reversed(_UNITS):
        found = pl.when(metric.str.contains(pattern)).then(pl.lit(unit)).otherwise(found)
    return found
