"""The file of scheduling events that `stepscope record --sched` leaves, as columns: who got and lost a core, and when.

stepscope/record/sched/main.py describes its form: frames of packed facts, or of packed events as the kernel gives
them, each with the time at which they were read.

Pages of the kernel's ring buffer, as `trace_pipe_raw` gives them: a page begins with a time (u64) and the bytes in use
(u64, with flags); then come events. An event begins with 5 bits of type and 27 bits of time since the one before. Types
1 to 28 are the event's length in words of 4 bytes; with 0 the next word has it in bytes; 29 is padding, 30 a longer
time, 31 a time by itself.
Source: header_page and header_event in tracefs; include/linux/ring_buffer.h and kernel/trace/ring_buffer.c of Linux.

Records of the kernel's perf buffers: type (u32), flags (u16), bytes (u16); what the type has; then process, thread (u32
each), time (u64), core and a spare (u32 each). Source: include/uapi/linux/perf_event.h of Linux.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core import files
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import CorruptInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from stepscope.readers.common.source import IssueLog


_WORD, _HEAD_UNITS = 4, 4
_USED = (1 << 20) - 1
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30
_LONG_EVENT, _LONGEST_SHORT, _PADDING, _EXTEND, _STAMP = 0, 28, 29, 30, 31
_DELTA_BITS = 27
#: A time by itself has 59 bits; the upper ones are those of the page.
_STAMP_BITS = np.uint64((1 << 59) - 1)
LOST, COMM, EXIT, FORK, SWITCH = 2, 3, 4, 7, 14
IS_OUT, IS_PREEMPTED = 1 << 13, 1 << 14
_UNIT = 8
Ints = NDArray[np.int64]
Frame = tuple[int, int, int, bytes]
MAGIC = b"stepscope sched 1\n"
_HEAD = struct.Struct("<HHIIq")
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, msgspec.MsgspecError)
_FACTS, _EVENTS = 1, 2
#: Frames of one packing are written by a reader of at most some buffers: more is damage.
_LARGEST = 1 << 30
#: What happens to a thread, in the order in which it does within one nanosecond.
OUT, WAKE, IN = 0, 1, 2
#: How it is when it loses the core.
RUNNABLE, SLEEPS, BLOCKED, STOPPED, ENDED = range(5)
_STATE_BITS = 0xFF


class Pages(msgspec.Struct, frozen=True):
    """Events in the order of their pages.

    `words` are all pages as 4-byte words; `at` is where each event's content begins in them, `ts_ns` when it was.
    `lost_before` are events before which others were overwritten, as indices (the number of all events: after the last
    one), and `n_lost` how many, where the kernel says so.
    """

    u32s: NDArray[np.uint32]
    at: Ints
    ts_ns: Ints
    lost_before: Ints
    n_lost: Ints

    def field(self, rows: Ints, offset: int) -> NDArray[np.int32]:
        """A field of four bytes of some events, `offset` bytes into their content."""
        return self.u32s[self.at[rows] + offset // _WORD].view(np.int32)

    def text(self, rows: Ints, offset: int, size: int) -> list[str]:
        """A text of some events."""
        into = self.u32s.view(np.uint8)
        texts = into[(self.at[rows] * _WORD + offset)[:, None] + np.arange(size)]
        return [bytes(row).split(b"\0", 1)[0].decode("utf-8", "replace") for row in texts]

    def kind(self) -> NDArray[np.uint16]:
        """The number of the kind of each event."""
        return (self.u32s[self.at] & 0xFFFF).astype(np.uint16)


def decoded(content: bytes, page_bytes: int) -> Pages:
    """All events of some pages of one core, in order. What follows the last whole page is left out."""
    n_pages = len(content) // page_bytes
    # Events never end beyond their page, but damaged ones may say so: there are words to look at then.
    u32s = np.zeros((n_pages + 1) * page_bytes // _WORD, np.uint32)
    u32s[: n_pages * page_bytes // _WORD] = np.frombuffer(content, np.uint32, n_pages * page_bytes // _WORD)
    heads = u32s.view(np.uint64)[: n_pages * page_bytes // 8].reshape(n_pages, page_bytes // 8)[:, :2]
    start = np.arange(n_pages, dtype=np.int64) * (page_bytes // _WORD) + _HEAD_UNITS
    used = (heads[:, 1] & np.uint64(_USED)).astype(np.int64)
    end = start + np.minimum(used, page_bytes - _HEAD_UNITS * _WORD) // _WORD
    page, at, ts = _walked(u32s, start, end, heads[:, 0])
    missed = np.flatnonzero(heads[:, 1] & np.uint64(_MISSED))
    stored = (heads[missed, 1] & np.uint64(_MISSED_STORED)) != 0
    return Pages(u32s, at, ts, np.searchsorted(page, missed), np.where(stored, u32s[end[missed]], 0))


def _walked(u32s: NDArray[np.uint32], start: Ints, end: Ints, begin: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
    """Page, place and time of each event: a walk through all pages at once, an event of each at a time."""
    pages, at, ts = np.flatnonzero(end > start), start.copy(), begin.copy()
    events: list[tuple[Ints, Ints, Ints]] = []
    while pages.size:
        here = at[pages]
        head, then = u32s[here], u32s[here + 1].astype(np.uint64)
        kind, delta = head & 31, (head >> 5).astype(np.uint64)
        is_end = (kind == _PADDING) & (delta == 0)
        wide = (then << np.uint64(_DELTA_BITS)) + delta
        now = ts[pages] + np.where(kind == _EXTEND, wide, delta)
        upper = begin[pages] & ~_STAMP_BITS
        ts[pages] = np.where(kind == _STAMP, (wide & _STAMP_BITS) | upper, now)
        n_bytes = np.minimum(then, np.uint64(_USED)).astype(np.int64)
        length = np.where(kind >= _EXTEND, 2, 1 + kind.astype(np.int64))
        length = np.where((kind == _LONG_EVENT) | (kind == _PADDING), 1 + -(-n_bytes // _WORD), length)
        is_event = (kind <= _LONGEST_SHORT) & (here + length <= end[pages])
        events.append(
            (
                pages[is_event],
                np.asarray(here + 1 + (kind == _LONG_EVENT), np.int64)[is_event],
                ts[pages[is_event]].astype(np.int64),
            )
        )
        at[pages] = np.where(is_end, end[pages], here + length)
        pages = pages[at[pages] < end[pages]]
    if not events:
        return (np.empty(0, np.int64),) * 3
    page, places, times = (np.concatenate(parts) for parts in zip(*events, strict=True))
    order = np.argsort(places, kind="stable")
    return page[order], places[order], times[order]


def record_starts(content: bytes) -> Ints:
    """Where each record begins, in bytes. An incomplete last one is left out.

    Each record gives the position of the next. Records can only begin at multiples of eight bytes. For each such place
    we know where the next record would be, and from that where the second, the fourth … would be.
    """
    n = len(content) // _UNIT
    sizes = np.frombuffer(content, np.uint16, n * _UNIT // 2)[3 :: _UNIT // 2].astype(np.int64) // _UNIT
    # A size of 0, which no record has, would loop forever, so it ends the walk. Place n is the end.
    jump = np.append(np.where(sizes > 0, np.minimum(np.arange(n) + sizes, n + 1), n + 1), [n, n + 1])
    whole = jump[:n] <= n
    on_way = np.zeros(n + 2, np.bool_)
    on_way[0] = True
    reached = np.zeros(1, np.int64)
    while True:
        more = distinct_values(jump[reached])
        more = more[~on_way[more]]
        if not more.size:
            break
        on_way[more] = True
        reached = np.concatenate((reached, more))
        jump = jump[jump]
    starts = np.flatnonzero(on_way[:n])
    at: Ints = starts[whole[starts]] * _UNIT
    return at


def u32s_at(content: bytes, places: Ints) -> NDArray[np.uint32]:
    """Words of four bytes at places (bytes, multiples of four)."""
    u32s: NDArray[np.uint32] = np.frombuffer(content, np.uint32, len(content) // 4)[places // 4]
    return u32s


class Events(msgspec.Struct, frozen=True):
    """Rows in order of time, on the monotonic clock (ns), of threads of the job and what happened to them.

    `other` is who got the core (OUT) or had it before (IN), 0 for nobody, -1 if not known; `state` is of OUT. `began`
    tells since when threads that were there at the start are followed; `process` the process of a thread, `parent` who
    started it; `losses` are (core, from, to) in which events were lost.
    """

    ts_ns: Ints
    tid: Ints
    what: NDArray[np.int8]
    core: NDArray[np.int32]
    state: NDArray[np.int8]
    other: Ints
    names: dict[int, str]
    began: dict[int, int]
    process: dict[int, int]
    parent: dict[int, int]
    losses: list[tuple[int, int, int]]
    end_ns: int
    #: Times of the monotonic clock, and those of Unix time at the same moments.
    clock_ns: Ints
    unix_ns: Ints


_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Clocks(msgspec.Struct):
    monotonic_ns: _Time
    unix_ns: _Time


class _Facts(msgspec.Struct):
    """What a frame of facts may say; `events` are the kernel's own descriptions."""

    source: Literal["tracefs", "perf"] | None = None
    page_bytes: Annotated[int, msgspec.Meta(ge=1 << 6, le=1 << 20, multiple_of=8)] = 4096
    events: dict[str, Any] = {}
    clocks: _Clocks | None = None
    began: list[tuple[_Id, _Id]] = []
    names: list[str] = []
    threads: list[tuple[_Id, _Id]] = []
    full_bytes: _Count | None = None
    unwritten: _Count = 0
    end: Any = None
    lost: dict[str, _Count] = {}


@dataclass(slots=True)
class _Content:
    """What the frames said so far."""

    head: _Facts = field(default_factory=_Facts)
    parts: list[tuple[Ints, ...]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    process: dict[int, int] = field(default_factory=dict)
    parent: dict[int, int] = field(default_factory=dict)
    losses: list[tuple[int, int, int]] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)  # time of the last event of each core
    clocks: list[tuple[int, int]] = field(default_factory=list)
    n_lost: int = 0
    n_lost_reported: int = 0
    end_ns: int = 0
    is_ended: bool = False
    full_ns: int | None = None


def read_events(path: str, issues: IssueLog) -> Events:
    """The events of a file. What was lost, or is missing at its end, is noted. Raises CorruptInput, StepscopeError."""
    recorded = _Content()
    with files.opened(path) as file, files.reaching(path):
        if file.read(len(MAGIC)) != MAGIC:
            raise CorruptInput("not a file of scheduling events", "record again with --sched", path=path)
        for kind, core, time_ns, content in _frames(file, path, issues):
            try:
                _take(recorded, kind, core, time_ns, content, issues)
            except (
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                IndexError,
                ArithmeticError,
                msgspec.MsgspecError,
            ) as error:
                issues.add("sched_damaged", "warning", 1, f"{path}: a frame says {error!r}; read up to it")
                break
            recorded.end_ns = max(recorded.end_ns, time_ns)
    if not recorded.clocks:
        raise CorruptInput("it ends before its first entry", "record again with --sched", path=path)
    lost = max(recorded.n_lost, recorded.n_lost_reported)
    what = "the kernel's buffers were full: spans around the lost events are left out"
    issues.add("sched_lost", "warning", lost or len(recorded.losses), what)
    if not recorded.is_ended:
        issues.add(
            "sched_cut", "warning", 1, f"{path}: the collector was killed, or is still running; its end is missing"
        )
    return _events(recorded)


def _frames(file: IO[bytes], path: str, issues: IssueLog) -> Iterator[Frame]:
    """Kind, core, time and content of each frame that is whole."""
    while head := file.read(_HEAD.size):
        packed = b""
        if len(head) == _HEAD.size:
            kind, core, n_packed, n_content, time_ns = _HEAD.unpack(head)
            packed = file.read(n_packed)
        if len(head) < _HEAD.size or len(packed) < n_packed:
            return  # it was killed while it wrote, which lacks the end too
        inflate = zlib.decompressobj()
        try:
            content = inflate.decompress(packed, min(n_content, _LARGEST) + 1)  # one more: to its checksum
        except zlib.error as error:
            issues.add("sched_damaged", "warning", 1, f"{path}: {error}; read up to there")
            return
        if not inflate.eof or len(content) != n_content:
            issues.add("sched_damaged", "warning", 1, f"{path}: a frame has the wrong length; read up to it")
            return
        yield kind, core, time_ns, content


def _take(recorded: _Content, kind: int, core: int, time_ns: int, content: bytes, issues: IssueLog) -> None:
    """What a frame holds."""
    if kind == _FACTS:
        _hear(recorded, time_ns, msgspec.json.decode(content, type=_Facts), issues)
    elif kind == _EVENTS:
        {"tracefs": _take_pages, "perf": _take_records}[recorded.head.source or ""](recorded, core, content)


def _hear(recorded: _Content, time_ns: int, facts: _Facts, issues: IssueLog) -> None:
    if facts.source is not None:
        recorded.head = facts
    if facts.clocks is not None:
        recorded.clocks.append((facts.clocks.monotonic_ns, facts.clocks.unix_ns))
    recorded.began.update({tid: time_ns for tid, _ in facts.began})
    recorded.process.update(facts.began)
    recorded.names.update(zip((tid for tid, _ in facts.began), facts.names, strict=True))
    recorded.process.update(facts.threads)
    if facts.full_bytes is not None:
        recorded.full_ns = time_ns
        what = f"the file reached {facts.full_bytes >> 20} MiB, and nothing more was written"
        issues.add("sched_full", "warning", 1, what)
    issues.add("sched_unwritten", "warning", facts.unwritten, "events after the file was full")
    if facts.end is not None:
        recorded.is_ended = True
        recorded.n_lost_reported = min(sum(facts.lost.values()), 1 << 62)


def _take_pages(recorded: _Content, core: int, content: bytes) -> None:
    pages = decoded(content, recorded.head.page_bytes)
    kinds, formats = pages.kind(), recorded.head.events
    last = recorded.last.get(core, recorded.clocks[0][0] if recorded.clocks else 0)
    times = np.concatenate(([last], pages.ts_ns))
    if pages.ts_ns.size:
        recorded.last[core] = int(pages.ts_ns[-1])
    ends = np.append(pages.ts_ns, times[-1])
    lost = zip(times[pages.lost_before].tolist(), ends[pages.lost_before].tolist(), strict=True)
    recorded.losses += [(core, low, high) for low, high in lost]
    recorded.n_lost += int(pages.n_lost.sum())

    def rows(name: str) -> Ints:
        return np.flatnonzero(kinds == formats[name]["id"])

    def column(name: str, at: Ints, column: str) -> Ints:
        return pages.field(at, formats[name]["fields"][column][0]).astype(np.int64)

    switch = rows("sched_switch")
    before, after, state = (column("sched_switch", switch, f) for f in ("prev_pid", "next_pid", "prev_state"))
    ts = pages.ts_ns[switch]
    cores, none = np.full(ts.size, core), np.zeros(ts.size, np.int64)
    recorded.parts += [
        (ts, before, none + OUT, cores, _state(state), after),
        (ts, after, none + IN, cores, none, before),
    ]
    # The last name of each thread: searching from the end finds it first.
    both = np.stack((after, before), axis=1).ravel()
    distinct, first = np.unique(both[::-1], return_index=True)
    place = both.size - 1 - first
    for side, name in enumerate(("next_comm", "prev_comm")):
        mine = place % 2 == side
        texts = pages.text(switch[place[mine] // 2], *formats["sched_switch"]["fields"][name])
        recorded.names.update(zip(distinct[mine].tolist(), texts, strict=True))
    for name in ("sched_wakeup", "sched_wakeup_new"):
        at = rows(name)
        woken, where = column(name, at, "pid"), column(name, at, "target_cpu")
        none = np.zeros(at.size, np.int64)
        recorded.parts.append((pages.ts_ns[at], woken, none + WAKE, where, none, none - 1))
    at = rows("sched_process_fork")
    parents, children = (column("sched_process_fork", at, f) for f in ("parent_pid", "child_pid"))
    recorded.parent.update(zip(children.tolist(), parents.tolist(), strict=True))


def _state(recorded: Ints) -> Ints:
    """How a thread is that loses its core, from the kernel's bits: S 1, D 2, T 4, t 8, X 16, Z 32, P 64, I 128."""
    bits = recorded & _STATE_BITS
    conditions = [bits == 0, (bits & 0x30) != 0, (bits & 0x02) != 0, (bits & 0x4C) != 0]
    return np.select(conditions, [RUNNABLE, ENDED, BLOCKED, STOPPED], SLEEPS)


def _take_records(recorded: _Content, core: int, content: bytes) -> None:
    starts = record_starts(content)
    head, sizes = u32s_at(content, starts), u32s_at(content, starts + 4)
    flags, ends = sizes & 0xFFFF, starts + (sizes >> 16).astype(np.int64)

    def word(rows: Ints, at: int) -> Ints:
        """A word of some records, counted from their start, or if negative from their end."""
        return u32s_at(content, (starts[rows] if at >= 0 else ends[rows]) + at).astype(np.int64)

    def time(rows: Ints) -> Ints:
        return word(rows, -16) + (word(rows, -12) << 32)

    switch = np.flatnonzero(head == SWITCH)
    ts, tid = time(switch), word(switch, -20)
    is_out, is_ready = ((flags[switch] & bit) != 0 for bit in (IS_OUT, IS_PREEMPTED))
    none = np.zeros(ts.size, np.int64)
    state = np.where(is_out & ~is_ready, SLEEPS, RUNNABLE)
    recorded.parts.append((ts, tid, np.where(is_out, OUT, IN), none + core, state, none - 1))
    recorded.process.update(zip(tid.tolist(), word(switch, -24).tolist(), strict=True))
    ended = np.flatnonzero(head == EXIT)  # no switch of the thread follows
    none = np.zeros(ended.size, np.int64)
    recorded.parts.append((time(ended), word(ended, 16), none + OUT, none + core, none + ENDED, none - 1))
    forks = np.flatnonzero(head == FORK)
    recorded.parent.update(zip(word(forks, 16).tolist(), word(forks, 20).tolist(), strict=True))
    recorded.process.update(zip(word(forks, 16).tolist(), word(forks, 8).tolist(), strict=True))
    for row in np.flatnonzero(head == COMM).tolist():
        text = content[int(starts[row]) + 16 : int(ends[row]) - 24]
        recorded.names[int(word(np.array([row]), 12)[0])] = text.split(b"\0", 1)[0].decode("utf-8", "replace")
    lost = np.flatnonzero(head == LOST)
    if lost.size:
        recorded.n_lost += int(word(lost, 16).sum())
        times = time(lost)
        before = np.searchsorted(ts, times) - 1
        lows = np.where(before >= 0, ts[before] if ts.size else 0, recorded.last.get(core, 0))
        recorded.losses += [(core, int(low), int(high)) for low, high in zip(lows, times, strict=True)]
    if ts.size:
        recorded.last[core] = int(ts[-1])


def _events(recorded: _Content) -> Events:
    """The rows of the job's threads in order of time, each once."""
    if recorded.parts:
        columns = [np.concatenate(parts) for parts in zip(*recorded.parts, strict=True)]
    else:
        columns = [np.empty(0, np.int64)] * 6
    mine = np.array(sorted({*recorded.began, *recorded.parent}), np.int64)
    at = np.flatnonzero(np.isin(columns[1], mine))
    ts, tid, what = (column[at] for column in columns[:3])
    at = at[np.lexsort((what, tid, ts))]
    ts, tid, what, core, state, other = (column[at] for column in columns)
    # Threads that were found twice while they began are followed twice by perf.
    again = (np.diff(ts, prepend=-1) == 0) & (np.diff(tid, prepend=-1) == 0) & (np.diff(what, prepend=-1) == 0)
    keep = ~again
    clocks = np.array(sorted(recorded.clocks), np.int64).reshape(-1, 2)
    return Events(
        ts[keep],
        tid[keep],
        what[keep].astype(np.int8),
        core[keep].astype(np.int32),
        state[keep].astype(np.int8),
        other[keep],
        recorded.names,
        recorded.began,
        recorded.process,
        recorded.parent,
        recorded.losses,
        max(recorded.end_ns if recorded.full_ns is None else recorded.full_ns, int(ts[-1]) if ts.size else 0),
        clocks[:, 0],
        clocks[:, 1],
    )
