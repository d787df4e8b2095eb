"""The `trace.json` that XLA's profiler writes of GPUs: the events of its XPlane, with statistics as texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.core.errors import CorruptInput
from stepscope.core.files import rank_in
from stepscope.core.names import step_number
from stepscope.core.trace import Trace
from stepscope.readers.chrome.json import Document
from stepscope.readers.chrome.salvage import FAILS
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.common.source import IssueLog, give_back, no_collection
from stepscope.readers.xplane._decode import NUMBERS, TEXTS, Line, Plane, Space
from stepscope.readers.xplane._tables import build_tables
from stepscope.readers.xplane.reader import meta_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.common.source import Source

_LARGEST_US = 2**52
_PROCESS, _THREAD = "process_name", "thread_name"


class _WithArguments(msgspec.Struct, gc=False):
    """What `chrome.events` leaves out of an event: all of its arguments."""

    args: dict[str, Any] = msgspec.field(default_factory=dict)


_ARGUMENTS = msgspec.json.Decoder(list[_WithArguments])


def read(source: Source) -> Trace:
    """The whole file as tables. Memory: one block of events and the columns.

    Raises UnknownFormat, CorruptInput, StepscopeError (size limit); lesser damage is counted in `issues`.
    """
    issues, rows, n_events = IssueLog(), _Rows(), 0
    document = Document(source, issues)
    with no_collection():
        for block in document.blocks():
            if isinstance(block, tuple):
                rows.add(*block)
                n_events += len(block[0])
        space = rows.space()
        tables, origin_ns = build_tables(space, Wire(iter(())), issues, rank=rank_in(source.path), host=None)
    give_back(source.n_bytes)
    if not space.ts.size and document.n_lost:
        msg = "not one of its events can be read"
        raise CorruptInput(msg, "copy or record the trace again", path=source.label, offset=document.lost_at)
    if "spans" not in tables:
        issues.add("no_spans", "warning", 1, "the trace holds nothing with a start and an end")
    table = issues.table()
    if not table.is_empty():
        tables["issues"] = table
    meta = meta_of(space, source, rank_in(source.path), None, origin_ns)
    base, version = document.meta.get("baseTimeNanoseconds"), document.meta.get("jax_version")
    if isinstance(base, int) and 0 <= base < 2**62:
        meta = replace(meta, origin_unix_ns=base + origin_ns)
    if isinstance(version, str):
        meta = replace(meta, framework="JAX/XLA", framework_version=version)
    return Trace(replace(meta, n_events=n_events, decimal_times=bool(document.has_decimals)), tables)


class _Rows:
    """The events of a file so far, a list for each column of a Space."""

    def __init__(self) -> None:
        self._space = Space()
        self._names: dict[tuple[Any, Any, str], str] = {}
        self._lines: dict[tuple[Any, Any], int] = {}
        self._metadata: dict[str, int] = {}
        self._columns: dict[str, list[int]] = {"line": [], "metadata": [], "ts": [], "end": []}
        self._stats: dict[str, tuple[list[int], list[int]]] = {}
        self._marked: tuple[list[int], list[int]] = ([], [])

    def add(self, events: Sequence[AnyEvent], block: bytes) -> None:
        """Append a block of events, which were decoded from this JSON."""
        try:
            arguments = [event.args for event in _ARGUMENTS.decode(block)]
        except FAILS:
            arguments = [{}] * len(events)
        columns = self._columns
        for event, args in zip(events, arguments, strict=True):
            if event.ph == "M" and event.name in (_PROCESS, _THREAD):
                tid = event.tid if event.name == _THREAD else None
                self._names[event.pid, tid, event.name] = str(args.get("name", ""))
            if event.ph != "X":
                continue
            row, name = len(columns["ts"]), event.name or ""
            number = step_number(name)
            if number is not None:  # the marks of `stepscope record`
                name = name.partition("#")[0]
                self._marked[0].append(row)
                self._marked[1].append(number)
            columns["line"].append(self._lines.setdefault((event.pid, event.tid), len(self._lines)))
            columns["metadata"].append(self._metadata.setdefault(name, len(self._metadata)))
            start, length = _ns(event.ts), _ns(event.dur)
            columns["ts"].append(start)
            columns["end"].append(ABSENT if ABSENT in (start, length) else start + length)
            for key, value in args.items():
                self._add_statistic(row, key, value)

    def _add_statistic(self, row: int, key: str, value: object) -> None:
        if key in NUMBERS:
            number = int(value) if isinstance(value, int | float) else _whole(value)
            if number is None or abs(number) >= 1 << 62:
                return
        elif key in TEXTS:
            number = self._space.texts[str(value).encode("utf-8", "replace")]
        else:
            return
        rows, values = self._stats.setdefault(key, ([], []))
        rows.append(row)
        values.append(number)

    def space(self) -> Space:
        """All of it."""
        space = self._space
        planes = list(dict.fromkeys(pid for pid, _ in self._lines))
        space.planes = [Plane(self._names.get((pid, None, _PROCESS), ""), {"process_id": pid}) for pid in planes]
        space.lines = [
            Line(planes.index(pid), tid if isinstance(tid, int) else 0, self._names.get((pid, tid, _THREAD), ""))
            for pid, tid in self._lines
        ]
        if self._marked[0]:
            self._stats["step_num"] = self._marked
        as_rows = {name: np.array(values, np.int64) for name, values in self._columns.items()}
        space.line, space.metadata = as_rows["line"].astype(np.int32), as_rows["metadata"].astype(np.int32)
        space.ts, space.end = as_rows["ts"], as_rows["end"]
        space.name = space.texts.codes([name.encode("utf-8", "replace") for name in self._metadata]).astype(np.uint32)
        space.display_name = np.zeros(space.name.size, np.uint32)
        space.of_event = {
            name: (np.array(rows, np.int64), np.array(values, np.int64)) for name, (rows, values) in self._stats.items()
        }
        return space


def _ns(us: Any) -> int:
    """A time in ns, as the file has it in µs; ABSENT where that is none."""
    return round(us * 1000) if us is not None and -_LARGEST_US < us < _LARGEST_US else ABSENT


def _whole(value: object) -> int | None:
    text = value if isinstance(value, str) else ""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else None
