"""The collector of scheduling events: a separate process that runs as long as the job and the recorder do.

`python -m stepscope.record.sched.main '{"folder": …}'` reads the job's pid as a line from standard input, and
writes problems to standard output as lines of JSON.

It writes `sched.ring`, a sequence of frames; if we are killed, the last one is missing or cut. The file begins with
`MAGIC`. A frame is a head, `HEAD` (little-endian: kind, number of the core, bytes that follow, bytes that they unpack
to, when it was read on the monotonic clock in ns), then zlib data: JSON (`FACTS`) or a source's data of one core
(`EVENTS`).
"""

from __future__ import annotations

import gc
import json
import os
import select
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.record.sched import perf
from stepscope.record.system import meta, tracefs
from stepscope.record.system.child_main import Ending, pid_from, pidfd, tell
from stepscope.record.system.proc import read_once

if TYPE_CHECKING:
    from collections.abc import Callable

    Source = tracefs.Tracefs | perf.Switches

NAME = "sched.ring"
MAGIC = b"stepscope sched 1\n"
HEAD = struct.Struct("<HHIIq")
FACTS, EVENTS = 1, 2
_LEVEL = 1


class SchedFile:
    """`sched.ring`, whose frames are written by `flush`. Raises OSError (the disk is full)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frames: list[bytes] = []
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.size = 0
        self._put(MAGIC)

    def add(self, time_ns: int, core: int, content: bytes) -> None:
        """Add events of a core, with the time at which they were read."""
        self._frame(EVENTS, core, content, time_ns)

    def add_facts(self, time_ns: int, **facts: Any) -> None:
        """Add facts, as JSON."""
        self._frame(FACTS, 0, json.dumps(facts, separators=(",", ":")).encode(), time_ns)

    def _frame(self, kind: int, core: int, content: bytes, time_ns: int) -> None:
        packed = zlib.compress(content, _LEVEL)
        self._frames += [HEAD.pack(kind, core, len(packed), len(content), time_ns), packed]

    def flush(self) -> None:
        """Write, all or nothing."""
        frames, self._frames = self._frames, []
        if frames:
            self._put(b"".join(frames))

    def _put(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError:
            os.ftruncate(self._handle, self.size)
            raise
        self.size += len(content)

    def close(self) -> None:
        """Flush and close."""
        try:
            self.flush()
        finally:
            os.close(self._handle)


#: The file may grow to this; later events are counted, not written.
MOST_BYTES = 256 << 20
_TICK_S = 1.0
#: The share of our time that listing the machine's threads may take, and the longest time between two listings.
_LISTING, _LEAST_OFTEN_S = 0.002, 30.0


def opened(try_tracefs: Callable[[], str | None] = tracefs.why_not) -> tuple[Source | None, dict[str, Any] | None]:
    """The best source that we may use, and an issue that says what the user does not get."""
    why = try_tracefs()
    if why is None:
        try:
            return tracefs.Tracefs(), None
        except OSError as error:
            why = f"the kernel's tracer is not available: {error.strerror or error}"
    refused = perf.why_not()
    if refused is None:
        what = f"waits after a wake-up are not recorded, those after a preemption are: {why}"
        return perf.Switches(), meta.issue("sched_no_wakeups", what, severity="info")
    return None, meta.issue("no_scheduling", f"only counters are recorded: {why}; or {refused}", severity="info")


def main(argument: str) -> int:
    """Collect until the end. 0 if everything was written; 1 if not: the last line of output says why."""
    folder = Path(json.loads(argument)["folder"])
    ending = Ending()
    ending.watch()
    source, issue = opened()
    if source is None:
        tell({"ready": True, "issue": issue})
        return 0
    try:
        return _collected(folder, source, issue, ending)
    finally:
        source.close()


def _collected(folder: Path, source: Source, issue: dict[str, Any] | None, ending: Ending) -> int:
    try:
        file = SchedFile(folder / NAME)
    except OSError as error:
        return tell({"error": f"cannot write {folder / NAME}: {error.strerror}"})
    tell({"ready": True, "issue": issue})
    root = pid_from(sys.stdin.fileno())
    if root is None:
        return 1
    gc.disable()
    try:
        _collect(source, file, root, ending)
        file.close()
    except OSError as error:
        why = f"{file.path}: {error.strerror or error}; scheduling events end here, the job goes on"
        return tell({"error": why})
    return 0


def _collect(source: Source, file: SchedFile, root: int, ending: Ending) -> None:
    """Read and write until the end. Raises OSError."""
    begin = time.process_time()
    file.add_facts(time.monotonic_ns(), source=source.source, root=root, clocks=meta.clocks(), **source.facts())
    poll, handle = select.poll(), pidfd(root)
    for each in (sys.stdin.fileno(), *([] if handle is None else [handle])):
        poll.register(each, select.POLLIN | select.POLLHUP)
    source.register(poll)
    threads = source.follow(root)
    names = [(read_once(f"/proc/{pid}/task/{tid}/comm") or "").strip() for tid, pid in threads]
    file.add_facts(time.monotonic_ns(), began=threads, names=names)
    file.flush()
    next_tick = next_listing = time.monotonic() + _TICK_S
    try:
        while ending.reason is None and file.size < MOST_BYTES:
            events = dict(poll.poll(max(0.0, next_tick - time.monotonic()) * 1000))
            ending.look(events, handle, root)
            _take(source, file)
            now = time.monotonic()
            if now >= next_tick or ending.reason is not None:
                next_tick = now + _TICK_S
                if now >= next_listing or ending.reason is not None:
                    _list(source, file, root)
                    next_listing = now + min((time.monotonic() - now) / _LISTING, _LEAST_OFTEN_S)
                file.add_facts(time.monotonic_ns(), clocks=meta.clocks())
                file.flush()
        if ending.reason is None:
            _wait(poll, source, file, root, handle, ending)
        else:
            source.stop()
            _take(source, file)
        lost = {str(core): count for core, count in source.lost().items() if count}
        cost = time.process_time() - begin
        file.add_facts(
            time.monotonic_ns(), end=ending.reason, lost=lost, cpu_seconds=round(cost, 3), clocks=meta.clocks()
        )
    finally:
        if handle is not None:
            os.close(handle)


def _take(source: Source, file: SchedFile) -> None:
    now = time.monotonic_ns()
    for core, content in source.read():
        file.add(now, core, content)


def _list(source: Source, file: SchedFile, root: int) -> None:
    threads = source.new_threads(root)
    if threads:
        file.add_facts(time.monotonic_ns(), threads=threads)


def _wait(poll: select.poll, source: Source, file: SchedFile, root: int, handle: int | None, ending: Ending) -> None:
    """The file has reached its limit: until the end, the kernel only counts events."""
    file.add_facts(time.monotonic_ns(), full_bytes=file.size, clocks=meta.clocks())
    file.flush()
    source.unregister(poll)
    while ending.reason is None:
        ending.look(dict(poll.poll(_TICK_S * 1000)), handle, root)
    source.stop()
    file.add_facts(time.monotonic_ns(), unwritten=source.unread())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
