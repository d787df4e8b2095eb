"""One big file on several cores: processes decode parts of its text, and their columns are joined in order.

The text is cut at the first candidate border (`},{`) after given places. A part that begins or ends inside of an
element does not decode as a list. Then, and if a part holds anything that is damaged or repaired, the parts are thrown
away and one process reads the file from its start: tables, issues and errors are always those of one process.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.machine import cores_for_threads
from stepscope.readers.chrome.decoding import Decoded, decode, is_sound
from stepscope.readers.chrome.events import Event, ExactEvent
from stepscope.readers.chrome.json import PROBE, needs_exact
from stepscope.readers.chrome.salvage import BORDER
from stepscope.readers.common.columns import MOST_CATS
from stepscope.readers.common.forked import MOST_PROCESSES, UnfinishedError, can_fork, deadline_of, forget, forked, put
from stepscope.readers.common.source import CHUNK, IssueLog, give_back, head_of, packing_of

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from stepscope.readers.chrome.event_columns import Columns
    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.common.columns import Column
    from stepscope.readers.common.source import Source

#: A process more pays from so many bytes of text on.
_LEAST_BYTES = 15_000_000
#: Packed files unpack to about so many times their size. Each process unpacks all that comes before its part.
_UNPACKED, _MOST_OF_PACKED = 10, 4
#: Packings that take far less time to unpack than to decode.
_FAST = (None, "gzip", "zstd")
#: A border that does not come within so many bytes is not waited for.
_MOST_BEFORE_BORDER = 4 << 20
_COMMA = b","
_BEFORE = b"\xef\xbb\xbf \t\r\n"
#: Which table of values the codes of a column are of, in every group of columns that has it.
_CODED = {
    "name": "names", "cat": "cats", "track": "tracks", "kernel": "names", "shapes": "texts", "types": "texts",
    "concrete": "texts", "stack": "stacks", "grid": "dims", "block": "dims", "dims": "dims", "kind": "texts",
    "collective": "texts", "dtype": "texts", "group": "texts", "ranks": "texts", "description": "texts",
    "metric": "texts", "lane": "lanes",
}  # fmt: skip
_VALUES = ("names", "cats", "tracks", "texts", "stacks", "dims", "lanes", "flow_ids")
_FLAGS = ("has_launch_flows", "has_correlations")
_GROUPS = (
    "spans", "calls", "kernels_of_calls", "ids", "ops", "frames", "kernels", "launches", "event_waits", "transfers",
    "collectives", "memory", "edges", "flows", "samples", "metrics", "launch_ends",
)  # fmt: skip


class _UnusualError(Exception):
    """A part cannot be decoded for itself."""


def decode_in_parts(source: Source, issues: IssueLog) -> Decoded | None:
    """As `decode`, by several processes; None if one process has to do it: the file is small, or anything but sound."""
    try:
        bounds, kind, is_bare = _plan(source)
        if len(bounds) < 2:
            return None
        ends = [*bounds[1:], None]
        parts = [_Part(replace(source, progress=None), *pair, is_bare) for pair in zip(bounds, ends, strict=True)]
        if source.progress is not None:
            shown, most = source.progress, files.size_of(source.path)
            parts[0].source.progress = lambda n: shown(min(n * len(parts), most))
        with forked([_work_of(part, kind) for part in parts[1:]]) as results:
            log, began = IssueLog(), time.monotonic()
            whole = _sound(parts[0], None, log)
            if (whole.kind, whole.is_bare) != (kind, is_bare):
                return None
            deadline = deadline_of(time.monotonic() - began)
            for result in results:
                source.n_bytes = max(source.n_bytes, _absorb(whole, result(deadline), log))
    except (_UnusualError, UnfinishedError, StepscopeError, OSError):
        source.n_bytes = 0
        return None
    issues.extend(log)
    if source.progress is not None:
        source.progress(files.size_of(source.path))
    return whole


def _plan(source: Source) -> tuple[list[int], type[AnyEvent], bool]:
    """Where parts begin, in bytes of the file, what kind of times it has, and whether it is a list and no object."""
    nothing: tuple[list[int], type[AnyEvent], bool] = [], Event, False
    if not can_fork() or files.is_url(source.path):
        return nothing
    size = files.size_of(source.path)
    with files.opened(source.path) as file:
        packing = packing_of(file.read(8))
    if packing not in _FAST or source.member is not None:
        return nothing
    text_bytes = size * (_UNPACKED if packing else 1)
    n = min(cores_for_threads(), _MOST_OF_PACKED if packing else MOST_PROCESSES, text_bytes // _LEAST_BYTES)
    if n < 2:
        return nothing
    head = head_of(source.path, None, 4 * PROBE)
    is_bare = head.lstrip(_BEFORE).startswith(b"[")
    # What is a guess here is compared with what the first part shows.
    kind = ExactEvent if needs_exact(head[max(head.find(b'"traceEvents"'), 0) :]) else Event
    return sorted({size * i // n // CHUNK * CHUNK for i in range(n)}), kind, is_bare


@dataclass(slots=True)
class _Part:
    """The text of the elements from the first border after byte `low` of the file up to that after `high`.

    The first part begins with the file and the last one ends with it; the others are lists.
    """

    source: Source
    low: int
    high: int | None
    is_bare: bool
    label: str = field(init=False)

    def __post_init__(self) -> None:
        self.label = self.source.label

    @property
    def n_bytes(self) -> int:
        """Bytes of the file so far, unpacked."""
        return self.source.n_bytes

    @property
    def damage(self) -> str | None:
        """What was lost of the file so far."""
        return self.source.damage

    def chunks(self) -> Iterator[bytes]:
        """The text. Raises StepscopeError, _UnusualError (there is no border)."""
        chunks = self._placed()
        if self.low:
            yield b"[" if self.is_bare or self.high is not None else b'{"traceEvents":['
            before = (self._inside(place, chunk) for place, chunk in chunks if place > self.low)
            text = _to_border(next(before, b""), before)
            yield text[text.index(_COMMA, _border(text)) + 1 :]
        for place, chunk in chunks:
            if self.high is None or place <= self.high:
                yield chunk
                continue
            text = _to_border(chunk, (more for _, more in chunks))
            yield text[: text.index(_COMMA, _border(text))]
            yield b"]" if self.is_bare or self.low else b"]}"
            return

    def _inside(self, place: int, chunk: bytes) -> bytes:
        """The chunk. Raises _UnusualError if it belongs to the next part: then this one would have no start."""
        if self.high is not None and place > self.high:
            raise _UnusualError
        return chunk

    def _placed(self) -> Iterator[tuple[int, bytes]]:
        """Chunks, each with the byte of the file at which it ends; of a plain file none that ends before `low`."""
        place = 0

        def note(n: int) -> None:
            nonlocal place
            place = n
            if shown is not None:
                shown(n)

        shown, self.source.progress = self.source.progress, note
        for chunk in self.source.chunks(self.low):
            yield place, chunk


def _border(text: bytes) -> int:
    match = BORDER.search(text)
    return -1 if match is None else match.start()


def _to_border(text: bytes, more: Iterator[bytes]) -> bytes:
    """The text and what comes after it, as far as is needed for a border to be in it."""
    while _border(text) < 0:
        chunk = next(more, None)
        if chunk is None or len(text) > _MOST_BEFORE_BORDER:
            raise _UnusualError
        text += chunk
    return text


def _sound(part: _Part, kind: type[AnyEvent] | None, issues: IssueLog) -> Decoded:
    """The part's columns. Raises _UnusualError if anything in it is damaged or repaired, StepscopeError."""
    decoded = decode(part, issues, kind)
    if not is_sound(part, decoded, issues):
        raise _UnusualError
    return decoded


def _work_of(part: _Part, kind: type[AnyEvent]) -> Callable[[int], None]:
    def work(handle: int) -> None:
        issues = IssueLog()
        decoded = _sound(part, kind, issues)
        _write(handle, decoded, issues, part.n_bytes)

    return work


def _columns(columns: Columns) -> Iterator[tuple[str, str, Column]]:
    """All columns, each with its group and name."""
    for group in _GROUPS:
        for name, column in getattr(columns, group).items():
            yield group, name, column
    yield "launch_flows", "id", columns.launch_flows


def _write(handle: int, decoded: Decoded, issues: IssueLog, n_bytes: int) -> None:
    """Leave what a part has: the length of a header, the header, and the bytes of each column at a multiple of 8."""
    columns = decoded.columns
    whole = [column for _, _, column in _columns(columns)]
    header = msgspec.msgpack.encode({
        "n_events": columns.n_events, "n_spans": columns.n_spans, "n_bytes": n_bytes,
        "phases": sorted(columns.phases), "threads": [[*key, facts] for key, facts in columns.threads.items()],
        "values": {name: list(getattr(columns, name)) for name in _VALUES},
        "flags": {name: getattr(columns, name) for name in _FLAGS},
        "meta": decoded.meta, "has_decimals": decoded.has_decimals, "issues": issues.rows(),
        "sizes": [column.size for column in whole],
    })  # fmt: skip
    header += b" " * (-(len(header) + 8) % 8)
    put(handle, len(header).to_bytes(8, sys.byteorder))
    put(handle, header)
    for column in whole:
        n_left = column.size * np.dtype(column.dtype).itemsize
        for block in column.drain():
            put(handle, block.view(np.uint8).data)
        put(handle, b"\0" * (-n_left % 8))
        give_back(n_left)  # else the process would hold all that it has left a second time


def _absorb(whole: Decoded, left: mmap.mmap, issues: IssueLog) -> int:
    """Append what the next part left, and return the bytes of the file up to its end.

    Raises _UnusualError if there are more categories than a column of codes holds.
    """
    n_header = int.from_bytes(left[:8], sys.byteorder)
    facts: dict[str, Any] = msgspec.msgpack.decode(left[8 : 8 + n_header].rstrip(b" "))
    columns = whole.columns
    numbers = {name: _numbered(columns, name, values) for name, values in facts["values"].items()}
    if len(columns.cats) >= MOST_CATS:
        raise _UnusualError
    at = 8 + n_header
    for (group, name, column), size in zip(_columns(columns), facts["sizes"], strict=True):
        array: NDArray[Any] = np.frombuffer(left, column.dtype, size, at)
        begin, at = at, at + array.nbytes + -array.nbytes % 8
        table = "flow_ids" if (group, name) == ("flows", "id") else _CODED.get(name)
        if not size:
            continue
        if table is not None:
            array = numbers[table][array].astype(column.dtype, copy=False)
        column.extend(array + column.dtype(columns.n_spans) if name == "row" else array.copy())
        forget(left, begin, at)
    columns.n_events += facts["n_events"]
    columns.n_spans += facts["n_spans"]
    columns.phases |= set(facts["phases"])
    for pid, tid, known in facts["threads"]:
        columns.threads.setdefault((pid, tid), {}).update(known)
    for name, value in facts["flags"].items():
        setattr(columns, name, getattr(columns, name) or value)
    whole.meta |= facts["meta"]
    whole.has_decimals = facts["has_decimals"] if whole.has_decimals is None else whole.has_decimals
    for row in facts["issues"]:
        issues.add(*row)
    return int(facts["n_bytes"])


def _numbered(columns: Columns, name: str, values: list[Any]) -> NDArray[np.uint32]:
    """The numbers here of the values that a part numbered for itself."""
    keys = [tuple(value) if isinstance(value, list) else value for value in values]
    return getattr(columns, name).codes(keys) if keys else np.empty(0, np.uint32)
