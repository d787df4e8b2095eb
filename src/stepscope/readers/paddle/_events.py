"""Events of Paddle's Chrome-tracing JSON, block by block, and the mending of names that Paddle writes unescaped."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct, field

from stepscope.readers.chrome.salvage import FAILS, repaired
from stepscope.readers.common.columns import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.readers.common.issues import Notes

#: Small enough that a block's objects stay in the processor's cache.
BLOCK = 1 << 18
_NOTHING = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """`args` of an event."""

    start_time: str = ""
    end_time: str = ""
    correlation: int = field(name="correlation id", default=ABSENT)
    input_shapes: Raw = _NOTHING
    input_dtypes: Raw = _NOTHING
    callstack: str = ""
    stream: int = ABSENT
    registers: int = field(name="registers per thread", default=ABSENT)
    shared_bytes: int = field(name="shared memory", default=ABSENT)
    blocks_per_sm: float | None = field(name="blocks per SM", default=None)
    warps_per_sm: float | None = field(name="warps per SM", default=None)
    grid: list[int] | None = None
    block: list[int] | None = None
    occupancy: float | None = field(name="theoretical achieved occupancy %", default=None)
    occupancy_old: float | None = field(name="est. achieved occupancy %", default=None)
    size_bytes: int = field(name="bytes", default=ABSENT)
    bandwidth: float | None = field(name="memory bandwidth (GB/s)", default=None)
    place: str = ""
    addr: int = ABSENT
    increase_bytes: int = ABSENT
    current_allocated: int = ABSENT
    current_reserved: int = ABSENT
    peak_allocated: int = ABSENT
    peak_reserved: int = ABSENT


_NO_ARGS = Args()


class Event(Struct, gc=False):
    """One element of `traceEvents`. `ts` is whole µs of Unix time, `dur` µs; threads are text, streams numbers."""

    name: str = ""
    pid: int | None = None
    tid: int | str | None = None
    ts: int | None = None
    dur: float | None = None
    ph: str = ""
    cat: str = ""
    args: Args = _NO_ARGS


_BLOCKS = msgspec.json.Decoder(list[Event], strict=False)
_ELEMENT = msgspec.json.Decoder(Event, strict=False)
#: Paddle begins each element with its name.
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"name"\s*:|\{\s*\}\s*$)')
#: A text that was not escaped reaches to where the line goes on as Paddle writes it.
_TEXT = re.compile(rb'("(?:name|callstack)"\s*:\s*")(.*?)(?="\s*,\s*"(?:pid|id)"\s*:|"\s*\n\s*\})', re.DOTALL)
_TO_ESCAPE = re.compile(rb'["\\\x00-\x1f]')


def blocks(text: bytes, start: int, end: int, notes: Notes) -> Iterator[list[Event]]:
    """The events in text[start:end], the inside of the array. Elements that cannot be read are counted."""
    while start < end:
        border = _BORDER.search(text, min(start + BLOCK, end), end)
        cut, after = (end, end) if border is None else (border.start() + 1, border.end())
        yield _decoded(text[start:cut], start, notes)
        start = after


def _decoded(block: bytes, at: int, notes: Notes) -> list[Event]:
    try:
        if b"\\" not in block:
            return _BLOCKS.decode(b"[" + block + b"]")
    except FAILS:
        pass
    block = escaped(block, notes)
    try:
        return _BLOCKS.decode(b"[" + block + b"]")
    except FAILS:
        pass
    return list(_elements(repaired(block, notes), at, notes))


def escaped(text: bytes, notes: Notes) -> bytes:
    """The text with names and call stacks written as JSON wants it; how many needed that is noted."""
    n = 0

    def mended(match: re.Match[bytes]) -> bytes:
        nonlocal n
        if not _TO_ESCAPE.search(match[2]):
            return match[0]
        n += 1
        return match[1] + json.dumps(match[2].decode("utf-8", "replace"), ensure_ascii=False)[1:-1].encode()

    found = _TEXT.sub(mended, text)
    notes.add(
        "unescaped_names", "info", n, "names with quotes, backslashes or control characters, which Paddle writes raw"
    )
    return found


def _elements(block: bytes, at: int, notes: Notes) -> Iterator[Event]:
    """Every element that can be read by itself."""
    start = 0
    for border in [*(m.start() + 1 for m in _BORDER.finditer(block)), len(block)]:
        piece = block[start:border].strip(b", \t\r\n")
        try:
            if piece:
                yield _ELEMENT.decode(piece)
        except FAILS:
            what = f"elements that are not valid JSON, first at about byte {at + start:,}"
            notes.add("damaged_events", "error", 1, what)
        start = border
