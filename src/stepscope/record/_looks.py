"""All that is read of a job and its machine at one tick of the sampler, each thing as often as it deserves."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from stepscope.record._files import Kept
from stepscope.record._process import (
    Process,
    cgroup_file,
    garbage_collections,
    process_bytes,
    process_totals,
    thread_switches,
    thread_times,
    throttled_ns,
)
from stepscope.record._readings import Sample, cores, machine, memory_and_clocks, rates, sample_now
from stepscope.record._tree import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stepscope.record._readings import Row

    _Read = Callable[[Kept, Sample], bool | None]

__all__ = ["Looks"]

#: Threads whose times are read in one tick; a job with more of them is read in every second tick, third …
_THREADS_A_TICK = 64
#: /proc/stat has a line for each core: with more of them it is read less often.
_CORES_A_TICK = 32
_MACHINE_HZ, _SWITCHES_HZ, _TREE_HZ, _SLOW_HZ = 10, 4, 2, 1
#: A reading that took longer was interrupted, and belongs to no one moment: it is made again, so often.
_INTERRUPTED_NS, _TRIES = 1_000_000, 4


@dataclass(slots=True)
class Looks:
    """Reads the job's processes and the machine, and keeps what the next rates need."""

    root: int
    hz: float
    job_folder: Path
    kept: Kept = field(default_factory=Kept)
    seen: set[int] = field(default_factory=set)
    _processes: dict[int, Process] = field(default_factory=dict)
    _before: dict[str, Sample] = field(default_factory=dict)
    _n_threads: int = 0
    _cgroup: str | None = None

    def __post_init__(self) -> None:
        self._cgroup = cgroup_file(self.root)

    def tick(self, number: int) -> Iterator[tuple[int, list[Row]]]:
        """Unix time and rows of each group of counters that is due in this tick; all are in the first two."""
        if self._is_due(number, _TREE_HZ):
            self._find()
        if self._is_due(number, _MACHINE_HZ / max(1, (os.cpu_count() or 1) // _CORES_A_TICK)):
            yield self._rows("cores", cores)
        if self._is_due(number, _MACHINE_HZ):
            yield self._rows("machine", machine)
        if self._is_due(number, _SLOW_HZ):
            yield self._rows("slow", self._slow)
        with_threads = number % (1 + self._n_threads // _THREADS_A_TICK) == 0
        n_threads = 0
        for process in list(self._processes.values()):
            found = self._read(partial(process_totals, process=process))
            if found is None:
                self._forget(process)
                continue
            n_threads += int(found.levels["num_threads", "count", process.device])
            yield self._done(process.device, found)
            for name, read in self._of_process(process, number, with_threads=with_threads):
                yield self._rows(f"{process.device} {name}", read)
        self._n_threads = n_threads

    def _of_process(self, process: Process, number: int, *, with_threads: bool) -> Iterator[tuple[str, _Read]]:
        """What else is due of a process: its name and how it is read."""
        if self._is_due(number, _MACHINE_HZ):
            yield "bytes", partial(process_bytes, process=process)
        if process.has_hook:
            yield "gc", partial(garbage_collections, process=process, folder=self.job_folder)
        if with_threads:
            yield "times", partial(thread_times, process=process)
        if self._is_due(number, _SWITCHES_HZ):
            yield "switches", partial(thread_switches, process=process)

    def _is_due(self, number: int, hz: float) -> bool:
        every = max(1, round(self.hz / hz))
        return number % every == 0 or number == 1

    def _rows(self, group: str, read: _Read) -> tuple[int, list[Row]]:
        found = self._read(read)
        return (0, []) if found is None else self._done(group, found)

    def _read(self, read: _Read) -> Sample | None:
        """A reading whose time is known: that of its middle. None if there is nothing to read any more."""
        for _ in range(_TRIES):
            sample = sample_now()
            if read(self.kept, sample) is False:
                return None
            taken = time.monotonic_ns() - sample.clock_ns
            if taken < _INTERRUPTED_NS:
                break
        sample.time_ns += taken // 2
        sample.clock_ns += taken // 2
        return sample

    def _done(self, group: str, sample: Sample) -> tuple[int, list[Row]]:
        before = self._before.get(group)
        self._before[group] = sample
        return sample.time_ns, list(rates(before, sample))

    def _slow(self, kept: Kept, sample: Sample) -> None:
        memory_and_clocks(kept, sample)
        if self._cgroup and (text := kept.read(self._cgroup)):
            sample.totals["cgroup_cpu_throttled_time", "ns/s", f"pid:{self.root}"] = throttled_ns(text)

    def _find(self) -> None:
        """Take in processes that began, let go of files of threads that ended."""
        alive = descendants(self.root)
        for pid in alive:
            if pid not in self._processes:
                self._processes[pid] = Process(pid)
                self.seen.add(pid)
        for process in [p for p in self._processes.values() if p.pid not in alive]:
            self._forget(process)
        for process in self._processes.values():
            process.has_hook = process.has_hook or (self.job_folder / f"gc-{process.pid}").exists()

    def _forget(self, process: Process) -> None:
        self._processes.pop(process.pid, None)
        self.kept.drop_below(f"/proc/{process.pid}/")
        self.kept.drop(f"{self.job_folder}/gc-{process.pid}")
        for group in [g for g in self._before if g.split()[0] == process.device]:
            del self._before[group]
