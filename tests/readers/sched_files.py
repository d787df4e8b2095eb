"""Files of scheduling events by hand: pages of the kernel's ring buffer, perf records, frames around them."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"stepscope sched 1\n"
PAGE = 4096
SWITCH, WAKE, FORK, NEW = 372, 374, 366, 373
_COMMON = {"common_type": [0, 2], "common_flags": [2, 1], "common_preempt_count": [3, 1], "common_pid": [4, 4]}
_WAKE = {**_COMMON, "comm": [8, 16], "pid": [24, 4], "prio": [28, 4], "target_cpu": [32, 4]}
EVENTS = {
    "sched_switch": {
        "id": SWITCH,
        "fields": {
            **_COMMON, "prev_comm": [8, 16], "prev_pid": [24, 4], "prev_prio": [28, 4], "prev_state": [32, 8],
            "next_comm": [40, 16], "next_pid": [56, 4], "next_prio": [60, 4],
        },
    },
    "sched_wakeup": {"id": WAKE, "fields": _WAKE},
    "sched_wakeup_new": {"id": NEW, "fields": _WAKE},
    "sched_process_fork": {
        "id": FORK,
        "fields": {**_COMMON, "parent_comm": [8, 4], "parent_pid": [12, 4], "child_comm": [16, 4],
                   "child_pid": [20, 4]},
    },
}  # fmt: skip
STATES = {"R": 0, "R+": 0x100, "S": 1, "D": 2, "T": 4, "X": 16, "Z": 32, "I": 128}


def switch(prev: int, state: str, then: int, names: dict[int, str] | None = None) -> bytes:
    known = names or {}
    before, after = (known.get(tid, f"t{tid}").encode() for tid in (prev, then))
    return struct.pack("<HBBi16siiq16sii", SWITCH, 0, 0, prev, before, prev, 120, STATES[state], after, then, 120)


def wake(tid: int, core: int = 0, kind: int = WAKE) -> bytes:
    return struct.pack("<HBBi16siii", kind, 0, 0, 0, b"", tid, 120, core)


def fork(parent: int, child: int) -> bytes:
    return struct.pack("<HBBiIiIi", FORK, 0, 0, parent, 0, parent, 0, child)


def event(delta: int, content: bytes, *, long: bool = False) -> bytes:
    """An event so long after the one before, with its own head, after as many longer times as are needed."""
    head = b""
    if delta >= 1 << 27:
        head, delta = struct.pack("<II", 30 | (delta & ((1 << 27) - 1)) << 5, delta >> 27), 0
    content += bytes(-len(content) % 4)
    if long:
        return head + struct.pack("<II", delta << 5, len(content) + 4) + content
    return head + struct.pack("<I", (len(content) // 4) | delta << 5) + content


def stamp(time_ns: int) -> bytes:
    """A time by itself."""
    return struct.pack("<II", 31 | (time_ns & ((1 << 27) - 1)) << 5, (time_ns >> 27) & 0xFFFFFFFF)


def padding(n_bytes: int, delta: int = 1) -> bytes:
    """Space that was taken and given back."""
    return struct.pack("<II", 29 | delta << 5, n_bytes - 4) + bytes(n_bytes - 8)


def page(begin: int, data: bytes, *, missed: int | None = None, n_bytes: int = PAGE) -> bytes:
    """A page; `missed` events were lost before it, 0: nobody counted them."""
    used = len(data)
    if missed is not None:
        used |= 1 << 31
        if missed:
            used |= 1 << 30
            data += struct.pack("<q", missed)
    assert len(data) <= n_bytes - 16
    return (struct.pack("<QQ", begin, used) + data).ljust(n_bytes, b"\0")


def pages(*events: tuple[int, bytes], missed: int | None = None) -> bytes:
    """Events of a core at their times, on as many pages as they need."""
    found, data, begin, last = b"", b"", events[0][0], events[0][0]
    for time, content in events:
        piece = event(time - last, content)
        if len(data) + len(piece) > PAGE - 32:
            found += page(begin, data, missed=missed)
            missed, data, begin, piece = None, b"", time, event(0, content)
        data += piece
        last = time
    return found + page(begin, data, missed=missed)


def frame(kind: int, core: int, content: bytes, time_ns: int) -> bytes:
    packed = zlib.compress(content)
    return struct.pack("<HHIIq", kind, core, len(packed), len(content), time_ns) + packed


def facts(time_ns: int, **told: object) -> bytes:
    return frame(1, 0, json.dumps(told).encode(), time_ns)


def clocks(monotonic: int, unix: int) -> dict[str, dict[str, int]]:
    return {"clocks": {"monotonic_ns": monotonic, "unix_ns": unix}}


def write(
    path: Path,
    *frames: bytes,
    source: str = "tracefs",
    began: tuple[tuple[int, int], ...] = ((1, 1),),
    names: tuple[str, ...] = ("main",),
    at: int = 1000,
    unix: int = 0,
    end: int | None = 10_000,
    lost: dict[str, int] | None = None,
) -> Path:
    """A whole file: the head, these frames, and the end (None: it was killed). Unix time is `unix` more."""
    head = facts(at, source=source, root=1, page_bytes=PAGE, events=EVENTS, cores=[0, 1], **clocks(at, at + unix))
    start = facts(at, began=began, names=names)
    last = b"" if end is None else facts(end, end="job", lost=lost or {}, **clocks(end, end + unix))
    path.write_bytes(b"".join((MAGIC, head, start, *frames, last)))
    return path


def record(kind: int, content: bytes, pid: int, tid: int, time: int, core: int = 0, flags: int = 0) -> bytes:
    """A record of perf."""
    whole = content + struct.pack("<IIQII", pid, tid, time, core, 0)
    return struct.pack("<IHH", kind, flags, len(whole) + 8) + whole


def perf_switch(tid: int, time: int, *, out: bool, preempted: bool = False, pid: int = 1) -> bytes:
    return record(14, b"", pid, tid, time, flags=(1 << 13 if out else 0) | (1 << 14 if preempted else 0))


def perf_task(kind: int, pid: int, ppid: int, tid: int, ptid: int, time: int) -> bytes:
    """The start (7) or end (4) of a thread."""
    return record(kind, struct.pack("<IIIIQ", pid, ppid, tid, ptid, time), ppid, ptid, time)


def perf_name(pid: int, tid: int, name: str, time: int) -> bytes:
    text = name.encode() + b"\0"
    return record(3, struct.pack("<II", pid, tid) + text.ljust(-(-len(text) // 8) * 8, b"\0"), pid, tid, time)


def perf_lost(count: int, time: int) -> bytes:
    return record(2, struct.pack("<QQ", 7, count), 0, 0, time)
