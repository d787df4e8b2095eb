"""The sampler: a process of its own that reads counters of a job until it ends, is told to end, or nobody listens.

`python -m stepscope.record._sampler '{"folder": …, "hz": 20}'`; the job's pid comes as a line on standard input, and
problems go to standard output as a line of JSON.
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

from stepscope.record import _meta, _nvml, _tracefs
from stepscope.record._child import Ending, pid_from, pidfd, tell
from stepscope.record._looks import Looks
from stepscope.record._writer import NAME, CounterFile

if TYPE_CHECKING:
    from stepscope.record._readings import Row

__all__ = ["main"]

_GPU_HZ = 10
#: Of one core, over a second; beyond it samples are taken less often.
_BUDGET = 0.01
_BUDGET_AFTER_S, _SMOOTHING = 5.0, 0.2


def main(argument: str) -> int:
    """Sample until the end. 0 if all was written, 1 if not (the disk is full), which the last line of output tells."""
    wanted = json.loads(argument)
    folder = Path(wanted["folder"])
    ending = Ending()
    ending.watch()
    try:
        file = CounterFile(folder / NAME)
    except OSError as error:
        return tell({"error": f"cannot write {folder / NAME}: {error.strerror}"})
    gpus = _nvml.opened()
    tell({"ready": True})
    root = pid_from(sys.stdin.fileno())
    if root is None:
        _tracefs.remove_leftovers()
        return 1
    issues: list[dict[str, Any]] = []
    if isinstance(gpus, str):
        issues.append(_meta.issue("no_gpu_counters", gpus, severity="info"))
    looks = Looks(root, float(wanted["hz"]), folder / _meta.FOLDER)
    before = time.process_time()
    # Nothing here makes cycles: no looking for them while we sample.
    gc.disable()
    failure = None
    try:
        issues += _sample(looks, file, ending, gpus, wanted.get("seconds"))
    except OSError as error:
        failure = f"cannot write {folder / NAME}: {error.strerror or error}; counters end here, the job goes on"
        issues.append(_meta.issue("counters_ended", failure, severity="error"))
    cost = {"start": before, "sampling": time.process_time() - before}
    return _finish(folder, looks, file, ending, issues, failure, gpus, cost)


def _finish(
    folder: Path,
    looks: Looks,
    file: CounterFile,
    ending: Ending,
    issues: list[dict[str, Any]],
    failure: str | None,
    gpus: _nvml.Gpus | str,
    cost: dict[str, float],
) -> int:
    try:
        file.close()
    except OSError as error:
        failure = failure or f"cannot write {file.path}: {error.strerror or error}"
    try:
        processes, told = _meta.notes_of_job(folder)
        # If the recorder and its collector of scheduling events were killed, nobody else does.
        _tracefs.remove_leftovers()
        if failure is None:  # else the job is still running
            n_parts = _meta.remove_leftovers(folder)
            if n_parts:
                told.append(_meta.issue("profile_cut", "the job ended while it wrote its profile", count=n_parts))
        _meta.merge(
            folder,
            [*issues, *told],
            end_unix_ns=time.time_ns(),
            clocks_at_end=_meta.clocks(),
            pids=sorted(looks.seen),
            processes=processes,
            devices=[] if isinstance(gpus, str) else _nvml.described(gpus),
            n_samples=file.n_samples,
            ended_by=ending.reason,
            sampler_cpu_seconds={name: round(seconds, 3) for name, seconds in cost.items()},
        )
    except OSError as error:
        failure = failure or f"cannot write {folder / _meta.NAME}: {error.strerror or error}"
    return tell({"error": failure}) if failure else 0


def _sample(
    looks: Looks, file: CounterFile, ending: Ending, gpus: _nvml.Gpus | str, seconds: float | None
) -> list[dict[str, Any]]:
    """Tick until the end. Issues that came up on the way. Raises OSError if the file cannot be written."""
    queue: SimpleQueue[tuple[int, list[Row]]] = SimpleQueue()
    watch = None if isinstance(gpus, str) else _nvml.Watch(gpus, _GPU_HZ, lambda t, rows: queue.put((t, rows)))
    handle = pidfd(looks.root)
    poll = select.poll()
    for each in (sys.stdin.fileno(), *([] if handle is None else [handle])):
        poll.register(each, select.POLLIN | select.POLLHUP)
    start = time.monotonic()
    next_tick, next_flush, number = start, start + 1, 0
    pace = _Pace(looks.hz)
    try:
        while ending.reason is None:
            _take(file, looks, number, queue)
            now = time.monotonic()
            if now >= next_flush:
                file.flush()
                pace.adapt(now - next_flush + 1, warm=now - start > _BUDGET_AFTER_S)
                next_flush = now + 1
            number += 1
            next_tick = max(next_tick + pace.period, now)
            _wait(poll, next_tick, handle, ending, looks.root)
            if seconds is not None and time.monotonic() - start >= seconds:
                ending.reason = "duration"
        _take(file, looks, 1, queue)
    finally:
        if watch is not None:
            watch.stop()
        if handle is not None:
            os.close(handle)
    return pace.issues()


def _take(file: CounterFile, looks: Looks, number: int, queue: SimpleQueue[tuple[int, list[Row]]]) -> None:
    """One tick, and what the accelerators' thread has left."""
    for time_ns, rows in looks.tick(number):
        file.add(time_ns, rows)
    while not queue.empty():
        file.add(*queue.get_nowait())  # nobody else takes from it


class _Pace:
    """How long to wait between ticks: longer while the sampler costs more than its budget."""

    def __init__(self, hz: float) -> None:
        self._hz, self._stretch, self._most = hz, 1, 1
        self._spent, self._used = time.process_time(), 0.0

    @property
    def period(self) -> float:
        return self._stretch / self._hz

    def adapt(self, passed: float, *, warm: bool) -> None:
        """Look at what was used since the last time. Units: s."""
        before, self._spent = self._spent, time.process_time()
        self._used += _SMOOTHING * ((self._spent - before) / passed - self._used)
        if warm:
            self._stretch = _stretched(self._stretch, self._used, self._hz)
            self._most = max(self._most, self._stretch)

    def issues(self) -> list[dict[str, Any]]:
        """That it sampled less often, if it did."""
        if self._most == 1:
            return []
        what = f"more than {_BUDGET:.0%} of a core was needed: down to {self._hz / self._most:.3g} samples a second"
        return [_meta.issue("sampled_less", what, severity="info")]


def _stretched(stretch: int, used: float, hz: float) -> int:
    """How many periods to wait between ticks, after a second in which that share of a core was used."""
    if used > _BUDGET:
        return min(stretch + 1, max(1, int(hz)))
    return stretch - 1 if stretch > 1 and used < 0.6 * _BUDGET else stretch


def _wait(poll: select.poll, until: float, handle: int | None, ending: Ending, root: int) -> None:
    """Sleep until the time, or until the job or the one who started us is gone."""
    while ending.reason is None:
        left = until - time.monotonic()
        events = dict(poll.poll(max(0.0, left * 1000)))
        ending.look(events, handle, root)
        if left <= 0 or not events:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
