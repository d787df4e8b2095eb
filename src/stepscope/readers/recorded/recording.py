"""What `stepscope record` leaves: counters of a job as a trace of their own, and what meta.json says of them.

A folder with a profile is read as that profile, with the counters beside it; one without is read from its counters.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.schema import DEVICES
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.recorded.counters import placed_on, read_counters, sound_rows
from stepscope.readers.recorded.side_files import recording_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.common.source import Source

FORMAT = "counters"
_SEVERITIES = {"error", "warning", "info"}
#: Of meta.json, what the trace's metadata repeat.
_FACTS = ("command", "system", "cpu", "cores", "memory_bytes", "hz", "start_unix_ns", "end_unix_ns", "exit_code")


def read(source: Source) -> Trace:
    """The samples as the table `counters`, from the first of them on; what meta.json beside them says as facts.

    Raises CorruptInput (not one whole line), StepscopeError (size limit).
    """
    issues = IssueLog()
    rows = sound_rows(read_counters(source, issues), source.label, issues)
    recording = recording_of(source.path)
    first = rows["ts_ns"].min()
    origin = first if isinstance(first, int) else recording.get("start_unix_ns")
    if rows.is_empty():
        issues.add("no_samples", "error", 1, "the recording ended before its first sample was written")
    devices = _devices(rows, recording)
    tables = {"devices": devices, "counters": placed_on(rows, origin or 0, devices), "issues": issues.table()}
    meta = Meta(source.label, FORMAT, n_events=rows.height, size_bytes=source.n_bytes, origin_unix_ns=origin)
    return with_recording(Trace(meta, tables), source.path)


def with_recording(trace: Trace, path: str) -> Trace:
    """The trace with what a recording's meta.json beside `path` says: the host, and as issues what is missing."""
    recording = recording_of(path)
    if not recording:
        return trace
    issues = IssueLog()
    for issue in recording.get("issues") or []:
        severity = issue.get("severity") if issue.get("severity") in _SEVERITIES else "warning"
        issues.add(str(issue.get("code")), severity, int(issue.get("count") or 1), str(issue.get("example")))
    if recording.get("end_unix_ns") is None:
        issues.add(
            "recording_cut", "warning", 1, "the recorder was killed, or the recording goes on: its end is missing"
        )
    facts = {name: _text(recording[name]) for name in _FACTS if recording.get(name) is not None}
    meta = replace(trace.meta, host=trace.meta.host or recording.get("host"), facts={**facts, **trace.meta.facts})
    found = issues.table()
    tables = trace.tables if found.is_empty() else {**trace.tables, "issues": pl.concat([trace.issues, found])}
    return replace(trace, meta=meta, tables=tables)


def _devices(rows: pl.DataFrame, recording: Mapping[str, Any]) -> pl.DataFrame:
    """The accelerators that samples name, with what meta.json says of them."""
    indices = rows["device"].unique().str.extract(r"^gpu(\d{1,9})$").drop_nulls().cast(pl.Int32).sort()
    by_name = {device.get("device"): device for device in recording.get("devices") or []}
    of_each = [by_name.get(f"gpu{i}", {}) for i in indices]
    frame = pl.DataFrame(
        {
            "device_id": pl.int_range(len(indices), dtype=pl.UInt32, eager=True),
            "type": [device.get("type") or "cuda" for device in of_each],
            "index": indices,
            "name": pl.Series([device.get("name") for device in of_each], dtype=pl.String),
            "memory_bytes": pl.Series([device.get("memory_bytes") for device in of_each], dtype=pl.Int64),
        }
    )
    return DEVICES.conform(frame)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
