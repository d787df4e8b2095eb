"""Paddle's Chrome-tracing JSON. The order of its elements gives the owners; times only give the nesting.

Order: threads ascending; in each, host events breadth first, each with its runtime calls, those with their device
events, then its memory events. Times: `ts` is cut to whole µs, `start_time` and `end_time` are single-precision µs from
the start of the trace, `dur` is one too, which for durations up to 8 ms is exact.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.intervals import enclosing
from stepscope.core.patterns import regex
from stepscope.readers.chrome.salvage import FAILS, repaired
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.paddle._columns import COLUMNS, Event, Events, Recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog

    Ints = NDArray[np.int64]
    Table = dict[str, NDArray[Any]]
    from collections.abc import Iterator


#: Small enough that a block's objects stay in the processor's cache.
BLOCK = 1 << 18
_BLOCKS = msgspec.json.Decoder(list[Event], strict=False)
_ELEMENT = msgspec.json.Decoder(Event, strict=False)
#: Paddle begins each element with its name.
_BORDER = regex(rb'\}\s*,\s*(?=\{\s*"name"\s*:|\{\s*\}\s*$)')
#: A text that was not escaped reaches to where the line goes on as Paddle writes it.
_TEXT_BEGINS = regex(rb'"(?:name|callstack)"\s*:\s*"')
_TEXT_ENDS = regex(rb'"(?:\s*,\s*"(?:pid|id)"\s*:|[^\S\n]*\n\s*\})')
_TO_ESCAPE = regex(rb'["\\\x00-\x1f]')
_ARRAY = regex(rb'"traceEvents"\s*:\s*\[')
#: The end of the array: Paddle puts an empty object there, and in any case only there a bracket follows a brace.
_ENDS = (regex(rb"\{\s*\}(\s*\])"), regex(rb"\}(\s*\])\s*(?:,\s*\"|\}\s*\Z)"))
_TAIL = 1 << 16
_PAIR = regex(rb'^\s*"(.*)"\s*:\s*"(.*)"\s*,?\s*$', re.MULTILINE)
#: Up to here single precision holds thousandths of µs exactly.
_EXACT_NS = 8_192_000
_MOST_US = 2**51


def blocks(text: bytes, start: int, end: int, issues: IssueLog) -> Iterator[list[Event]]:
    """The events in text[start:end], the inside of the array. Elements that cannot be read are counted."""
    while start < end:
        border = _BORDER.search(text, min(start + BLOCK, end), end)
        stop, after = (end, end) if border is None else (border.start() + 1, border.end())
        yield _decoded(text[start:stop], start, issues)
        start = after


def _decoded(block: bytes, at: int, issues: IssueLog) -> list[Event]:
    try:
        if b"\\" not in block:
            return _BLOCKS.decode(b"[" + block + b"]")
    except FAILS:
        pass
    block = escaped(block, issues)
    try:
        return _BLOCKS.decode(b"[" + block + b"]")
    except FAILS:
        pass
    return list(_elements(repaired(block, issues), at, issues))


def escaped(text: bytes, issues: IssueLog) -> bytes:
    """The text with names and call stacks written as JSON wants it; how many needed that is noted."""
    n, done, pieces = 0, 0, []
    while (begin := _TEXT_BEGINS.search(text, done)) and (end := _TEXT_ENDS.search(text, begin.end())):
        name = text[begin.end() : end.start()]
        if _TO_ESCAPE.search(name):
            n += 1
            name = json.dumps(name.decode("utf-8", "replace"), ensure_ascii=False)[1:-1].encode()
        pieces += [text[done : begin.end()], name]
        done = end.start()
    issues.add(
        "unescaped_names", "info", n, "names with quotes, backslashes or control characters, which Paddle writes raw"
    )
    return b"".join([*pieces, text[done:]])


def _elements(block: bytes, at: int, issues: IssueLog) -> Iterator[Event]:
    """Every element that can be read by itself."""
    start = 0
    for border in [*(m.start() + 1 for m in _BORDER.finditer(block)), len(block)]:
        piece = block[start:border].strip(b", \t\r\n")
        try:
            if piece:
                yield _ELEMENT.decode(piece)
        except FAILS:
            what = f"elements that are not valid JSON, first at about byte {at + start:,}"
            issues.add("damaged_events", "error", 1, what)
        start = border


def decode(text: bytes, issues: IssueLog) -> Recording:
    """The whole document. What is damaged is left out, and counted in `issues`."""
    start, end, meta = _outline(text, issues)
    events = Events()
    for block in blocks(text, start, end, issues):
        events.add(block)
    recording = _linked(events, issues)
    version, index = meta.get("schemaVersion"), str(meta.get("span_index", meta.get("span_indx", "")))
    recording.version = str(version) if version else None
    recording.span_index = int(index) if index.isdecimal() and len(index) < 10 else None
    extra, devices = meta.get("ExtraInfo"), meta.get("deviceProperties")
    recording.extra = {str(k): str(v) for k, v in extra.items()} if isinstance(extra, dict) else {}
    recording.devices = [p for p in devices if isinstance(p, dict)] if isinstance(devices, list) else []
    return recording


def _outline(text: bytes, issues: IssueLog) -> tuple[int, int, dict[str, Any]]:
    """Where the inside of the events array begins and ends; the other fields of the document."""
    opening = _ARRAY.search(text)
    start = len(text) if opening is None else opening.end()
    closing = None
    for pattern, near in itertools.product(_ENDS, (max(start, len(text) - _TAIL), start)):
        closing = closing or next(iter(deque(pattern.finditer(text, near), maxlen=1)), None)
    if closing is None:
        issues.add("truncated", "error", 1, f"the file ends inside its events, after {len(text):,} bytes")
    end = len(text) if closing is None else closing.start(1)
    head = text[: len(text) if opening is None else opening.start()]
    meta = _object(head.strip().rstrip(b",") + b"}") or {}
    if closing is not None:
        tail = text[closing.end(1) :]
        # Names of threads are not escaped either: then every line that is a pair counts.
        meta |= _object(b'{"_":0' + tail) or {"ExtraInfo": _lines(tail)}
    return start, end, meta


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _lines(text: bytes) -> dict[str, str]:
    pairs = ((k.decode("utf-8", "replace"), v.decode("utf-8", "replace")) for k, v in _PAIR.findall(text))
    return dict(pairs)


def _linked(events: Events, issues: IssueLog) -> Recording:
    """The columns with absolute times and with links, from the order of the file and the nesting of times."""
    host, runtime, device, memory = (events.table(kind) for kind in ("host", "runtime", "device", "memory"))
    origin = _origin(host, runtime, device)
    for table in (host, runtime, device):
        _place(table, origin)
    host["parent"] = _parents(host)
    runtime["host"] = _inside(host, runtime, _holder(host, runtime), issues)
    memory["ts"] = np.where(memory["ts"] == ABSENT, ABSENT, memory["ts"] * 1000)
    memory["host"] = _holder(host, memory)
    inside = (memory["host"] >= 0) & (memory["ts"] >= 0)
    memory["ts"][inside] = np.maximum(memory["ts"][inside], host["start"][memory["host"][inside]])
    device["runtime"] = _launch(runtime, device)
    kernels, transfers, arguments = (events.table(kind) for kind in ("kernels", "transfers", "arguments"))
    for table, owner, link in ((kernels, device, "device"), (transfers, device, "device"), (arguments, host, "host")):
        table[link] = np.searchsorted(owner["at"], table.pop("at"))
    return Recording(
        _only("host", host),
        _only("runtime", runtime),
        _only("device", device),
        _only("kernels", kernels),
        _only("transfers", transfers),
        _only("memory", memory),
        _only("arguments", arguments),
        names=list(events.names),
        types=list(events.types),
        texts=list(events.texts),
    )


def _only(name: str, table: Table) -> Table:
    return {column: table[column] for column in COLUMNS[name]}


def _origin(*tables: Table) -> int:
    """Unix time of the start of the trace in ns: the only one that fits all starts, whose own times are cut to µs."""
    start, whole_us = (np.concatenate([t[c] for t in tables]) for c in ("from", "ts"))
    known = (start != ABSENT) & (whole_us != ABSENT)
    exact = known & (start < _EXACT_NS)
    if not exact.any():
        return int((whole_us[known] * 1000 - start[known]).min()) if known.any() else 0
    offset = whole_us[exact] * 1000 - start[exact]
    low, high = int(offset.max()), int(offset.min()) + 999
    return (low + high) // 2 if low <= high else int(np.median(offset)) + 500


def _place(table: Table, origin: int) -> None:
    """Adds `start` and `end` in ns: from the start of the trace as written, but within the µs that `ts` says."""
    whole_us, since = table["ts"] * 1000, table["from"]
    start = np.where(since == ABSENT, whole_us, np.clip(origin + since, whole_us, whole_us + 999))
    length = np.where(table["dur"] == ABSENT, table["to"] - since, table["dur"])
    lost = (since == ABSENT) | (table["to"] == ABSENT)
    unknown = (table["ts"] < 0) | (table["ts"] > _MOST_US) | ((table["dur"] == ABSENT) & lost)
    table["start"], table["end"] = np.where(unknown, ABSENT, start), np.where(unknown, ABSENT, start + length)
    # Rounding keeps the order of times: what these two say of nesting is right.
    table["from"] = np.where(lost, table["start"] - origin, since)
    table["to"] = np.where(lost, table["end"] - origin, table["to"])


def _parents(host: Table) -> Ints:
    """The innermost event around each, of its thread."""
    order = np.lexsort((np.arange(host["from"].size), -host["to"], host["from"], host["tid"]))
    enclosed = enclosing(host["from"][order], host["to"][order], host["tid"][order])
    parent = np.full(order.size, -1, np.int64)
    parent[order] = np.where(enclosed >= 0, order[enclosed], -1) if order.size else enclosed
    return parent


def _holder(host: Table, table: Table) -> Ints:
    """The host event that stands last before each row, if it is of the same thread; else the root of its thread."""
    if not host["at"].size:
        return np.full(table["at"].size, -1, np.int64)
    last = np.searchsorted(host["at"], table["at"]) - 1
    return np.where((last >= 0) & (host["tid"][last] == table["tid"]), last, -1)


def _inside(host: Table, calls: Table, holder: Ints, issues: IssueLog) -> Ints:
    """The holders less those that a call is not inside of: the event that it was made in is missing."""
    at = np.maximum(holder, 0)
    apart = holder >= 0
    if apart.any():
        apart &= (calls["from"] < host["from"][at]) | (calls["from"] > host["to"][at])
    issues.add(
        "odd_parents", "warning", int(apart.sum()), "calls of the runtime after an event that does not enclose them"
    )
    return np.where(apart, -1, holder)


def _launch(runtime: Table, device: Table) -> Ints:
    """The runtime call that stands last before each row; where their ids differ, one with the same id."""
    if not runtime["at"].size:
        return np.full(device["at"].size, -1, np.int64)
    last = np.searchsorted(runtime["at"], device["at"]) - 1
    wanted, have = device["correlation"], runtime["correlation"]
    order = np.argsort(have, kind="stable")
    match = order[np.minimum(np.searchsorted(have[order], wanted), order.size - 1)]
    other = np.where((have[match] == wanted) & (wanted != ABSENT), match, -1)
    return np.where((last >= 0) & (have[last] == wanted), last, other)
