"""Reads the durations of the steps of a job while it runs, from the memory that its start-up hook shares."""

from __future__ import annotations

import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import StepscopeError
from stepscope.record.system import meta
from stepscope.record.system.proc import is_alive, read_once

if TYPE_CHECKING:
    import os

#: As startup/_stepscope_step_messages.py writes them: a header, the number of steps that ended, their durations.
_HEADER, _N_TIMES = 32, 512
_TIMES = struct.Struct(f"<{1 + _N_TIMES}q")
_APPEARS_S, _PAUSE_S = 20.0, 0.1


class Steps(NamedTuple):
    """Durations of steps in ns up to step `n` of a process, oldest first; `rank` is empty where it has none."""

    pid: int
    rank: str
    n: int
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A recording whose job runs, in this folder."""

    folder: Path

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> RunningJob:
        """The job of a recording; waits for one that is about to begin. Raises StepscopeError (there is none)."""
        job = RunningJob(Path(folder))
        deadline = time.monotonic() + _APPEARS_S
        while not job.is_recorded():
            if time.monotonic() > deadline or (job.folder / meta.NAME).exists():
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
        """What each living process did since its step number in `since`, or its last 512 steps at the most."""
        rows = []
        for path in sorted((self.folder / meta.FOLDER).glob("steps-*")):
            pid = path.name.partition("-")[2]
            try:
                n, *ring = _TIMES.unpack_from(path.read_bytes(), _HEADER)
            except (OSError, struct.error):  # it ended just now, or has only begun
                continue
            if pid.isdecimal() and is_alive(int(pid)):
                first = max(since.get(int(pid), 0), n - _N_TIMES + 1, 0)
                times = tuple(ring[i % _N_TIMES] for i in range(first, n))
                rows.append(Steps(int(pid), _rank_of(pid), n, times))
        return rows


def _rank_of(pid: str) -> str:
    rank = re.search(r"(?:^|\0)RANK=(\d{1,9})(?:\0|$)", read_once(f"/proc/{pid}/environ") or "")
    return rank[1] if rank else ""
