"""Counters that `stepscope record` leaves: a side file (CSV or Parquet, long form) on a trace's time axis.

Format: header `ts_ns,metric,unit,device,value`; `ts_ns` is Unix time; `device` is `host`, `cpuN`, `gpuN`, `pid:N`, or a
disk's or network interface's name. A counters.csv[.gz|.zst] or
counters.parquet in the folder of a trace is read with it. Without a trace the counters are a trace of their own. Both
get what the recording's meta.json says.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import polars as pl
from msgspec.structs import replace

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.schema import COUNTERS, DEVICES
from stepscope.core.trace import Meta, Trace, extent_ns
from stepscope.readers.common.columns import whole_number
from stepscope.readers.common.source import IssueLog, Source, with_issues
from stepscope.readers.recorded import COUNTER_COLUMNS, recording_of

if TYPE_CHECKING:
    from collections.abc import Mapping
_HINT = "the header must be ts_ns,metric,unit,device,value; see docs/counters.md"
FORMAT = "counters"
_SEVERITIES = {"error", "warning", "info"}
#: Of meta.json, what the trace's metadata repeat.
_FACTS = ("command", "system", "cpu", "cores", "memory_bytes", "hz", "start_unix_ns", "end_unix_ns", "exit_code")


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
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, UnicodeError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptInput(f"not a counters file: {reason}", _HINT, path=path) from None
    missing = [name for name in COUNTER_COLUMNS if name not in frame.columns]
    if missing:
        raise CorruptInput(f"not a counters file: no column {', '.join(missing)}", _HINT, path=path)
    return frame.select(pl.col(name).cast(dtype, strict=False) for name, dtype in COUNTER_COLUMNS.items())


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
    sound = frame.drop_nulls(["ts_ns", "metric", "device", "value"]).filter(pl.col("value").is_finite())
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


def read(source: Source) -> Trace:
    """The samples as the table `counters`, from the first of them on; the facts are those of meta.json.

    Raises CorruptInput (not one whole line), StepscopeError (size limit).
    """
    issues = IssueLog()
    rows = sound_rows(read_counters(source, issues), source.label, issues)
    recording = recording_of(source.path)
    first = rows["ts_ns"].min()
    origin = first if isinstance(first, int) else whole_number(recording.get("start_unix_ns"))
    if rows.is_empty():
        issues.add("no_samples", "error", 1, "the recording ended before its first sample was written")
    devices = _devices(rows, recording)
    tables = {"devices": devices, "counters": placed_on(rows, origin or 0, devices), "issues": issues.table()}
    meta = Meta(source.label, FORMAT, n_events=rows.height, size_bytes=source.n_bytes, origin_unix_ns=origin)
    return with_recording(Trace(meta, tables), source.path)


def with_recording(trace: Trace, path: str) -> Trace:
    """The trace with what the meta.json in the folder of `path` says: host, facts, and issues for what is missing."""
    recording = recording_of(path)
    if not recording:
        return trace
    issues = IssueLog()
    for issue in _listed(recording, "issues"):
        said = str(issue.get("severity"))
        n = whole_number(issue.get("count"), 31) or 1
        issues.add(str(issue.get("code")), said if said in _SEVERITIES else "warning", n, str(issue.get("example")))
    if recording.get("end_unix_ns") is None:
        issues.add(
            "recording_cut", "warning", 1, "the recorder was killed, or the recording goes on: its end is missing"
        )
    facts = {name: _text(recording[name]) for name in _FACTS if recording.get(name) is not None}
    host = recording.get("host")
    host = trace.meta.host or (host if isinstance(host, str) else None)
    meta = replace(trace.meta, host=host, facts={**facts, **trace.meta.facts})
    table = issues.table()
    tables = trace.tables if table.is_empty() else {**trace.tables, "issues": pl.concat([trace.issues, table])}
    return replace(trace, meta=meta, tables=tables)


def _devices(rows: pl.DataFrame, recording: Mapping[str, Any]) -> pl.DataFrame:
    """The accelerators of the samples, as described by meta.json."""
    indices = rows["device"].unique().str.extract(r"^gpu(\d{1,9})$").drop_nulls().cast(pl.Int32).sort()
    by_name = {device.get("device"): device for device in _listed(recording, "devices")}
    of_each = [by_name.get(f"gpu{i}", {}) for i in indices]
    frame = pl.DataFrame(
        {
            "device_id": pl.int_range(len(indices), dtype=pl.UInt32, eager=True),
            "type": [_text(device.get("type") or "cuda") for device in of_each],
            "index": indices,
            "name": [_text(device["name"]) if device.get("name") else None for device in of_each],
            "memory_bytes": [whole_number(device.get("memory_bytes")) for device in of_each],
        },
        schema_overrides={"name": pl.String, "memory_bytes": pl.Int64},
    )
    return DEVICES.conform(frame)


def _listed(recording: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    listed = recording.get(name)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
