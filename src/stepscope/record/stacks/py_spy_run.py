"""One py-spy after the other on one process, or on a process and all that descend from it.

py-spy writes at its end alone, so another follows every few seconds: the next is at work before the last one ends, and
no time is lost.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.record.stacks import py_spy, py_spy_output
from stepscope.record.stacks.py_spy import PySpyProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.record.stacks.stack_file import StackFile

    Thread = tuple[int, int]
    Ran = tuple[int, int]
    from collections.abc import Mapping

    from stepscope.record.stacks.py_spy_output import StackSpan

    OnCore = Callable[[int, int], tuple[int, int] | None]

__all__ = ["Ledger", "ProcessWatch", "PySpyRun", "RunResult"]


#: One look in so many asks which thread holds the GIL.
_GIL_EVERY = 10


class PySpyRun:
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
        command = [*py_spy.record_command(spy, pid, hz), *(py_spy.TREE if tree else [])]
        self._all = PySpyProcess([*command, *py_spy.CHANGES], folder)
        self._gil_hz = gil_hz = max(1, hz // _GIL_EVERY)
        command = [*py_spy.record_command(spy, pid, gil_hz), *(py_spy.TREE if tree else [])]
        self._gil = PySpyProcess([*command, *py_spy.HOLDERS], folder)

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

    def end(self) -> RunResult | None:
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
        return RunResult(
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
class RunResult:
    """What a look saw. Times in us count from `zero_ns`, in Unix time."""

    zero_ns: int
    end_us: int
    hz: int
    gil_hz: int
    stacks: tuple[StackSpan, ...]
    held: tuple[StackSpan, ...]
    n_samples: int
    n_errors: int
    cpu: Mapping[Thread, tuple[int, int]]

    def write(self, file: StackFile, until: dict[int, int], gone: Mapping[Thread, int], on_core: OnCore) -> int:
        """Add it to the file. For how many ns, since the look before, nobody looked.

        `until` is when each process was looked at last, which is kept up to date: looks overlap, and what the one
        before has seen stands. `gone` is when threads had ended, of which py-spy says nothing.
        """
        file.run(self.zero_ns, self.end_us * 1000, self.hz)
        before = dict(until)
        first: dict[int, int] = {}
        threads: dict[Thread, int] = {}
        for span, n in zip(self.stacks, py_spy_output.with_counts(self.stacks, self.n_samples), strict=True):
            start, end = self.zero_ns + span.start_us * 1000, self.zero_ns + span.end_us * 1000
            first[span.pid] = min(start, first.get(span.pid, start))
            until[span.pid] = max(end, until.get(span.pid, end))
            ended = gone.get((span.pid, span.tid), 0)
            new_start = max(start, before.get(span.pid, 0))
            new_end = min(end, ended) if ended > start else end
            if new_end <= new_start:
                continue
            _name(file, span)
            threads.setdefault((span.pid, span.tid), new_start)
            n_new = max(1, round(n * (new_end - new_start) / (end - start)))
            file.add("W", (new_start, new_end - new_start), span.pid, span.tid, span.frames, n_new)
        for span in self.held:
            _name(file, span)
            held = span.n_samples * 1_000_000_000 // self.gil_hz
            file.add("G", (self.zero_ns, held), span.pid, span.tid, span.frames, span.n_samples)
        for (pid, tid), began in threads.items():
            now = on_core(pid, tid)
            if now is not None:
                then_ns, then = self.cpu.get((pid, tid), (began, 0))
                file.on_core(then_ns, max(1, now[0] - then_ns), pid, tid, now[1] - then)
        return max((start - before[pid] for pid, start in first.items() if pid in before), default=0)


def _name(file: StackFile, span: StackSpan) -> None:
    parent = 0
    for pid, command in span.processes:
        file.process(pid, parent, command)
        parent = pid
    file.thread(span.pid, span.tid, span.thread)


#: How long py-spy looks before another takes over: at first briefly, so as to learn what it costs.
_FIRST_S, _LONGEST_S, _SHORTEST_S = 2.0, 10.0, 2.0
#: How much it is to write in one go: with more, its times are less sure.
_MOST_BYTES = 800_000
_MOST_FAILURES = 5
#: py-spy cannot be interrupted in its first moments: what it saw then is lost, and no matter.
_MATTERS_S = 1.0
#: How long a new Python needs until py-spy can look into it.
_SETTLES_S = 0.5


@dataclass(slots=True)
class Ledger:
    """Where all watches of a job write, and what they count together."""

    file: StackFile
    folder: Path
    spy: str
    asked_hz: int
    #: How much of a core all watches together may use.
    allowed: float
    on_core: Callable[[int, int], Ran | None]
    least_hz: int = 0
    lost_ns: int = 0
    cpu_seconds: float = 0.0
    failure: str = ""
    #: Looks whose stacks were lost; stacks that could not be read.
    counts: Counter[str] = field(default_factory=Counter)
    #: When each process was looked at last, and when threads were found to be gone. Unix time, ns.
    until: dict[int, int] = field(default_factory=dict)
    gone: dict[Thread, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.least_hz = self.asked_hz


class ProcessWatch:
    """Looks at a process (with `tree`, at all that descend from it too) until it ends or `end` is called."""

    def __init__(self, pid: int, ledger: Ledger, *, tree: bool) -> None:
        self.pid = pid
        self._ledger = ledger
        self._tree = tree
        self._hz = ledger.asked_hz
        self._length_s = _FIRST_S
        self._failures = 0
        self._run: PySpyRun | None = None
        self._next: PySpyRun | None = None

    @property
    def handles(self) -> list[int]:
        """What to wait for."""
        return [run.handle for run in (self._run, self._next) if run is not None]

    @property
    def is_settled(self) -> bool:
        """Whether nothing needs to be done soon: a look is at work, and no other is about to take over."""
        return self._failures >= _MOST_FAILURES or (self._run is not None and self._next is None)

    def turn(self, cpu: Callable[[], dict[Thread, Ran]], newest_s: float, share: float) -> None:
        """Do what is due. Raises OSError (the disk is full, no process can be started).

        `cpu` is what each thread has run by now, `newest_s` when the last process of the tree began, `share` the part
        of a core that this watch may use.
        """
        if self._next is not None and not self._next.listen():
            self._fail(self._next)
            self._next = None
        if self._run is not None and not self._run.listen():  # the process has ended, or py-spy has
            self._take(self._run, share)
            self._run = None
        if self._next is not None and self._next.is_ready:
            if self._run is not None:
                self._take(self._run, share)
            self._run, self._next = self._next, None
        elif self._next is None and self._failures < _MOST_FAILURES and self._is_due(newest_s):
            self._next = PySpyRun(self._ledger.spy, self.pid, self._hz, self._ledger.folder, cpu(), tree=self._tree)

    def finish(self) -> None:
        """The last looks. Raises OSError (the disk is full)."""
        runs, self._run, self._next = (self._run, self._next), None, None
        for run in runs:
            if run is not None:
                self._take(run, 1.0)

    def drop(self) -> None:
        """Let go of everything, after an error."""
        for run in (self._run, self._next):
            if run is not None:
                run.end()
        self._run = self._next = None

    def _is_due(self, newest_s: float) -> bool:
        """Whether another look is to begin: soon after a process has begun, too, that this one may have missed."""
        if self._run is None:
            return True
        due_s = self._run.began_s + self._length_s
        if self._tree and newest_s > self._run.began_s:
            due_s = min(due_s, max(self._run.began_s + _SHORTEST_S, newest_s + _SETTLES_S))
        return time.monotonic() >= due_s

    def _fail(self, run: PySpyRun) -> None:
        run.end()
        self._failed(run)

    def _failed(self, run: PySpyRun) -> None:
        self._ledger.cpu_seconds += run.cpu_seconds
        self._ledger.counts["lost"] += run.was_ready and run.seconds > _MATTERS_S
        self._ledger.failure = run.complaint or self._ledger.failure
        self._failures += 1

    def _take(self, run: PySpyRun, share: float) -> None:
        """End a look and write what it saw. Raises OSError."""
        result = run.end()
        if result is None:
            self._failed(run)
            return
        ledger = self._ledger
        ledger.cpu_seconds += run.cpu_seconds
        ledger.counts["errors"] += result.n_errors
        self._failures = 0
        ledger.lost_ns += result.write(ledger.file, ledger.until, ledger.gone, ledger.on_core)
        ledger.file.flush()
        self._adapt(run, share)

    def _adapt(self, run: PySpyRun, share: float) -> None:
        """Look less often if it costs too much, and shorter if it gives too much."""
        used = run.cpu_seconds / max(run.seconds, 1e-3)
        if run.seconds > 1:
            times = min(2.0, max(0.1, 0.9 * share / max(used, 1e-3)))
            self._hz = max(1, min(self._ledger.asked_hz, int(self._hz * times)))
            self._ledger.least_hz = min(self._ledger.least_hz, self._hz)
        fits = run.seconds * _MOST_BYTES / max(1, run.size_bytes)
        self._length_s = min(_LONGEST_S, max(_SHORTEST_S, fits))
