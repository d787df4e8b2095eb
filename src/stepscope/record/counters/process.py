"""What one process of the job does: its threads' time on cores and waiting for one, memory, faults, bytes, switches."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.record.system.files import read_once
from stepscope.record.system.parse import cgroup_cpu_stats, counted_lines, process_stat, schedstat_ns, switches

if TYPE_CHECKING:
    from stepscope.record.counters.readings import Sample
    from stepscope.record.system.files import Texts

__all__ = [
    "Grown", "Process", "cgroup_file", "garbage_collections", "process_bytes", "process_totals", "thread_files",
    "thread_switches", "thread_times", "throttled_ns",
]  # fmt: skip

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GC = struct.Struct("<qqq")


class Grown:
    """Totals of threads that come and go, as one pair that only grows: what an ended thread did stays counted."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._is_first = True
        self.total = (0, 0)

    def add(self, now: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """The sums, after what each thread did since the last time.

        All that a new thread did is new, except when the process itself is seen for the first time.
        """
        a, b = self.total
        for tid, (first, second) in now.items():
            was = self._last.get(tid)
            if was is None or first < was[0]:  # a new thread, maybe under the number of an ended one
                was = (first, second) if self._is_first else (0, 0)
            a += first - was[0]
            b += max(second - was[1], 0)
        self._last, self._is_first = now, False
        self.total = (a, b)
        return self.total


@dataclass(slots=True)
class Process:
    """A process that is looked at, and what its threads did so far."""

    pid: int
    start_ticks: int | None = None
    #: Whether it keeps a file of its garbage collections; looked for as it is new.
    has_hook: bool = False
    times: Grown = field(default_factory=Grown)
    switches: Grown = field(default_factory=Grown)

    @property
    def device(self) -> str:
        """As the counters name it."""
        return f"pid:{self.pid}"


def process_totals(files: Texts, sample: Sample, process: Process) -> bool:
    """Adds use of cores, faults, number of threads. False if the process is gone, or another one now."""
    folder, device = f"/proc/{process.pid}", process.device
    text = files.read(f"{folder}/stat")
    stat = process_stat(text) if text else None
    if stat is None or process.start_ticks not in {None, stat.start_ticks}:
        return False
    process.start_ticks = stat.start_ticks
    sample.levels["num_threads", "count", device] = stat.n_threads
    sample.totals["process_minor_faults", "1/s", device] = stat.minor_faults
    sample.totals["process_major_faults", "1/s", device] = stat.major_faults
    sample.shares["process_cpu_usage", "%", device] = (stat.ticks * _TICK_NS, float(sample.clock_ns))
    return True


def process_bytes(files: Texts, sample: Sample, process: Process) -> None:
    """Adds memory held, and bytes read from disks and written."""
    folder, device = f"/proc/{process.pid}", process.device
    if memory := files.read(f"{folder}/statm"):
        sample.levels["process_mem_rss", "bytes", device] = int(memory.split()[1]) * _PAGE
    if io := files.read(f"{folder}/io"):
        read, written = counted_lines(io, b"read_bytes", b"write_bytes")
        sample.totals["process_read_bytes_rate", "bytes/s", device] = read
        sample.totals["process_write_bytes_rate", "bytes/s", device] = written


def thread_files(pid: int, name: str) -> list[str]:
    """The file of that name of each of its threads."""
    folder = f"/proc/{pid}/task"
    try:
        # Twenty times a second: Path takes thrice as long.
        return [f"{folder}/{tid}/{name}" for tid in os.listdir(folder)]  # noqa: PTH208
    except OSError:  # it has ended
        return []


def thread_times(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds the time that its threads ran, and that they were ready and waited for a core, summed. Units: ns.

    `texts` are the threads' files `schedstat`.
    """
    found = {path: schedstat_ns(text) for path, text in texts.items() if text}
    if found:
        on_core, waiting = process.times.add(found)
        sample.totals["process_oncpu_time", "ns/s", process.device] = on_core
        sample.totals["process_runq_time", "ns/s", process.device] = waiting


def thread_switches(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds how often its threads gave up their core (waited), and how often they lost it to others.

    `texts` are the threads' files `status`.
    """
    found = {path: switches(text) for path, text in texts.items() if text}
    if found:
        voluntary, involuntary = process.switches.add(found)
        sample.totals["process_voluntary_ctx_switches", "1/s", process.device] = voluntary
        sample.totals["process_involuntary_ctx_switches", "1/s", process.device] = involuntary


def garbage_collections(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds what Python's collector took, where the start-up hook runs in the process: it keeps a file of totals."""
    text = next(iter(texts.values()), None)
    if text and len(text) >= _GC.size:
        count, taken_ns, began_ns = _GC.unpack_from(text)
        if began_ns:  # one is under way
            taken_ns += max(sample.clock_ns - began_ns, 0)
        sample.totals["process_python_gc_time", "ns/s", process.device] = taken_ns
        sample.totals["process_python_gc_collections", "1/s", process.device] = count


def cgroup_file(pid: int) -> str | None:
    """The file that tells how long the job was stopped for having used up its share of CPU; None without a limit."""
    text = read_once(f"/proc/{pid}/cgroup") or ""
    return next((path for path in cgroup_cpu_stats(text) if "throttled" in (read_once(path) or "")), None)


def throttled_ns(text: bytes) -> int:
    """Time in which a group of processes was stopped by its limit, as version 2 (µs) or 1 (ns) of cgroups tells it."""
    micro, nano = counted_lines(text, b"throttled_usec", b"throttled_time")
    return micro * 1000 or nano
