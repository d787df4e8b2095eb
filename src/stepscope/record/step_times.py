"""Reads the times of the steps of a job while it runs, from the files pidN.steps of its recording."""

from __future__ import annotations

import os
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.errors import StepscopeError
from stepscope.record.system import meta
from stepscope.record.system.proc import is_alive, read_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: As startup/_stepscope_step_times.py writes them: magic, Unix time, clock, process, rank; then a mark each.
_HEADER, _MARK = struct.Struct("<8sqqii"), struct.Struct("<IHBB")
_MAGIC, _SOURCE, _MOST_US = b"STEPEND1", 3, (1 << 32) - 1
#: Less than this between two steps is no pause.
_ROUNDED_US = 10
_NAME = re.compile(r"pid(\d{1,10})(\.loop)?\.steps")
#: How long to wait for a folder that a recorder is about to make, and for the recording to begin in one that is there.
_APPEARS_S, _BEGINS_S, _PAUSE_S = 20.0, 2.0, 0.1


class Steps(NamedTuple):
    """New marks of a process up to its mark `n`, oldest first: ns a step, and how many steps the mark is of.

    A time of 0 is none: a profiler was at work, or what marks steps changed. `rank` is −1 where there is none.
    """

    pid: int
    rank: int
    n: int
    times_ns: tuple[int, ...]
    counts: tuple[int, ...]


class TimedStep(NamedTuple):
    """When a step, or a group of steps, ended (seconds since 1970), how long a step took (0: none), and how many."""

    end_s: float
    time_ns: int
    n_steps: int

    @property
    def begin_s(self) -> float:
        """When it began, in seconds since 1970."""
        return self.end_s - self.time_ns * self.n_steps / 1e9


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A recording whose job runs, in this folder."""

    folder: Path

    @staticmethod
    def open(folder: str | os.PathLike[str], on_wait: Callable[[float], None] | None = None) -> RunningJob:
        """The job of a recording; waits for one that is about to begin. Raises StepscopeError (there is none).

        `on_wait` is called once if that takes long, with the seconds that are left to wait.
        """
        job = RunningJob(Path(folder))
        began = time.monotonic()
        while not job.is_recorded():
            waited_s = time.monotonic() - began
            if on_wait is not None and waited_s > _BEGINS_S and not job.folder.exists():
                on_wait(_APPEARS_S - waited_s)
                on_wait = None
            is_late = waited_s > (_BEGINS_S if job.folder.is_dir() else 0.0 if job.folder.exists() else _APPEARS_S)
            if is_late or (job.folder / meta.NAME).exists():
                hint = "name the folder of a recording that runs: stepscope record --keep 60s -o DIR -- COMMAND"
                raise StepscopeError(f"no recording runs in {folder}", hint)
            time.sleep(_PAUSE_S)
        return job

    @staticmethod
    def of_process(pid: int) -> RunningJob:
        """The job that a process belongs to. Raises StepscopeError (no such process, it is not recorded)."""
        folder = re.search(r"(?:^|\0)STEPSCOPE_RECORD_DIR=([^\0]+)", read_once(f"/proc/{pid}/environ") or "")
        if folder is None:
            why = "is not recorded" if is_alive(pid) else "does not exist"
            hint = "only a job that `stepscope record` or `watch` started reports its steps"
            raise StepscopeError(f"process {pid} {why}", hint)
        return RunningJob.open(folder[1])

    def is_recorded(self) -> bool:
        """Whether its recording has begun and not ended; a recorder that was killed did not end it."""
        return (self.folder / meta.FOLDER).is_dir()

    def steps(self, since: dict[int, int]) -> list[Steps]:
        """What each living process did since its mark number in `since`."""
        alive = {pid: path for pid, path in self._files().items() if is_alive(pid)}
        rows = [_read(path, pid, since.get(pid, 0)) for pid, path in sorted(alive.items())]
        return [row for row in rows if row is not None]

    def last_steps(self, pid: int, most: int) -> tuple[int, list[TimedStep]]:
        """How many marks a process made before its last `most`, and these with their times. None without a file."""
        steps = self._timed(pid)
        first = max(len(steps.took_us) - most, 0)
        return first, steps.listed(slice(first, None))

    def steps_within(self, pid: int, from_s: float, until_s: float) -> list[TimedStep]:
        """The marks of a process that ended after a time and until another, in seconds since 1970."""
        steps = self._timed(pid)
        first, last = steps.ends_ns.searchsorted([int(from_s * 1e9), int(until_s * 1e9)], side="right")
        return steps.listed(slice(int(first), int(last)))

    def _timed(self, pid: int) -> _Timed:
        # The recorder itself must do without numpy.
        import numpy as np

        try:
            data = self._files()[pid].read_bytes()
            _, unix_ns, *_ = _HEADER.unpack_from(data)
        except (KeyError, OSError, struct.error):
            data, unix_ns = bytes(_HEADER.size), 0
        dtype = np.dtype([("took_us", "<u4"), ("n", "<u2"), ("source", "u1"), ("flags", "u1")])
        marks = np.frombuffer(data, dtype, (len(data) - _HEADER.size) // _MARK.size, _HEADER.size)
        ends_ns = unix_ns + np.cumsum(marks["took_us"].astype(np.int64)) * 1000
        return _Timed(ends_ns, marks["took_us"], marks["n"], marks["flags"] & 1)

    def _files(self) -> dict[int, Path]:
        """The file of each process; a job's own marks count before others."""
        paths = {}
        for path in sorted(self.folder.glob("pid*.steps"), reverse=True):  # pid7.loop.steps is last, and counts
            if match := _NAME.fullmatch(path.name):
                paths[int(match[1])] = path
        return paths


class _Timed(NamedTuple):
    """All marks of a process, as arrays: when each ended (ns since 1970), what the file has of it."""

    ends_ns: Any
    took_us: Any
    n: Any
    is_unlike: Any

    def listed(self, part: slice) -> list[TimedStep]:
        rows = zip(*(column[part].tolist() for column in self), strict=True)
        return [TimedStep(end / 1e9, _time_ns(took, n, is_unlike), n) for end, took, n, is_unlike in rows]


def _read(path: Path, pid: int, first: int) -> Steps | None:
    """The marks from number `first` on; None if the file has only begun, or is gone."""
    try:
        with path.open("rb") as file:
            *_, rank = _HEADER.unpack(file.read(_HEADER.size))
            file.seek(first * _MARK.size, os.SEEK_CUR)
            data = file.read()
    except (OSError, struct.error):
        return None
    marks = list(_MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))
    times = tuple(_time_ns(took_us, n, flags & 1) for took_us, n, _, flags in marks)
    return Steps(pid, rank, first + len(marks), times, tuple(n for _, n, _, _ in marks))


def _time_ns(took_us: int, n_steps: int, is_unlike: int) -> int:
    return 0 if is_unlike or not n_steps else took_us * 1000 // n_steps


def write_steps(folder: Path, pid: int, steps: Sequence[TimedStep]) -> None:
    """Write steps of a process, in order of time, as a recording has them. Raises OSError."""
    now_us = round(steps[0].begin_s * 1e6)
    marks = [_HEADER.pack(_MAGIC, now_us * 1000, 0, pid, -1)]
    for step in steps:
        took_us = round(step.time_ns * step.n_steps / 1000)
        pause_us = round(step.end_s * 1e6) - now_us - took_us
        while pause_us > _ROUNDED_US:
            part_us = min(pause_us, _MOST_US)
            marks.append(_MARK.pack(part_us, 0, _SOURCE, 0))
            now_us, pause_us = now_us + part_us, pause_us - part_us
        marks.append(_MARK.pack(took_us, step.n_steps, _SOURCE, not took_us))
        now_us += took_us
    (folder / f"pid{pid}.steps").write_bytes(b"".join(marks))
