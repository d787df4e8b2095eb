"""Hand-made Chrome traces: events as literals, documents as bytes, and reading them back as tables."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.readers import open_trace

if TYPE_CHECKING:
    import polars as pl

    from stepscope.core.trace import Trace

Event = dict[str, Any]


def x(name: str, ts: Any, dur: Any, cat: str | None = "cpu_op", *, pid: Any = 1, tid: Any = 1, **args: Any) -> Event:
    """A complete event. Keys of `args` are those of the format with underscores for spaces: External_id."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    if cat is None:
        del event["cat"]
    if args:
        event["args"] = spaced(args)
    return event


def spaced(args: dict[str, Any]) -> dict[str, Any]:
    """The keys with blanks where Python needs underscores."""
    kept = {"memory bandwidth (GB/s)", "est. achieved occupancy %", "correlation", "world_size", "tasktopo_node"}
    return {k if k in kept or k.startswith("wait_on") else k.replace("_", " "): v for k, v in args.items()}


def op(name: str, ts: Any, dur: Any, **more: Any) -> Event:
    """A framework operator on thread 1."""
    return x(name, ts, dur, "cpu_op", **more)


def call(name: str, ts: Any, dur: Any, correlation: Any, **more: Any) -> Event:
    """A runtime call on thread 1."""
    return x(name, ts, dur, "cuda_runtime", correlation=correlation, **more)


def kernel(
    name: str,
    ts: Any,
    dur: Any,
    correlation: Any,
    *,
    device: Any = 0,
    stream: Any = 7,
    cat: str = "kernel",
    **more: Any,
) -> Event:
    """A kernel on stream 7 of device 0."""
    return x(name, ts, dur, cat, pid=device, tid=stream, device=device, stream=stream, correlation=correlation, **more)


def arrow(ph: str, ident: Any, ts: Any, *, pid: Any = 1, tid: Any = 1, cat: str = "ac2g") -> Event:
    """One end of a flow arrow."""
    return {"ph": ph, "cat": cat, "name": cat, "id": ident, "pid": pid, "tid": tid, "ts": ts}


def label(kind: str, text: str, *, pid: Any = 1, tid: Any = 0) -> Event:
    """A metadata event that names a process or thread."""
    key = "labels" if kind == "process_labels" else "name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {key: text}}


def packed(events: Any, **meta: Any) -> bytes:
    """A compact document."""
    return json.dumps({**meta, "traceEvents": events}, separators=(",", ":"), ensure_ascii=False).encode()


def read(document: bytes | list[Any], name: str = "trace.json", *, max_bytes: int | None = None, **meta: Any) -> Trace:
    """The trace in a document, or of a list of events."""
    data = document if isinstance(document, bytes) else packed(document, **meta)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return open_trace(str(path), max_bytes=max_bytes)


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns as tuples."""
    return frame.select(columns).rows()


def column(frame: pl.DataFrame, name: str) -> list[Any]:
    """One column as a list."""
    return frame[name].to_list()


def issues(trace: Trace) -> dict[str, int]:
    """Counts of the issues by code, without the links' coverage."""
    coverage = {"no_launch", "no_operator"}
    return {code: n for code, n in trace.issues.select("code", "count").rows() if code not in coverage}


def by_name(trace: Trace, *columns: str) -> dict[str, Any]:
    """Spans' columns by span name: the value of one column, a tuple of several."""
    found = {row[0]: row[1:] for row in trace.spans.select("name", *columns).rows()}
    return {name: values[0] for name, values in found.items()} if len(columns) == 1 else found


def linked(trace: Trace, key: str) -> dict[str, str | None]:
    """For each span's name the name of the span that its parent_id, launch_id or op_id points at."""
    names = column(trace.spans, "name")
    return {n: None if i is None else names[i] for n, i in zip(names, column(trace.spans, key), strict=True)}
