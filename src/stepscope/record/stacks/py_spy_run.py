"""Some seconds of looking at a job's stacks: one py-spy for all threads, a rarer one for those that hold the GIL."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.record.stacks import py_spy_output, pyspy
from stepscope.record.stacks.spy import Spy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepscope.record.stacks.py_spy_output import Seen
    from stepscope.record.stacks.stack_file import StackFile

    Thread = tuple[int, int]
    OnCore = Callable[[int, int], tuple[int, int] | None]

__all__ = ["Look", "Witnessed"]

#: One look in so many asks which thread holds the GIL.
_GIL_EVERY = 10


class Look:
    """Two py-spy at work on a process, with `tree` on all that descend from it too.

    `cpu` is what each thread had run when they began. Raises OSError (they cannot be started).
    """

    def __init__(
        self, spy: str, pid: int, hz: int, folder: Path, cpu: Mapping[Thread, tuple[int, int]], *, tree: bool = False
    ) -> None:
        self.began_s = time.monotonic()
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.size_bytes = 0
        self._hz = hz
        self._cpu = cpu
        self._pid = pid
        words = [*pyspy.look_command(spy, pid, hz), *(pyspy.TREE if tree else [])]
        self._all = Spy([*words, *pyspy.CHANGES], folder)
        self._gil_hz = gil_hz = max(1, hz // _GIL_EVERY)
        words = [*pyspy.look_command(spy, pid, gil_hz), *(pyspy.TREE if tree else [])]
        self._gil = Spy([*words, *pyspy.HOLDERS], folder)

    @property
    def handle(self) -> int:
        """Where it talks, for `poll`."""
        return self._all.handle

    @property
    def is_ready(self) -> bool:
        """Whether it samples by now; the rarer one too."""
        return self.was_ready and self._gil.ready_ns is not None

    @property
    def was_ready(self) -> bool:
        """Whether it began to sample all threads."""
        return self._all.ready_ns is not None

    @property
    def complaint(self) -> str:
        """Why py-spy could not, in its words."""
        lines = self._all.output.decode(errors="replace").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Error: ")), "")

    def listen(self) -> bool:
        """Take in what is said; whether it is still at work."""
        self._gil.listen()
        return self._all.listen()

    def end(self) -> Witnessed | None:
        """End it; what it saw, or None if that is lost."""
        self.seconds = time.monotonic() - self.began_s
        for each in (self._all, self._gil):
            each.interrupt()
        written, folded = self._all.end(), self._gil.end()
        self.cpu_seconds = self._all.cpu_seconds + self._gil.cpu_seconds
        self.size_bytes = len(written) + len(folded)
        try:
            events = json.loads(written)
        except ValueError:
            return None
        last_us = max((event["ts"] for event in events), default=0)
        counts = py_spy_output.n_samples(self._all.output) or (0, 0)
        return Witnessed(
            self._all.zero_ns(last_us),
            last_us,
            self._hz,
            self._gil_hz,
            tuple(py_spy_output.from_events(events)),
            tuple(py_spy_output.from_folded(folded.decode(errors="replace"), last_us, self._pid)),
            n_samples=counts[0],
            n_errors=counts[1],
            cpu=self._cpu,
        )


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What a look saw. Times in us count from `zero_ns`, in Unix time."""

    zero_ns: int
    end_us: int
    hz: int
    gil_hz: int
    stacks: tuple[Seen, ...]
    held: tuple[Seen, ...]
    n_samples: int
    n_errors: int
    cpu: Mapping[Thread, tuple[int, int]]

    def write(self, file: StackFile, until: dict[int, int], gone: Mapping[Thread, int], on_core: OnCore) -> int:
        """Add it to the file. For how many ns, since the look before, nobody looked.

        `until` is when each process was looked at last, which is kept up to date: looks overlap, and what the one
        before has seen stands. `gone` is when threads had ended, of which py-spy says nothing.
        """
        file.look(self.zero_ns, self.end_us * 1000, self.hz)
        before = dict(until)
        first: dict[int, int] = {}
        threads: dict[Thread, int] = {}
        for seen, n in zip(self.stacks, py_spy_output.with_counts(self.stacks, self.n_samples), strict=True):
            start, end = self.zero_ns + seen.start_us * 1000, self.zero_ns + seen.end_us * 1000
            first[seen.pid] = min(start, first.get(seen.pid, start))
            until[seen.pid] = max(end, until.get(seen.pid, end))
            ended = gone.get((seen.pid, seen.tid), 0)
            kept_start = max(start, before.get(seen.pid, 0))
            kept_end = min(end, ended) if ended > start else end
            if kept_end <= kept_start:
                continue
            _name(file, seen)
            threads.setdefault((seen.pid, seen.tid), kept_start)
            kept = max(1, round(n * (kept_end - kept_start) / (end - start)))
            file.add("W", (kept_start, kept_end - kept_start), seen.pid, seen.tid, seen.frames, kept)
        for seen in self.held:
            _name(file, seen)
            held = seen.n_samples * 1_000_000_000 // self.gil_hz
            file.add("G", (self.zero_ns, held), seen.pid, seen.tid, seen.frames, seen.n_samples)
        for (pid, tid), began in threads.items():
            now = on_core(pid, tid)
            if now is not None:
                then_ns, then = self.cpu.get((pid, tid), (began, 0))
                file.on_core(then_ns, max(1, now[0] - then_ns), pid, tid, now[1] - then)
        return max((start - before[pid] for pid, start in first.items() if pid in before), default=0)


def _name(file: StackFile, seen: Seen) -> None:
    parent = 0
    for pid, command in seen.processes:
        file.process(pid, parent, command)
        parent = pid
    file.thread(seen.pid, seen.tid, seen.thread)
