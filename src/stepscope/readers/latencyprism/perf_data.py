"""LatencyPrism's perf_data.csv: what each function took of each cycle, and how resources fared meanwhile.

These are results, not events: a row is a cycle, process, function, device and metric. Columns: cycle, pid, hostname,
beta_pct, function_name, metric_name (N/A: none), device, func_type, mu_pct, sigma_pct, duration, interpolation_status,
anchor_name, anchor_dur_us, cycle_start_ts, instances_count, simple_name. Durations are µs, cycle_start_ts is µs of Unix
time. The samples in the counters_data.csv beside it are read with it.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import ATTRIBUTION, CYCLES
from stepscope.core.trace import Meta, Result, Results
from stepscope.readers.common.csv import nanoseconds, read_rows
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.source import Source
from stepscope.readers.formats import LATENCYPRISM_COLUMNS
from stepscope.readers.latencyprism.counters_data import placed, read_samples, unit_of

_OTHERS = (
    "hostname", "func_type", "sigma_pct", "duration", "interpolation_status", "anchor_name", "cycle_start_ts",
    "instances_count", "simple_name",
)  # fmt: skip
_NONE = "N/A"
_CATEGORIES = {
    "oncpu": "sched_oncpu", "runq": "sched_runq", "gpu_compute": "kernel", "gpu_comm": "kernel",
    "gpu_memcpy_h2d": "memcpy", "gpu_memcpy_d2h": "memcpy", "gpu_memcpy_d2d": "memcpy", "cpu_sync": "sync",
    "disk_read_and_write": "io",
}  # fmt: skip
#: 100 μ of a counter with such a name is the counter as sampled, for the recorder divides these by 100; of others it
#: is 100 times that.
_DIVIDED = "usage|rate|util|occupancy"
#: If the recorder knows the machine it gives these as shares of what the machine has, under the same name. No clock
#: is as slow as a few MHz, no memory as small as a few bytes, so a small value is a share.
_PERHAPS_SHARES = ("cpu_frequency", "gpu_mem_used")
_MOST_AS_SHARE = 10


def read(source: Source) -> Results:
    """The file as the results `cycles` and `attribution`, and as table `counters` the file of samples beside it.

    Raises CorruptInput (columns missing, no usable row), StepscopeError (size limit). Rows without a number
    of their cycle, process, β or the cycle's duration are dropped and counted in `issues`.
    """
    issues = IssueLog()
    rows = read_rows(source, LATENCYPRISM_COLUMNS, issues)
    rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in _OTHERS if name not in rows.columns)
    rows = _numbered(rows)
    sound = rows.drop_nulls(["cycle", "pid", "recorded_beta", "cycle_ns"])
    issues.add("rows_dropped", "warning", rows.height - sound.height, "rows without a cycle, process, β or duration")
    if sound.is_empty():
        raise CorruptInput("not one of its rows can be read", "copy or export it again", path=source.label)
    samples = _samples_beside(source, issues)
    times = [sound["start_ns"].min(), None if samples is None else samples["ts_ns"].min()]
    known = [time for time in times if isinstance(time, int)]
    origin = min(known) if known else None
    tables = {"issues": issues.table()}
    if samples is not None:
        tables["counters"] = placed(samples, origin or 0)
    found = ((CYCLES, _cycles(sound, origin or 0)), (ATTRIBUTION, _attribution(sound)))
    meta = Meta(
        source.label,
        "latencyprism",
        n_events=rows.height,
        size_bytes=source.n_bytes,
        framework="LatencyPrism",
        origin_unix_ns=origin,
    )
    return Results(meta, tables, {table.name: Result(table, table.conform(frame)) for table, frame in found})


def _numbered(rows: pl.DataFrame) -> pl.DataFrame:
    """Columns as numbers where they are some, N/A and blanks as null."""
    whole = {"cycle": "cycle", "pid": "pid", "calls": "instances_count"}
    ratios = {"recorded_beta": "beta_pct", "recorded_mu": "mu_pct", "recorded_sigma": "sigma_pct"}
    times = {"total_ns": "duration", "cycle_ns": "anchor_dur_us", "start_ns": "cycle_start_ts"}
    texts = {
        "host": "hostname", "name": "function_name", "metric": "metric_name", "device": "device",
        "recorded_category": "func_type", "short_name": "simple_name", "anchor": "anchor_name",
    }  # fmt: skip
    numbers = {name: pl.col(column).cast(pl.Float64, strict=False) for name, column in ratios.items()}
    return rows.select(
        **{name: pl.col(column).cast(pl.Int64, strict=False) for name, column in whole.items()},
        **{name: pl.when(number.is_finite()).then(number) for name, number in numbers.items()},
        **{name: nanoseconds(column) for name, column in times.items()},
        **{name: pl.when(pl.col(column) != _NONE).then(pl.col(column)) for name, column in texts.items()},
        status=pl.col("interpolation_status"),
    )


def _cycles(rows: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    facts = rows.select(
        "cycle", "host", "pid", "anchor", dur_ns="cycle_ns", ts_ns=pl.col("start_ns") - origin_ns
    )  # fmt: skip
    return facts.unique(maintain_order=True).sort("cycle", "host", "pid", maintain_order=True)


def _attribution(rows: pl.DataFrame) -> pl.DataFrame:
    metric, mu = pl.col("metric"), pl.col("recorded_mu")
    scale = pl.when(metric.str.contains(_DIVIDED)).then(1.0).otherwise(0.01)
    share = metric.is_in(_PERHAPS_SHARES) & (mu.abs() * scale < _MOST_AS_SHARE)
    recorded = pl.col("recorded_category")
    is_fill = recorded.str.starts_with("gpu_memcpy") & pl.col("name").str.starts_with("Memset")
    category = recorded.replace_strict(_CATEGORIES, default="other")
    status = {" ": "all", "*": "some", "**": "none"}
    sampled = pl.col("status").replace_strict(status, default=None, return_dtype=pl.String)
    return rows.with_columns(
        device=pl.col("device").str.replace("^Host$", "host").str.replace("^GPU ", "gpu"),
        category=pl.when(is_fill).then(pl.lit("memset")).otherwise(category),
        beta_ratio=pl.col("recorded_beta") / 100,
        unit=pl.when(share).then(pl.lit("ratio")).otherwise(unit_of(metric)),
        mu=mu * scale,
        sigma=pl.col("recorded_sigma") * scale,
        sampled=pl.when(metric.is_not_null()).then(sampled),
    )


def _samples_beside(source: Source, issues: IssueLog) -> pl.DataFrame | None:
    """The samples of the same run, if their file lies in the same folder. If it cannot be read that is an issue."""
    path = Path(source.path)
    stem, found, _ = path.name.rpartition("perf_data.csv")
    if source.member is not None or not found:
        return None
    names = [f"{stem}counters_data.csv{packing}" for packing in ("", ".gz", ".zst", ".xz", ".bz2")]
    side = next((str(path.with_name(name)) for name in names if path.with_name(name).exists()), None)
    if side is None:
        return None
    try:
        return read_samples(Source(side), issues)
    except StepscopeError as error:
        issues.add("counters_unreadable", "warning", 1, error.message)
        return None
