"""LatencyPrism's perf_data.csv (what each function took of each cycle) and counters_data.csv (samples of resources).

perf_data holds results, not events: a row is a cycle, process, function, device and metric. Columns: cycle, pid,
hostname, beta_pct, function_name, metric_name (N/A: none), device, func_type, mu_pct, sigma_pct, duration,
interpolation_status, anchor_name, anchor_dur_us, cycle_start_ts, instances_count, simple_name. Durations are µs,
cycle_start_ts is µs of Unix time. The samples in the counters_data.csv of the same folder are read with it.

counters_data has the columns counter_name (some with the number of a process), timestamp (µs, Unix time), value and
hostname. It does not distinguish GPUs: the samples of all have the same name.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.readers.common.source import IssueLog, Source
from stepscope.readers.formats import BYTE_ORDER_MARK, csv_fields, header_of
from stepscope.readers.latencyprism import LATENCYPRISM_COLUMNS, LATENCYPRISM_COUNTERS

if TYPE_CHECKING:
    from collections.abc import Sequence


_OPTIONAL = (
    "hostname", "func_type", "sigma_pct", "duration", "interpolation_status", "anchor_name", "cycle_start_ts",
    "instances_count", "simple_name",
)  # fmt: skip
_NONE = "N/A"
_HINT = "copy or export it again"
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


def read(source: Source) -> Results:
    """The file as the results `cycles` and `attribution`, and the samples of the same folder as the table `counters`.

    Raises CorruptInput (columns missing, no usable row), StepscopeError (size limit). Rows without a number
    of their cycle, process, β or the cycle's duration are dropped and counted in `issues`.
    """
    issues = IssueLog()
    rows = read_rows(source, LATENCYPRISM_COLUMNS, issues)
    rows = rows.with_columns(pl.lit(None, pl.String).alias(name) for name in _OPTIONAL if name not in rows.columns)
    rows = _numbered(rows)
    sound = rows.drop_nulls(["cycle", "pid", "recorded_beta", "cycle_ns"])
    issues.add("rows_dropped", "warning", rows.height - sound.height, "rows without a cycle, process, β or duration")
    if sound.is_empty():
        raise CorruptInput("not one of its rows can be read", _HINT, path=source.label)
    samples = _companion_samples(source, issues)
    times = [sound["start_ns"].min(), None if samples is None else samples["ts_ns"].min()]
    known = [time for time in times if isinstance(time, int)]
    origin = min(known) if known else None
    tables = {"issues": issues.table()}
    if samples is not None:
        tables["counters"] = placed(samples, origin or 0)
    results = ((CYCLES, _cycles(sound, origin or 0)), (ATTRIBUTION, _attribution(sound)))
    meta = Meta(
        source.label,
        "latencyprism",
        n_events=rows.height,
        size_bytes=source.n_bytes,
        framework="LatencyPrism",
        origin_unix_ns=origin,
    )
    return Results(meta, tables, {table.name: Result(table, table.conform(frame)) for table, frame in results})


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


def _companion_samples(source: Source, issues: IssueLog) -> pl.DataFrame | None:
    """The samples of the same run, if their file is in the same folder. An unreadable file becomes an issue."""
    path = Path(source.path)
    stem, suffix, _ = path.name.rpartition("perf_data.csv")
    if source.member is not None or not suffix:
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


def read_counters_data(source: Source) -> Trace:
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
    samples = rows.select(
        nanoseconds("timestamp").alias("ts_ns"),
        metric.alias("metric"),
        pid.alias("pid"),
        pl.col("value").cast(pl.Float64, strict=False),
    )
    sound = samples.drop_nulls(["ts_ns", "metric", "value"])
    issues.add(
        "counters_dropped", "warning", samples.height - sound.height, f"rows of {source.label} without time or value"
    )
    pooled = pl.col("metric").str.starts_with("gpu_")
    issues.add("counters_pooled", "info", sound.filter(pooled).height, "samples of all GPUs have one name")
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
    """The unit of a counter, by its name; null where the name does not show it."""
    units: pl.Expr = pl.lit(None, dtype=pl.String)
    for pattern, unit in reversed(_UNITS):
        units = pl.when(metric.str.contains(pattern)).then(pl.lit(unit)).otherwise(units)
    return units


def read_rows(source: Source, needed: Sequence[str], issues: IssueLog) -> pl.DataFrame:
    """The file's rows as text, empty fields null. A last line that breaks off is dropped and counted in `issues`.

    Raises CorruptInput (a needed column missing, not one whole row), StepscopeError (size limit).
    """
    text = b"".join(source.chunks()).removeprefix(BYTE_ORDER_MARK)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    header = header_of(text)
    missing = [name for name in needed if name not in header]
    if missing:
        raise CorruptInput(f"no column {', '.join(missing)}", _HINT, path=source.label, offset=0)
    end = text.rfind(b"\n") + 1
    rest = text[end:]
    if rest and (len(header_of(rest)) < len(header) or rest.count(b'"') % 2):
        issues.add("truncated", "error", 1, f"the file ends inside a row, after {source.n_bytes:,} bytes")
        text = text[:end]
    try:
        rows = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError:  # one stray quote is enough
        rows = _line_by_line(text, header, issues)
    if rows.is_empty():
        raise CorruptInput("it holds a header and not one whole row", _HINT, path=source.label)
    return rows


def _line_by_line(text: bytes, header: list[str], issues: IssueLog) -> pl.DataFrame:
    """The lines that are rows by themselves: slow, but damage stays where it is."""
    lines = text.decode("utf-8", "replace").split("\n")[1:]
    fields = [csv_fields(line.rstrip("\r")) for line in lines if line.strip()]
    whole = [row for row in fields if len(row) == len(header)]
    issues.add("rows_dropped", "warning", len(fields) - len(whole), "rows with too many or too few fields")
    columns = {name: [row[header.index(name)] or None for row in whole] for name in header}
    return pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))


def nanoseconds(column: str) -> pl.Expr:
    """A column of microseconds, written as decimals, as whole nanoseconds; null where it is no number.

    Points in time have too many digits for a double: they are read as decimals.
    """
    return (pl.col(column).cast(pl.Decimal(19, 3), strict=False) * 1000).cast(pl.Int64, strict=False)
