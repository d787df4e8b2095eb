"""Counters recorded beside a trace: a CSV or Parquet side file in long form, placed on the trace's time axis.

Format: header `ts_ns,metric,unit,device,value`; `ts_ns` is Unix time; `device` is `host`, `cpuN`, `gpuN`, `pid:N`, or a
disk's or network interface's name. Picked up when called counters.csv[.gz|.zst] or counters.parquet beside a trace.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import extent_ns
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.source import Source
from stepscope.readers.recorded.side_files import with_issues

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

COLUMNS = {
    "ts_ns": pl.Int64(),
    "metric": pl.String(),
    "unit": pl.String(),
    "device": pl.String(),
    "value": pl.Float64(),
}


def read_counters(path: str | Source, issues: IssueLog | None = None) -> pl.DataFrame:
    """The side file as recorded: ts_ns (Unix), metric, unit, device, value. Rows that do not parse have nulls.

    With `issues` a file that breaks off, as when its recorder was killed, is read up to its last whole row.
    Raises StepscopeError (unreadable), CorruptInput (columns missing, not CSV or Parquet, damaged without `issues`).
    """
    source = Source(path) if isinstance(path, str) else path
    text = b"".join(source.chunks())
    path = source.label
    if source.damage:
        end = text.rfind(b"\n") + 1
        if issues is None or not text[:end] or text.startswith(b"PAR1"):
            raise CorruptInput(source.damage, "copy the file again", path=path, offset=source.n_bytes)
        issues.add("counters_cut", "warning", 1, f"{path}: {source.damage}; read up to the last whole row")
        text = text[:end]
    try:
        if text.startswith(b"PAR1"):
            frame = pl.read_parquet(io.BytesIO(text))
        else:
            frame = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True)
    except (pl.exceptions.PolarsError, UnicodeError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptInput(f"not a counters file: {reason}", _HINT, path=path) from None
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise CorruptInput(f"not a counters file: no column {', '.join(missing)}", _HINT, path=path)
    return frame.select(pl.col(name).cast(dtype, strict=False) for name, dtype in COLUMNS.items())


_HINT = "the header must be ts_ns,metric,unit,device,value; see docs/counters.md"


def attach(trace: Trace, path: str, *, required: bool) -> Trace:
    """The trace with the side file's samples in its `counters` table, and in `issues` what could not be used.

    With `required` (the user named the file) a file that cannot be read raises; otherwise it is an issue.
    """
    issues = IssueLog()
    try:
        frame = read_counters(path, issues)
    except StepscopeError as error:
        if required:
            raise
        issues.add("counters_unreadable", "warning", 1, error.message)
        return with_issues(trace, issues)
    sound = sound_rows(frame, path, issues)
    origin = trace.meta.origin_unix_ns
    if origin is None:
        issues.add("counters_unplaced", "warning", sound.height, "the trace does not say when it began, in Unix time")
        return with_issues(trace, issues)
    placed = placed_on(sound, origin, trace.devices)
    spans = trace.spans
    if not spans.is_empty():
        first, last = extent_ns(spans)
        inside = placed.filter(pl.col("ts_ns").is_between(first - 10**9, last + 10**9)).height
        if not inside and placed.height:
            issues.add("counters_elsewhere", "warning", placed.height, "no sample lies within a second of the trace")
    both = pl.concat([trace.counters, placed])
    return with_issues(trace.with_tables(counters=both), issues)


def sound_rows(frame: pl.DataFrame, path: str, issues: IssueLog) -> pl.DataFrame:
    """The rows that have a time, a metric, a device and a value; the others are counted in `issues`."""
    sound = frame.drop_nulls(["ts_ns", "metric", "device", "value"])
    what = f"rows of {path} without time, metric or value"
    issues.add("counters_dropped", "warning", frame.height - sound.height, what)
    return sound


def placed_on(rows: pl.DataFrame, origin_unix_ns: int, devices: pl.DataFrame) -> pl.DataFrame:
    """Rows in Unix time as the table `counters`, in order of time from the origin; `devices` is a trace's table."""
    accelerators = devices.filter(pl.col("type") != "cpu").select(
        pl.format("gpu{}", "index").alias("device"), pl.col("device_id").alias("_id")
    )
    placed = (
        rows.with_columns(
            pl.col("ts_ns") - origin_unix_ns,
            pl.col("device").str.extract(r"^pid:(\d+)$").cast(pl.Int64, strict=False).alias("pid"),
        )
        .join(accelerators, on="device", how="left", maintain_order="left")
        .rename({"_id": "device_id"})
        .sort("ts_ns", maintain_order=True)
    )
    return COUNTERS.conform(placed)
