"""Kineto and other Chrome traces: PyTorch 1.8 to 2.x on any accelerator, Ascend and XLA lanes, generic spans.

Format: the Trace Event Format (Chrome), as written by pytorch/kineto's `output_json.cpp`; times are microseconds.
"""

from __future__ import annotations

import gc
import json
import re
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.core.files import rank_in
from stepscope.core.trace import Meta, Trace
from stepscope.readers.chrome.build import build_tables
from stepscope.readers.chrome.event_columns import Columns
from stepscope.readers.chrome.events import ExactEvent
from stepscope.readers.chrome.json import Document
from stepscope.readers.common.issues import IssueLog
from stepscope.readers.common.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.readers.common.source import Source

_DURATION = re.compile(rb'"dur"\s*:\s*-?[0-9]+(\.)?')
#: Parts of the document that are kept as JSON text: of the machine and of the job, not of what ran.
_KEPT_WHOLE = ("deviceProperties", "distributedInfo")
_YEAR_2001_NS, _YEAR_2100_NS = 10**18, 41 * 10**17


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: one block of events and the columns so far.

    Raises UnknownFormat, CorruptInput, StepscopeError (size limit); lesser damage is counted in `issues`.
    """
    issues = IssueLog()
    document = Document(source, issues)
    columns: Columns | None = None
    duration: re.Match[bytes] | None = None
    collecting = gc.isenabled()
    gc.disable()  # decoded events hold no cycles; collecting them costs a third of the time
    try:
        for events, block in document.blocks():
            if columns is None:
                columns = Columns(issues, exact=document.kind is ExactEvent)
            duration = duration or _DURATION.search(block)
            columns.add(events, block)
        columns = columns or Columns(issues, exact=False)
        rank = _rank(document.meta, source.path)
        tables, origin_ns = build_tables(columns, document.meta, issues, rank=rank, host=_host(document.meta))
    finally:
        if collecting:
            gc.enable()
    give_back(source.n_bytes)
    if not columns.phases and (columns.n_events or document.n_lost):
        if columns.n_events or document.bare:
            msg = f"{source.label} is a list, but not of trace events"
            raise UnknownFormat(msg, "see `stepscope formats` for what can be read")
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the trace again", path=source.label, offset=document.lost_at)
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the trace holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    return Trace(_meta(document.meta, source, columns, rank, origin_ns, duration), tables)


def _rank(meta: Mapping[str, Any], path: str) -> int | None:
    rank = _small(_job(meta).get("rank"))
    return rank_in(path) if rank is None else rank


def _job(meta: Mapping[str, Any]) -> dict[str, Any]:
    info = meta.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _small(value: object) -> int | None:
    """A number of 0 or more that fits a column of ranks, given as such or as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _host(meta: Mapping[str, Any]) -> str | None:
    host = meta.get("host_name") or meta.get("hostname")
    return str(host) if host else None


def _meta(
    meta: Mapping[str, Any],
    source: Source,
    columns: Columns,
    rank: int | None,
    origin_ns: int,
    duration: re.Match[bytes] | None,
) -> Meta:
    base = meta.get("baseTimeNanoseconds")
    unix: int | None
    if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < 2**62:
        unix = origin_ns + base
    else:
        unix = origin_ns if _YEAR_2001_NS < origin_ns < _YEAR_2100_NS else None
    facts = {k: str(v) for k, v in meta.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    if backend := _job(meta).get("backend"):
        facts["backend"] = str(backend)
    for key in _KEPT_WHOLE:
        if meta.get(key):
            facts[key] = json.dumps(meta[key])
    return Meta(
        path=source.label,
        format="kineto",
        n_events=columns.n_events,
        size_bytes=source.n_bytes,
        rank=rank,
        world_size=_small(_job(meta).get("world_size")),
        host=_host(meta),
        framework=_framework(meta, columns),
        framework_version=next((str(meta[key]) for key in ("pytorch_version", "jax_version") if key in meta), None),
        origin_unix_ns=unix,
        origin_recorded_ns=origin_ns,
        decimal_times=bool(duration and duration[1]),
        facts=facts,
    )


def _framework(meta: Mapping[str, Any], columns: Columns) -> str | None:
    if "schemaVersion" in meta or {"cpu_op", "Operator", "cuda_runtime"} & set(columns.cats):
        return "PyTorch"
    processes = [t.get("process_name", "") for t in columns.threads.values()]
    if "jax_version" in meta or any(p.startswith("/device:") for p in processes):
        return "JAX/XLA"
    return "Ascend" if any(p in ("CANN", "Ascend Hardware") for p in processes) else None
