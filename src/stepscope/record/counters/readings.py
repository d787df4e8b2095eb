"""Parses what was read of the machine and of each process, and turns two readings into counters of the interval.

Of a process: its threads' time on cores and waiting for one, memory, faults, bytes, context switches.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.record.system.proc import (
    OpenFiles,
    Texts,
    cgroup_cpu_stats,
    core_times,
    counted_lines,
    disk_bytes,
    meminfo_bytes,
    net_bytes,
    pressure_us,
    process_stat,
    read_once,
    schedstat_ns,
    switches,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.record.system.proc import Texts

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GC = struct.Struct("<qqq")

Key = tuple[str, str, str]  # metric, unit, device
Row = tuple[str, str, str, float]


@dataclass(slots=True)
class Sample:
    """The values read at one time: levels, and totals whose growth is a rate.

    `time_ns` is Unix time; `clock_ns` is monotonic, for the lengths of intervals. `shares` are totals (part, whole)
    whose growth has a ratio, as a percentage.
    """

    time_ns: int
    clock_ns: int
    levels: dict[Key, float] = field(default_factory=dict)
    totals: dict[Key, float] = field(default_factory=dict)
    shares: dict[Key, tuple[float, float]] = field(default_factory=dict)


def sample_now() -> Sample:
    """An empty sample of this moment."""
    return Sample(time.time_ns(), time.monotonic_ns())


def rates(before: Sample | None, after: Sample) -> Iterator[Row]:
    """Metric, unit, device, value at the end of an interval: levels, and totals as growth per second.

    A total that shrank (a counter that started again) gives nothing, nor does a first sample.
    """
    for (metric, unit, device), value in after.levels.items():
        yield metric, unit, device, value
    if before is None or after.clock_ns <= before.clock_ns:
        return
    seconds = (after.clock_ns - before.clock_ns) / 1e9
    for key, value in after.totals.items():
        old = before.totals.get(key)
        if old is not None and value >= old:
            yield (*key, (value - old) / seconds)
    for key, (part, whole) in after.shares.items():
        was = before.shares.get(key)
        if was is not None and whole > was[1]:
            yield (*key, max(0.0, 100 * (part - was[0]) / (whole - was[1])))


def cores(files: Texts, sample: Sample) -> None:
    """Adds how busy the host and each of its cores are."""
    if text := files.read("/proc/stat"):
        for device, times in core_times(text).items():
            sample.shares["host_cpu_usage", "%", device] = times


def machine(files: Texts, sample: Sample) -> None:
    """Adds traffic of disks and networks, and pressure: the time in which work waited for a resource."""
    for resource in ("cpu", "io", "memory"):
        if text := files.read(f"/proc/pressure/{resource}"):
            for kind, total in pressure_us(text).items():
                if (resource, kind) != ("cpu", "full"):  # of a whole machine it is 0 by definition
                    sample.totals[f"host_pressure_{resource}_{kind}", "ns/s", "host"] = total * 1000
    if text := files.read("/proc/diskstats"):
        for disk, (read, written, open_ms) in disk_bytes(text).items():
            sample.totals["disk_read_bytes_rate", "bytes/s", disk] = read
            sample.totals["disk_write_bytes_rate", "bytes/s", disk] = written
            sample.totals["disk_busy_time", "ns/s", disk] = open_ms * 1_000_000
    if text := files.read("/proc/net/dev"):
        for name, (received, sent) in net_bytes(text).items():
            sample.totals["net_recv_bytes_rate", "bytes/s", name] = received
            sample.totals["net_sent_bytes_rate", "bytes/s", name] = sent


def memory_and_clocks(files: OpenFiles, sample: Sample) -> None:
    """Adds values that change slowly: memory of the host, clocks of the cores."""
    if text := files.read("/proc/meminfo"):
        known = meminfo_bytes(text)
        for name, metric in (("MemAvailable", "host_mem_available"), ("Dirty", "host_mem_dirty")):
            if name in known:
                sample.levels[metric, "bytes", "host"] = known[name]
        if known.get("SwapTotal"):
            sample.levels["host_swap_used", "bytes", "host"] = known["SwapTotal"] - known.get("SwapFree", 0)
    for core, mhz in frequencies(files).items():
        sample.levels["cpu_frequency", "MHz", core] = mhz


def frequencies(files: OpenFiles) -> dict[str, float]:
    """The clock of each core in MHz, from cpufreq where there is one, else from /proc/cpuinfo."""
    clocks = {}
    for i in range(os.cpu_count() or 1):
        text = files.read(f"/sys/devices/system/cpu/cpu{i}/cpufreq/scaling_cur_freq")
        if text is None:
            break
        clocks[f"cpu{i}"] = int(text) / 1000
    if clocks:
        return clocks
    lines = (read_once("/proc/cpuinfo") or "").splitlines()
    values = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    return {f"cpu{i}": float(value) for i, value in enumerate(values)}


class Grown:
    """Sums over threads that start and end, as one pair that only grows: ended threads stay counted."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._is_first = True
        self.total = (0, 0)

    def add(self, now: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """Add the growth of each thread's totals since the last call. Returns the sums.

        All of a new thread's total is growth, except in the first call for a process.
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
    """A process of the job, with the totals of its threads."""

    pid: int
    start_ticks: int | None = None
    #: Whether it has the start-up hook, which writes a file of garbage collections.
    has_hook: bool = False
    times: Grown = field(default_factory=Grown)
    switches: Grown = field(default_factory=Grown)

    @property
    def device(self) -> str:
        """Its name in the counters."""
        return f"pid:{self.pid}"


def process_totals(files: Texts, sample: Sample, process: Process) -> bool:
    """Adds use of cores, faults, number of threads. False if the process is gone, or its pid is another one's now."""
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
    """Adds resident memory, and bytes read from disks and written."""
    folder, device = f"/proc/{process.pid}", process.device
    if memory := files.read(f"{folder}/statm"):
        sample.levels["process_mem_rss", "bytes", device] = int(memory.split()[1]) * _PAGE
    if io := files.read(f"{folder}/io"):
        read, written = counted_lines(io, b"read_bytes", b"write_bytes")
        sample.totals["process_read_bytes_rate", "bytes/s", device] = read
        sample.totals["process_write_bytes_rate", "bytes/s", device] = written


def thread_files(pid: int, name: str) -> list[str]:
    """The file of that name of each thread of the process."""
    folder = f"/proc/{pid}/task"
    try:
        # Twenty times a second: Path takes thrice as long.
        return [f"{folder}/{tid}/{name}" for tid in os.listdir(folder)]  # noqa: PTH208
    except OSError:  # it has ended
        return []


def thread_times(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds the summed time that threads ran and waited for a core, from their files `schedstat`. Units: ns."""
    times = {path: schedstat_ns(text) for path, text in texts.items() if text}
    if times:
        on_core, waiting = process.times.add(times)
        sample.totals["process_oncpu_time", "ns/s", process.device] = on_core
        sample.totals["process_runq_time", "ns/s", process.device] = waiting


def thread_switches(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds how often threads gave up their core, and were preempted, from their files `status`."""
    counts = {path: switches(text) for path, text in texts.items() if text}
    if counts:
        voluntary, involuntary = process.switches.add(counts)
        sample.totals["process_voluntary_ctx_switches", "1/s", process.device] = voluntary
        sample.totals["process_involuntary_ctx_switches", "1/s", process.device] = involuntary


def garbage_collections(texts: Texts, sample: Sample, process: Process) -> None:
    """Adds garbage collections and their time, from the file of totals that the start-up hook writes."""
    text = next(iter(texts.values()), None)
    if text and len(text) >= _GC.size:
        count, taken_ns, began_ns = _GC.unpack_from(text)
        if began_ns:  # one is under way
            taken_ns += max(sample.clock_ns - began_ns, 0)
        sample.totals["process_python_gc_time", "ns/s", process.device] = taken_ns
        sample.totals["process_python_gc_collections", "1/s", process.device] = count


def cgroup_file(pid: int) -> str | None:
    """The file that has how long the job was throttled by its CPU limit; None without a limit."""
    text = read_once(f"/proc/{pid}/cgroup") or ""
    return next((path for path in cgroup_cpu_stats(text) if "throttled" in (read_once(path) or "")), None)


def throttled_ns(text: bytes) -> int:
    """How long a group of processes was throttled, from cpu.stat of cgroups version 2 (µs) or 1 (ns)."""
    micro, nano = counted_lines(text, b"throttled_usec", b"throttled_time")
    return micro * 1000 or nano
