"""The stack recorder: a separate process that lets py-spy sample the Python processes of a job, and writes the stacks.

`python -m stepscope.record.stacks.main '{"folder": …, "hz": 100, "spy": "/…/py-spy"}'`; the job's pid comes as a line
on standard input. At its end it writes a line of JSON to standard output: what was recorded, and what could not be.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stepscope.record.stacks import py_spy
from stepscope.record.stacks.py_spy_run import Ledger, ProcessWatch
from stepscope.record.stacks.stack_file import NAME, StackFile
from stepscope.record.system import meta
from stepscope.record.system.child_main import pid_from, tell
from stepscope.record.system.proc import descendants, is_alive, read_once

_SEARCH_S, _TURN_S = 0.1, 0.5
#: Share of all cores that sampling may use, and the least share of one core.
_BUDGET, _LEAST_BUDGET = 0.03, 0.05
#: Up to this many processes have one py-spy each. A py-spy that searches for descendants reads all of /proc repeatedly.
_EACH = 8
#: With more threads, their times on cores are read only when a run begins or ends.
_ASKED_OFTEN = 64
#: Longer gaps between runs are an issue.
_GAP_NS = 100_000_000


class StackWatcher:
    """Finds the Python processes of the job, and samples them until the job ends."""

    def __init__(self, root: int, folder: Path, file: StackFile, spy: str, hz: int) -> None:
        self.root, self.file = root, file
        allowed = max(_LEAST_BUDGET, _BUDGET * len(os.sched_getaffinity(0)))
        self.ledger = Ledger(file, folder, spy, hz, allowed, self._on_core)
        self.denied = ""
        self._watches: dict[int, ProcessWatch] = {}
        self._is_tree = False
        #: Python processes, and when each was first listed.
        self._pythons: dict[int, float] = {}
        #: When each of their threads was last listed, and how long it had run on a core then.
        self._alive: dict[tuple[int, int], int] = {}
        self._ran: dict[tuple[int, int], tuple[int, int]] = {}

    @property
    def handles(self) -> list[int]:
        """Handles to poll."""
        return [handle for watch in self._watches.values() for handle in watch.handles]

    def turn(self) -> float:
        """Do what is due. Returns how long to wait then, in s. Raises OSError (disk full, py-spy cannot start)."""
        self._list_processes()
        self._assign()
        newest = max(self._pythons.values(), default=0.0)
        share = self.ledger.allowed / max(1, len(self._watches))
        for watch in self._watches.values():
            watch.turn(self._cpu, newest, share)
        settled = self._watches and all(watch.is_settled for watch in self._watches.values())
        return _TURN_S if settled else _SEARCH_S

    def finish(self) -> None:
        """End the runs and write their stacks. Raises OSError (the disk is full)."""
        for watch in self._watches.values():
            watch.finish()

    def drop(self) -> None:
        """End the runs without writing, after an error."""
        for watch in self._watches.values():
            watch.drop()

    def _list_processes(self) -> None:
        """List Python processes and their threads, and note which threads have ended."""
        now, now_ns = time.monotonic(), time.time_ns()
        pids = [pid for pid in descendants(self.root) if is_alive(pid)]
        for pid in pids:
            if pid in self._pythons:
                continue
            if py_spy.denied(pid):
                what = f"process {pid}, whose memory the recorder may not read: {py_spy.remedy(pid)}"
                self.denied = self.denied or what
            elif py_spy.is_python(pid):
                self._pythons[pid] = now
        for pid in set(self._pythons) - set(pids):
            del self._pythons[pid]
        alive = {(pid, tid): now_ns for pid in self._pythons for tid in _tids(pid)}
        for thread, last_ns in self._alive.items():
            if thread not in alive:
                self.ledger.gone[thread] = (last_ns + now_ns) // 2
        self._alive = alive
        if len(alive) <= _ASKED_OFTEN:
            self._ran |= self._cpu()

    def _assign(self) -> None:
        """One watch for each Python process; once there are many, one for all. Raises OSError (the disk is full)."""
        wanted = set(self._pythons)
        if len(wanted) > _EACH:
            self._is_tree = True
        if self._is_tree:
            wanted = {self.root} if is_alive(self.root) else set()
        for pid in set(self._watches) - wanted:
            self._watches.pop(pid).finish()
        for pid in wanted - set(self._watches):
            self._watches[pid] = ProcessWatch(pid, self.ledger, tree=self._is_tree)

    def _cpu(self) -> dict[tuple[int, int], tuple[int, int]]:
        """The time now, and how long each thread has run on a core. Units: ns."""
        return {thread: read for thread in self._alive if (read := on_core(*thread)) is not None}

    def _on_core(self, pid: int, tid: int) -> tuple[int, int] | None:
        """The same for one thread; if it has ended, as last read."""
        return on_core(pid, tid) or self._ran.get((pid, tid))

    def issues(self) -> list[dict[str, Any]]:
        """What could not be recorded."""
        ledger, rows = self.ledger, []
        if self.denied:
            rows.append(meta.issue("stacks_denied", f"no Python stacks of {self.denied}"))
        if ledger.failure and not self.denied and not self.file.n_samples:
            rows.append(meta.issue("stacks_failed", f"no Python stacks; py-spy says: {ledger.failure}"))
        if not self.file.n_samples and not rows:
            what = "no Python process of the job ran long enough to sample its stacks"
            rows.append(meta.issue("no_stacks", what, severity="info"))
        if ledger.least_hz < ledger.asked_hz:
            fell = f"down from {ledger.asked_hz} to {ledger.least_hz} a second"
            what = f"sampling stacks took more than {ledger.allowed:.0%} of a core: {fell} at times"
            rows.append(meta.issue("stacks_looked_less", what, severity="info"))
        if ledger.counts["lost"]:
            what = "the stacks of some seconds were lost because py-spy ended early"
            rows.append(meta.issue("stacks_lost", what, count=ledger.counts["lost"]))
        if ledger.lost_ns > _GAP_NS:
            what = f"{ledger.lost_ns / 1e9:.1f} s between samples of the stacks were not observed"
            rows.append(meta.issue("stacks_gaps", what, severity="info"))
        if ledger.counts["errors"]:
            what = "samples of a stack that changed meanwhile, or did not exist yet"
            rows.append(meta.issue("stacks_unread", what, severity="info", count=ledger.counts["errors"]))
        if self.file.is_full:
            what = f"{self.file.path.name} has reached its size limit; stacks end there"
            rows.append(meta.issue("stacks_ended", what))
        return rows


def on_core(pid: int, tid: int) -> tuple[int, int] | None:
    """The time now, and how long a thread has run on a core; None if it has ended. Units: ns."""
    times = (read_once(f"/proc/{pid}/task/{tid}/schedstat") or "").split()
    return (time.time_ns(), int(times[0])) if times else None


def _tids(pid: int) -> list[int]:
    try:
        return [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208  the fastest way
    except OSError:
        return []


def main(argument: str) -> int:
    """Record stacks until the end, and write the outcome to standard output. 0, or 1 if there was no job."""
    wanted = json.loads(argument)
    folder = Path(wanted["folder"])
    bell, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    # The recorder blocks its signals; we and py-spy would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for number in (signal.SIGINT, signal.SIGHUP):  # meant for the job
        signal.signal(number, signal.SIG_IGN)
    root = pid_from(sys.stdin.fileno())
    if root is None:
        return 1
    gc.disable()
    before = time.process_time()
    failure = None
    file = None
    watcher = None
    try:
        file = StackFile(folder / NAME)
        watcher = StackWatcher(root, folder, file, wanted["spy"], int(wanted["hz"]))
        _watch(watcher, bell)
        watcher.finish()
    except OSError as error:
        failure = f"Python stacks end early, the job goes on: {error.strerror or error}"
    issues = []
    if watcher is not None:
        watcher.drop()
        issues = watcher.issues()
    if file is not None:
        file.close()
    if failure is not None:
        issues.append(meta.issue("stacks_ended", failure, severity="error"))
    cost = {"keeping": time.process_time() - before, "py-spy": watcher.ledger.cpu_seconds if watcher else 0.0}
    fields = {
        "n_stack_samples": file.n_samples if file else 0,
        "stacks_cpu_seconds": {name: round(seconds, 3) for name, seconds in cost.items()},
    }
    tell({"issues": issues, "fields": fields})
    return 0


def _watch(watcher: StackWatcher, bell: int) -> None:
    """Sample until the job ends, a signal arrives (`bell`), or the recorder is gone. Raises OSError."""
    while is_alive(watcher.root) and not watcher.file.is_full:
        wait_s = watcher.turn()
        poll = select.poll()
        for handle in (sys.stdin.fileno(), bell, *watcher.handles):
            poll.register(handle, select.POLLIN | select.POLLHUP)
        ready = {handle for handle, _ in poll.poll(max(0.0, wait_s * 1000))}
        if bell in ready or (sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 64)):
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
