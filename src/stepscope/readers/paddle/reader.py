"""PaddlePaddle's profiles, 2.x and 3.x: protobuf (.pb) and Chrome-tracing JSON, with neither Paddle nor protobuf.

Format: paddle/fluid/platform/profiler of Paddle (schema 1.0.2). Protobuf holds exact times; JSON rounds them to single
precision, and writes names without escaping them.
"""

from __future__ import annotations

from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING

from stepscope.core.errors import CorruptInput
from stepscope.core.files import rank_in
from stepscope.core.patterns import regex
from stepscope.core.trace import Meta, Trace
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog, give_back
from stepscope.readers.paddle import PADDLE_PROTOBUF, _json, _protobuf
from stepscope.readers.paddle._tables import build_tables

if TYPE_CHECKING:
    from stepscope.readers.common.source import Source
    from stepscope.readers.paddle._columns import Recording

_HEAD = 64
_WORKER = regex(r"host_(?P<host>.+?)pid_\d+(?:_time_|\.|$)")
_YEAR_2001_NS, _YEAR_2100_NS = 10**18, 41 * 10**17


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: the unpacked file and the columns.

    Raises CorruptInput (no event can be read of a file that is damaged), StepscopeError (size limit); lesser damage is
    counted in `issues`.
    """
    issues = IssueLog()
    chunks = source.chunks()
    head = b""
    while len(head) < _HEAD and (chunk := next(chunks, b"")):
        head += chunk
    chunks = chain((head,), chunks)
    is_protobuf = PADDLE_PROTOBUF.match(head) is not None
    recording = _protobuf.decode(Wire(chunks), issues) if is_protobuf else _json.decode(b"".join(chunks), issues)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    if not recording.n_events and issues.has("error"):
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the profile again", path=source.label, offset=source.n_bytes)
    rank = rank_in(source.path)
    worker = _WORKER.search(PurePath(source.path).name)
    host = worker["host"] if worker else None
    tables, origin_ns = build_tables(recording, issues, rank=rank, host=host)
    give_back()
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the trace holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    return Trace(_meta(recording, source, rank, host, origin_ns), tables)


def _meta(recording: Recording, source: Source, rank: int | None, host: str | None, origin_ns: int) -> Meta:
    facts = dict(recording.extra)
    if recording.version is not None:
        facts["schemaVersion"] = recording.version
    if recording.span_index is not None:
        facts["span_index"] = str(recording.span_index)
    return Meta(
        path=source.label,
        format="paddle",
        n_events=recording.n_events,
        size_bytes=source.n_bytes,
        rank=rank,
        host=host,
        framework="PaddlePaddle",
        origin_unix_ns=origin_ns if _YEAR_2001_NS < origin_ns < _YEAR_2100_NS else None,
        origin_recorded_ns=origin_ns,
        facts=facts,
    )
