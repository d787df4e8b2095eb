"""Reads the counters of a job and its machine, some in every tick of the sampler and others less often.

A tick only reads the kernel's files; they are parsed later, for many ticks at a time. The same work takes three times
as long right after the pause between two ticks, when nothing of ours is in the core's caches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from stepscope.record.counters.readings import (
    Process,
    Sample,
    cgroup_file,
    cores,
    garbage_collections,
    machine,
    memory_and_clocks,
    process_bytes,
    process_totals,
    rates,
    sample_now,
    thread_files,
    thread_switches,
    thread_times,
    throttled_ns,
)
from stepscope.record.system.proc import OpenFiles, Texts, descendants, n_threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stepscope.record.counters.readings import Row

#: Threads whose times are read in one tick; with more of them, they are read in every second tick, third …
_THREADS_A_TICK = 64
#: /proc/stat has a line for each core. With more cores than this it is read less often.
_CORES_A_TICK = 32
_MACHINE_HZ, _SWITCHES_HZ, _TREE_HZ, _SLOW_HZ = 10, 4, 2, 1
#: The machine's files take as long as all others, and are read in every second tick at the most.
_TICKS_A_MACHINE = 2
_CORE_FILES = ("/proc/stat",)
_MACHINE_FILES = (
    *(f"/proc/pressure/{resource}" for resource in ("cpu", "io", "memory")), "/proc/diskstats", "/proc/net/dev",
)  # fmt: skip
#: A reading that took longer was interrupted, so its time is not known: it is repeated, up to so many times.
_INTERRUPTED_NS, _TRIES = 1_000_000, 4


#: Adds the contents of files to the sample of that moment; returns False if the process is gone.
_Add = Callable[[Texts, Sample], bool | None]


@dataclass(slots=True)
class _Watched:
    """A process of the job, the files that are read of it, and the functions that parse them."""

    process: Process
    stat: tuple[str, ...]
    bytes: tuple[str, ...]
    gc: tuple[str, ...]
    times: list[str]
    add: dict[str, tuple[str, _Add]]

    @classmethod
    def of(cls, pid: int, folder: Path) -> _Watched:
        process = Process(pid)
        adds = {
            "": process_totals, " bytes": process_bytes, " gc": garbage_collections, " times": thread_times,
            " switches": thread_switches,
        }  # fmt: skip
        return cls(
            process,
            (f"/proc/{pid}/stat",),
            (f"/proc/{pid}/statm", f"/proc/{pid}/io"),
            (f"{folder}/gc-{pid}",),
            [],
            {name: (process.device + name, partial(add, process=process)) for name, add in adds.items()},
        )


@dataclass(slots=True)
class CounterSources:
    """Reads the job's processes and the machine, and remembers the readings that the next rates need."""

    root: int
    hz: float
    job_folder: Path
    files: OpenFiles = field(default_factory=OpenFiles)
    pids: set[int] = field(default_factory=set)
    _watched: dict[int, _Watched] = field(default_factory=dict)
    _readings: list[tuple[str, int, int, Texts, _Add]] = field(default_factory=list)
    _before: dict[str, Sample] = field(default_factory=dict)
    _ended: list[Process] = field(default_factory=list)
    _n_threads: dict[str, int] = field(default_factory=dict)
    _cgroup: str | None = None

    def __post_init__(self) -> None:
        self._cgroup = cgroup_file(self.root)

    def tick(self, number: int) -> None:
        """Read what is due in this tick; everything is due in the first two."""
        if self._is_due(number, _TREE_HZ):
            self._update_processes()
        self._read_machine(number)
        with_threads = number % (1 + sum(self._n_threads.values()) // _THREADS_A_TICK) == 0
        with_bytes, with_switches = self._is_due(number, self._machine_hz), self._is_due(number, _SWITCHES_HZ)
        for watched in list(self._watched.values()):
            add = watched.add
            texts = self._read(watched.stat, *add[""])
            if not texts:
                self._forget(watched)
                continue
            if with_bytes:
                self._read(watched.bytes, *add[" bytes"])
            if watched.process.has_hook:
                self._read(watched.gc, *add[" gc"])
            if with_threads:
                n_now = n_threads(texts[watched.stat[0]])
                self._read_threads(watched, again=with_switches or len(watched.times) != n_now)
            if with_switches:
                self._read(thread_files(watched.process.pid, "status"), *add[" switches"])

    def _read_machine(self, number: int) -> None:
        if self._is_due(number, self._machine_hz / max(1, (os.cpu_count() or 1) // _CORES_A_TICK)):
            self._read(_CORE_FILES, "cores", cores)
        if self._is_due(number, self._machine_hz):
            self._read(_MACHINE_FILES, "machine", machine)
        if self._is_due(number, _SLOW_HZ):
            sample = sample_now()
            self._slow(sample)
            self._readings.append(("slow", sample.time_ns, sample.clock_ns, Texts(), partial(_copied, read=sample)))

    def _read_threads(self, watched: _Watched, *, again: bool) -> None:
        """The threads' times. Threads are listed again only if their number has changed, as listing takes long."""
        if again:
            watched.times = thread_files(watched.process.pid, "schedstat")
        if len(self._read(watched.times, *watched.add[" times"])) != len(watched.times):
            watched.times = []  # a thread has ended, and another may have started

    def rows(self) -> Iterator[tuple[int, list[Row]]]:
        """Unix time and rows of each group of counters that was read since the last time, in order of time."""
        readings, self._readings = self._readings, []
        for group, time_ns, clock_ns, texts, add in readings:
            sample = Sample(time_ns, clock_ns)
            if add(texts, sample) is False:
                watched = next((w for w in self._watched.values() if w.process.device == group), None)
                if watched is not None:
                    self._forget(watched)
                continue
            before = self._before.get(group)
            self._before[group] = sample
            if (level := sample.levels.get(("num_threads", "count", group))) is not None:
                self._n_threads[group] = int(level)
            yield sample.time_ns, list(rates(before, sample))
        ended, self._ended = {process.device for process in self._ended}, []
        for group in [group for group in self._before if group.split()[0] in ended]:
            del self._before[group]
        for device in ended:
            self._n_threads.pop(device, None)

    @property
    def _machine_hz(self) -> float:
        return min(_MACHINE_HZ, self.hz / _TICKS_A_MACHINE)

    def _is_due(self, number: int, hz: float) -> bool:
        every = max(1, round(self.hz / hz))
        return number % every == 0 or number == 1

    def _read(self, files: Iterable[str], group: str, add: _Add) -> Texts:
        """Read the files; the time of the reading is that of its middle. Empty if they are gone."""
        for _ in range(_TRIES):
            time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
            texts = self.files.read_all(files)
            taken = time.monotonic_ns() - clock_ns
            if taken < _INTERRUPTED_NS:
                break
        if texts:
            self._readings.append((group, time_ns + taken // 2, clock_ns + taken // 2, texts, add))
        return texts

    def _slow(self, sample: Sample) -> None:
        memory_and_clocks(self.files, sample)
        if self._cgroup and (text := self.files.read(self._cgroup)):
            sample.totals["cgroup_cpu_throttled_time", "ns/s", f"pid:{self.root}"] = throttled_ns(text)

    def _update_processes(self) -> None:
        """Add processes that started, and forget those that ended."""
        alive = descendants(self.root)
        for pid in alive:
            if pid not in self._watched:
                self._watched[pid] = _Watched.of(pid, self.job_folder)
                self.pids.add(pid)
        for watched in [watched for pid, watched in self._watched.items() if pid not in alive]:
            self._forget(watched)
        for watched in self._watched.values():
            process = watched.process
            process.has_hook = process.has_hook or (self.job_folder / f"gc-{process.pid}").exists()

    def _forget(self, watched: _Watched) -> None:
        pid = watched.process.pid
        self._watched.pop(pid, None)
        self._ended.append(watched.process)
        self.files.drop_below(f"/proc/{pid}/")
        self.files.drop(watched.gc[0])


def _copied(_texts: Texts, sample: Sample, read: Sample) -> None:
    """Copy a sample that has been parsed already."""
    sample.levels, sample.totals = read.levels, read.totals
