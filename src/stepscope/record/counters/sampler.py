"""The sampler: a process of its own that reads counters of a job until the job, the recorder or a signal ends it.

`python -m stepscope.record.counters.sampler '{"folder": …, "hz": 20}'` reads the job's pid as a line from standard
input, and writes problems to standard output as a line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import select
import sys
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from stepscope.record.counters import gpus as _gpus
from stepscope.record.counters.counter_sources import CounterSources
from stepscope.record.counters.dumps import opened as opened_ring
from stepscope.record.counters.writer import NAME, CounterFile
from stepscope.record.system import meta, tracefs
from stepscope.record.system.child_main import Ending, pid_from, pidfd, tell

if TYPE_CHECKING:
    from stepscope.record.counters.dumps import Dumps
    from stepscope.record.counters.readings import Row

_GPU_HZ = 10
#: Share of one core, over a second; if more is used, samples are taken less often.
_BUDGET = 0.01
_BUDGET_AFTER_S, _SMOOTHING = 5.0, 0.2


def main(argument: str) -> int:
    """Sample until the end. 0 if everything was written; 1 if not: the last line of output says why."""
    wanted = json.loads(argument)
    folder = Path(wanted["folder"])
    ending = Ending()
    ending.watch()
    ring = wanted.get("ring")
    try:
        file = CounterFile(folder / NAME, ring and ring["keep_s"])
    except OSError as error:
        return tell({"error": f"cannot write {folder / NAME}: {error.strerror}"})
    dumps, issues = opened_ring(folder, file, ring)
    gpus, missing = _gpus.opened()
    issues += missing
    tell({"ready": True})
    root = pid_from(sys.stdin.fileno())
    if root is None:  # the recorder was killed before it could send it, and nobody else cleans up
        tracefs.remove_leftovers()
        meta.remove_leftovers(folder)
        return 1
    fields: dict[str, Any] = {"devices": [device for maker in gpus for device in maker.described()]}
    sources = CounterSources(root, float(wanted["hz"]), folder / meta.FOLDER)
    before = time.process_time()
    # Nothing here makes reference cycles, so there is nothing to collect while we sample.
    gc.disable()
    failure = None
    try:
        issues += _sample(sources, file, ending, gpus, wanted.get("seconds"), dumps, issues)
    except OSError as error:
        failure = f"cannot write {folder / NAME}: {error.strerror or error}; counters end here, the job goes on"
        issues.append(meta.issue("counters_ended", failure, severity="error"))
    cost = {"start": before, "sampling": time.process_time() - before}
    if dumps is not None:
        dumps.complete()
        issues += dumps.issues()
        fields["dumps"] = dumps.made
    fields["sampler_cpu_seconds"] = {name: round(seconds, 3) for name, seconds in cost.items()}
    return _finish(folder, sources, file, ending, issues, failure, fields)


def _finish(
    folder: Path,
    sources: CounterSources,
    file: CounterFile,
    ending: Ending,
    issues: list[dict[str, Any]],
    failure: str | None,
    fields: dict[str, Any],
) -> int:
    try:
        file.close()
    except OSError as error:
        failure = failure or f"cannot write {file.path}: {error.strerror or error}"
    try:
        processes, hook_issues = meta.hook_messages(folder)
        # If the recorder and its collector of scheduling events were killed, nobody else removes them.
        tracefs.remove_leftovers()
        if failure is None:  # else the job is still running
            n_parts = meta.remove_leftovers(folder)
            if n_parts:
                hook_issues.append(meta.issue("profile_cut", "the job ended while it wrote its profile", count=n_parts))
        meta.merge(
            folder,
            [*issues, *hook_issues],
            end_unix_ns=time.time_ns(),
            clocks_at_end=meta.clocks(),
            pids=sorted(sources.pids),
            processes=processes,
            n_samples=file.n_samples,
            ended_by=ending.reason,
            **fields,
        )
    except OSError as error:
        failure = failure or f"cannot write {folder / meta.NAME}: {error.strerror or error}"
    return tell({"error": failure}) if failure else 0


def _sample(
    sources: CounterSources,
    file: CounterFile,
    ending: Ending,
    gpus: list[_gpus.Gpus],
    seconds: float | None,
    dumps: Dumps | None,
    known: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Tick until the end. Returns the issues of sampling. Raises OSError if the file cannot be written."""
    queue: SimpleQueue[tuple[int, list[Row]]] = SimpleQueue()
    watches = [_gpus.GpuWatch(maker, _GPU_HZ, lambda t, rows: queue.put((t, rows))) for maker in gpus]
    handle = pidfd(sources.root)
    pipe = dumps.channel.handle if dumps is not None and dumps.channel is not None else None
    poll = select.poll()
    for each in (sys.stdin.fileno(), handle, pipe):
        if each is not None:
            poll.register(each, select.POLLIN | select.POLLHUP)
    start = time.monotonic()
    next_tick, next_flush, number = start, start + 1, 0
    pace = _Pace(sources.hz)
    try:
        while ending.reason is None:
            sources.tick(number)
            now = time.monotonic()
            if now >= next_flush:
                _write(file, sources, queue, dumps)
                pace.adapt(now - next_flush + 1, warm=now - start > _BUDGET_AFTER_S)
                next_flush = now + 1
            number += 1
            next_tick = max(next_tick + pace.period, now)
            while _wait(poll, next_tick, handle, ending, sources.root, pipe):
                _serve(file, sources, queue, dumps, ending, known)
            if seconds is not None and time.monotonic() - start >= seconds:
                ending.reason = "duration"
        sources.tick(1)
        _write(file, sources, queue, dumps)
    finally:
        for watch in watches:
            watch.stop()
        if handle is not None:
            os.close(handle)
    return [*pace.issues(), *(issue for maker in gpus for issue in maker.issues())]


def _serve(
    file: CounterFile,
    sources: CounterSources,
    queue: SimpleQueue[tuple[int, list[Row]]],
    dumps: Dumps | None,
    ending: Ending,
    known: list[dict[str, Any]],
) -> None:
    """Make the dumps that were requested, with all that has been read."""
    n_signals, ending.n_asked = ending.n_asked, 0
    if dumps is None:
        return
    asking = [*dumps.heard(), *({"ask": "signal"} for _ in range(n_signals))]
    if asking:
        _write(file, sources, queue, dumps)
    for message in asking:
        dumps.take(message, known)


def _write(
    file: CounterFile, sources: CounterSources, queue: SimpleQueue[tuple[int, list[Row]]], dumps: Dumps | None
) -> None:
    """Write what the ticks and the accelerators' threads have read."""
    for time_ns, rows in sources.rows():
        file.add(time_ns, rows)
    while not queue.empty():
        file.add(*queue.get_nowait())  # nobody else takes from it
    packed = file.flush()
    if dumps is not None:
        dumps.flushed(packed)


class _Pace:
    """How long to wait between ticks: longer while the sampler costs more than its budget."""

    def __init__(self, hz: float) -> None:
        self._hz, self._stretch, self._most = hz, 1, 1
        self._spent, self._used = time.process_time(), 0.0

    @property
    def period(self) -> float:
        return self._stretch / self._hz

    def adapt(self, passed: float, *, warm: bool) -> None:
        """Account for the CPU time used since the last call, `passed` s ago."""
        before, self._spent = self._spent, time.process_time()
        self._used += _SMOOTHING * ((self._spent - before) / passed - self._used)
        if warm:
            self._stretch = _stretched(self._stretch, self._used, self._hz)
            self._most = max(self._most, self._stretch)

    def issues(self) -> list[dict[str, Any]]:
        """An issue if it sampled less often than asked."""
        if self._most == 1:
            return []
        what = (
            f"sampling needed more than {_BUDGET:.0%} of a core: down to {self._hz / self._most:.3g} samples a second"
        )
        return [meta.issue("sampled_less", what, severity="info")]


def _stretched(stretch: int, used: float, hz: float) -> int:
    """How many periods to wait between ticks, if that share of a core was used."""
    if used > _BUDGET:
        return min(stretch + 1, max(1, int(hz)))
    return stretch - 1 if stretch > 1 and used < 0.6 * _BUDGET else stretch


def _wait(poll: select.poll, until: float, handle: int | None, ending: Ending, root: int, pipe: int | None) -> bool:
    """Sleep until the time, or until the job or the recorder is gone. True if a dump is requested before."""
    while ending.reason is None:
        left = until - time.monotonic()
        events = dict(poll.poll(max(0.0, left * 1000)))
        ending.look(events, handle, root)
        if pipe in events or ending.n_asked:
            return True
        if left <= 0 or not events:
            return False
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
