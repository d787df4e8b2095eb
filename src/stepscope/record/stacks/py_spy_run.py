"""Runs of py-spy on one process, or on a process and its descendants, one after the other.

py-spy writes only when it ends, so a new run takes over every few seconds. It starts before the last one ends, so that
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
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepscope.record.stacks.py_spy_output import StackSpan
    from stepscope.record.stacks.stack_file import StackFile

    #: Process and thread; the time now and how long a thread has run on a core, in ns.
    Thread = tuple[int, int]
    Ran = tuple[int, int]
    OnCore = Callable[[int, int], Ran | None]

#: How long a run lasts. The first one is short, to learn what it costs.
_FIRST_S, _LONGEST_S, _SHORTEST_S = 2.0, 10.0, 2.0
#: A run should write no more than this: the more it writes at its end, the less exact its times are.
_MOST_BYTES = 800_000
_MOST_FAILURES = 5
#: py-spy cannot be interrupted in its first moments. The samples of such a short run are lost, which is not reported.
_MATTERS_S = 1.0
#: How long a new Python process needs until py-spy can read its stacks.
_SETTLES_S = 0.5
#: The run that asks which threads hold the GIL samples so many times less often than the one of all threads, but at
#: least so many times a second.
_GIL_EVERY, _LEAST_GIL_HZ = 10, 5


class PySpyRun:
    """Two py-spy processes that sample one process (with `tree`, its descendants too): all threads, and GIL holders.

    `cpu` is how long each thread had run when they started. Raises OSError (they cannot be started).
    """

    def __init__(
        self, spy: str, pid: int, hz: int, folder: Path, cpu: Mapping[Thread, tuple[int, int]], *, tree: bool = False
    ) -> None:
        self.began_s = time.monotonic()
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.size_bytes = 0
        self.hz = hz
        self._cpu = cpu
        self._pid = pid
        command = [*py_spy.record_command(spy, pid, hz), *(py_spy.TREE if tree else [])]
        self._all = PySpyProcess([*command, *py_spy.CHANGES], folder)
        self._gil_hz = gil_hz = min(hz, max(_LEAST_GIL_HZ, hz // _GIL_EVERY))
        command = [*py_spy.record_command(spy, pid, gil_hz), *(py_spy.TREE if tree else [])]
        self._gil = PySpyProcess([*command, *py_spy.HOLDERS], folder)

    @property
    def handle(self) -> int:
        """The end of the pipe that it writes messages to, for `poll`."""
        return self._all.handle

    @property
    def is_ready(self) -> bool:
        """Whether both have begun to sample."""
        return self.was_ready and self._gil.ready_ns is not None

    @property
    def was_ready(self) -> bool:
        """Whether it has begun to sample all threads."""
        return self._all.ready_ns is not None

    @property
    def complaint(self) -> str:
        """Py-spy's own error message; empty if it wrote none."""
        lines = self._all.output.decode(errors="replace").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Error: ")), "")

    def listen(self) -> bool:
        """Read new messages. Whether it still runs."""
        self._gil.listen()
        return self._all.listen()

    def end(self) -> RunResult | None:
        """End it. Returns what it sampled, or None if that is lost."""
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
            self.hz,
            self._gil_hz,
            tuple(py_spy_output.from_events(events)),
            tuple(py_spy_output.from_folded(folded.decode(errors="replace"), last_us, self._pid)),
            n_samples=counts[0],
            n_errors=counts[1],
            cpu=self._cpu,
        )


@dataclass(frozen=True, slots=True)
class RunResult:
    """The stacks that a run sampled. Times in us count from `zero_ns`, which is Unix time."""

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
        """Add the stacks to the file. Returns for how many ns before this run nothing was sampled.

        `until` is the time up to which each process has been sampled, and is updated. Where two runs overlap, the
        stacks of the earlier one count. `gone` is when threads ended, which py-spy does not report.
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


@dataclass(slots=True)
class Ledger:
    """Where all watches of a job write, and the counts that they share."""

    file: StackFile
    folder: Path
    spy: str
    asked_hz: int
    #: Share of a core that all watches together may use.
    allowed: float
    on_core: Callable[[int, int], Ran | None]
    least_hz: int = 0
    lost_ns: int = 0
    cpu_seconds: float = 0.0
    failure: str = ""
    #: `lost`: runs whose stacks were lost. `errors`: stacks that could not be read.
    counts: Counter[str] = field(default_factory=Counter)
    #: Up to when each process has been sampled, and when threads turned out to have ended. Unix time, ns.
    until: dict[int, int] = field(default_factory=dict)
    gone: dict[Thread, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.least_hz = self.asked_hz


class ProcessWatch:
    """Samples a process (with `tree`, its descendants too) in runs, until it ends or `finish` is called."""

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
        """Handles to poll."""
        return [run.handle for run in (self._run, self._next) if run is not None]

    @property
    def is_settled(self) -> bool:
        """Whether nothing needs to be done soon: one run samples, and no other is about to take over."""
        return self._failures >= _MOST_FAILURES or (self._run is not None and self._next is None)

    def turn(self, cpu: Callable[[], dict[Thread, Ran]], newest_s: float, share: float) -> None:
        """Do what is due. Raises OSError (the disk is full, no process can be started).

        `cpu` returns how long each thread has run by now, `newest_s` is when the newest process of the tree started,
        and `share` is the part of a core that this watch may use.
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
        """End the runs and write their stacks. Raises OSError (the disk is full)."""
        runs, self._run, self._next = (self._run, self._next), None, None
        for run in runs:
            if run is not None:
                self._take(run, 1.0)

    def drop(self) -> None:
        """End the runs without writing, after an error."""
        for run in (self._run, self._next):
            if run is not None:
                run.end()
        self._run = self._next = None

    def _is_due(self, newest_s: float) -> bool:
        """Whether to start another run: after its time, or soon after a new process that the current one may miss."""
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
        """End a run and write what it sampled. Raises OSError."""
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
        """Sample less often if it costs too much, and make runs shorter if they write too much."""
        used = run.cpu_seconds / max(run.seconds, 1e-3)
        if run.seconds > 1:
            times = min(4.0, max(0.1, 0.9 * share / max(used, 1e-3)))
            # Of the rate of this run: since it began, the one before it may have changed that of the next.
            self._hz = max(1, min(self._ledger.asked_hz, int(run.hz * times)))
            self._ledger.least_hz = min(self._ledger.least_hz, self._hz)
        fits = run.seconds * _MOST_BYTES / max(1, run.size_bytes)
        self._length_s = min(_LONGEST_S, max(_SHORTEST_S, fits))
