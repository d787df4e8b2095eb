"""The kernel's tracer as a source of scheduling events: an instance of our own in tracefs, for the job's threads alone.

Its buffers are stored as they are, page by page; nothing is decoded here. The name of an instance has the pid and start
time of the process that made it, so that leftovers can be distinguished from instances in use.
"""

from __future__ import annotations

import os
import re
import select
from pathlib import Path
from typing import Any

from stepscope.record.system.proc import read_once, threads_of

PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_EVENTS = ("sched_switch", "sched_wakeup", "sched_wakeup_new", "sched_process_fork")
_NAME = re.compile(r"stepscope-(\d+)-(\d+)")
#: Memory for events that were not read yet, of all cores together, and the bounds for one core. Units: KiB.
_BUFFERS_KIB, _LEAST_KIB, _MOST_KIB = 64 << 10, 512, 4 << 10
#: A core's buffer is read when this percentage of it is full, or at the next tick.
_WAKE_PERCENT = 25
#: The first process-id namespace of a machine, whose numbers the tracer uses.
_FIRST_NAMESPACE = "pid:[4026531836]"
_FIELD = re.compile(r"field:(?P<type>[^;]*?)(?P<name>\w+)(?:\[\d+\])?;\s*offset:(?P<at>\d+);\s*size:(?P<size>\d+);")


def why_not(places: tuple[Path, ...] = PLACES) -> str | None:
    """Why the tracer cannot be used, with the remedy; None if it can."""
    if _namespace() != _FIRST_NAMESPACE:
        return "the kernel's tracer knows no process ids of containers: record on the host, or start with --pid=host"
    place = _place(places)
    if place is None:
        if not os.access(places[0], os.R_OK | os.X_OK):
            return f"{places[0]} may be read by root only: run with sudo"
        return f"tracefs is not mounted: sudo mount -t tracefs nodev {places[0]}"
    if not os.access(place / "instances", os.W_OK):
        who = "run with sudo" if os.geteuid() else "in a container, mount it for writing and add --cap-add SYS_ADMIN"
        return f"{place}/instances cannot be written: {who}"
    return None


def _namespace() -> str:
    """The process-id namespace that we are in."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # a kernel without any
        return _FIRST_NAMESPACE


def _place(places: tuple[Path, ...]) -> Path | None:
    return next((place for place in places if os.access(place / "instances", os.F_OK)), None)


def remove_leftovers(places: tuple[Path, ...] = PLACES) -> int:
    """Remove instances whose makers are gone, as after a SIGKILL. Returns their number."""
    place = _place(places)
    removed = 0
    try:
        instances = sorted((place / "instances").iterdir()) if place else []
    except OSError:
        return 0
    for instance in instances:
        match = _NAME.fullmatch(instance.name)
        if match and _began(int(match[1])) != match[2]:
            try:
                instance.rmdir()
            except OSError:  # somebody has it open, or was faster
                continue
            removed += 1
    return removed


def _began(pid: int) -> str | None:
    """When a process began, in ticks since boot, as text; None if it is gone, or only waits to be reaped."""
    text = read_once(f"/proc/{pid}/stat")
    fields = [] if text is None else text[text.rfind(")") + 2 :].split()
    return None if not fields or fields[0] in {"Z", "X"} else fields[19]


class Tracefs:
    """An instance of the tracer. Raises OSError where the system refuses it."""

    source = "tracefs"

    def __init__(self, places: tuple[Path, ...] = PLACES) -> None:
        place = _place(places)
        if place is None:
            raise FileNotFoundError
        remove_leftovers(places)
        self._place = place
        self.folder = place / "instances" / f"stepscope-{os.getpid()}-{_began(os.getpid())}"
        self.folder.mkdir()
        self._handles: dict[int, int] = {}
        self._tgids: dict[int, int] = {}
        try:
            self._page = _page_of(self.folder, self._place)
            self._set_up()
        except OSError:
            self.close()
            raise

    def _set_up(self) -> None:
        cores = sorted(self.folder.glob("per_cpu/cpu*"), key=lambda path: int(path.name[3:]))
        size = min(max(_BUFFERS_KIB // max(len(cores), 1), _LEAST_KIB), _MOST_KIB)
        self._write("tracing_on", "0")
        self._write("trace_clock", "mono")
        self._write("buffer_size_kb", str(size))
        self._write("options/event-fork", "1")
        for name, value in (("options/record-tgid", "1"), ("buffer_percent", str(_WAKE_PERCENT))):
            if (self.folder / name).exists():  # since Linux 4.14 and 5.0
                self._write(name, value)
        # Only our own thread, which starts none: with an empty list all threads would be traced for a moment.
        self._write("set_event_pid", str(os.getpid()))
        for event in _EVENTS:
            self._write(f"events/sched/{event}/enable", "1")
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._handles = {int(path.name[3:]): os.open(path / "trace_pipe_raw", flags) for path in cores}

    def _write(self, name: str, text: str, flags: int = os.O_TRUNC) -> None:
        handle = os.open(self.folder / name, os.O_WRONLY | os.O_CLOEXEC | flags)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)

    def facts(self) -> dict[str, Any]:
        """Facts that are needed to decode the pages."""
        formats = {name: read_once(str(self._place / f"events/sched/{name}/format")) or "" for name in _EVENTS}
        events = {name: _fields(text) for name, text in formats.items()}
        return {"page_bytes": self._page, "events": events, "cores": sorted(self._handles)}

    def follow(self, root: int) -> list[tuple[int, int]]:
        """Trace all threads of a process and its descendants, and all that they start. Returns (thread, process)."""
        self._write("tracing_on", "1")
        threads: dict[int, int] = {}
        # Threads that started before their parents were listed are in the next round.
        while new := {tid: pid for tid, pid in threads_of(root).items() if tid not in threads}:
            # One write for all threads: each write waits for every core.
            # Truncating would empty the list for a moment: all threads would be traced, and later their children.
            self._write("set_event_pid", " ".join(map(str, new)) + "\n", os.O_APPEND)
            threads.update(new)
        return sorted(threads.items())

    def register(self, poll: select.poll) -> None:
        """Have a poll return when a core's buffer fills up."""
        for handle in self._polled():
            poll.register(handle, select.POLLIN)

    def unregister(self, poll: select.poll) -> None:
        """Undo `register`."""
        for handle in self._polled():
            poll.unregister(handle)

    def _polled(self) -> list[int]:
        """Handles to poll; none if the kernel has no percentage, as the poll would return at every event."""
        return list(self._handles.values()) if (self.folder / "buffer_percent").exists() else []

    def read(self) -> list[tuple[int, bytes]]:
        """New pages of each core: (core, pages)."""
        return [(core, pages) for core, handle in self._handles.items() if (pages := self._pages(handle))]

    def _pages(self, handle: int) -> bytes:
        pages = []
        while True:
            try:
                page = os.read(handle, self._page)
            except BlockingIOError:
                break
            if not page:
                break
            pages.append(page)
            if len(pages) > _MOST_KIB:  # it fills faster than we read: the other cores must be read too
                break
        return b"".join(pages)

    def new_threads(self, _root: int) -> list[tuple[int, int]]:
        """(thread, process) of the threads of the machine that ran since the last call."""
        now = {}
        for line in (read_once(str(self._place / "saved_tgids")) or "").splitlines():
            tid, _, pid = line.partition(" ")
            now[int(tid)] = int(pid)
        new = [(tid, pid) for tid, pid in now.items() if self._tgids.get(tid) != pid]
        self._tgids = now
        return new

    def lost(self) -> dict[int, int]:
        """Events of each core that were overwritten before they could be read, or that have not been read."""
        return {core: self._count(core, "overrun") + self._count(core, "dropped events") for core in self._handles}

    def unread(self) -> int:
        """Events that are in the buffers, or were overwritten."""
        return sum(self._count(core, "entries") + self._count(core, "overrun") for core in self._handles)

    def _count(self, core: int, name: str) -> int:
        lines = (read_once(str(self.folder / f"per_cpu/cpu{core}/stats")) or "").splitlines()
        return sum(int(line.partition(":")[2]) for line in lines if line.partition(":")[0] == name)

    def stop(self) -> None:
        """Stop tracing; events in the buffers can still be read."""
        self._write("tracing_on", "0")

    def close(self) -> None:
        """Remove the instance."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles = {}
        self.folder.rmdir()


def _fields(text: str) -> dict[str, Any]:
    """The number of an event, and where its fields are: offset and size in bytes."""
    number = re.search(r"^ID:\s*(\d+)", text, re.MULTILINE)
    fields = {match["name"]: [int(match["at"]), int(match["size"])] for match in _FIELD.finditer(text)}
    return {"id": int(number[1]) if number else None, "fields": fields}


def _page_of(folder: Path, place: Path) -> int:
    """Bytes of a page of the ring buffer."""
    text = read_once(str(folder / "events/header_page")) or read_once(str(place / "events/header_page")) or ""
    data = next((match for match in _FIELD.finditer(text) if match["name"] == "data"), None)
    return int(data["at"]) + int(data["size"]) if data else os.sysconf("SC_PAGE_SIZE")
