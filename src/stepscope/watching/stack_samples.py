"""Python stacks of a job that no profiler records: sampled once while it is healthy, and again when it is slow.

py-spy samples them from outside, for a few seconds each time. Where it is not installed, or may not read the job, there
are none.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import polars as pl

from stepscope.record.child_handles import start_stack_recorder
from stepscope.record.stacks.stack_file import NAME
from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FRAMEWORKS = ("torch", "paddle", "jax")
_HZ, _SECONDS = 100, 4.0
#: Steps after which a job is no longer starting.
_WARM_STEPS = 50


def has_profiler(folder: Path) -> bool:
    """Whether a process of the recording that runs in a folder has a framework whose profiler is used."""
    processes, _ = meta.hook_messages(folder)
    return any(name in process for process in processes for name in FRAMEWORKS)


def sample(folder: Path, pid: int, seconds: float = _SECONDS) -> None:
    """Sample the stacks of a process for some seconds into a folder; nothing if that cannot be."""
    recorder = start_stack_recorder(folder, _HZ)
    if recorder.child is None:
        return
    recorder.send(pid)
    time.sleep(seconds)
    recorder.end()


def span_s(folder: Path) -> tuple[float, float] | None:
    """From when until when stacks were sampled into a folder, in seconds since 1970; null if they were not."""
    try:
        rows = pl.read_csv(folder / NAME, separator="\t", quote_char=None, columns=["kind", "ts_ns", "dur_ns"])
    except (OSError, pl.exceptions.PolarsError):
        return None
    runs = rows.filter(pl.col("kind") == "L").select(pl.col("ts_ns", "dur_ns").cast(pl.Int64))
    if runs.is_empty():
        return None
    low, high = runs.select(pl.col("ts_ns").min(), high=(pl.col("ts_ns") + pl.col("dur_ns")).max()).row(0)
    return low / 1e9, high / 1e9


class HealthyStacks:
    """Has the stacks of a job sampled once, in another thread, when it has made its first steps."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._is_due = folder, True

    def see(self, steps: Iterable[tuple[int, int]]) -> None:
        """Processes of the job, each with its number of steps so far."""
        pid = next((pid for pid, n in steps if n >= _WARM_STEPS), None)
        if pid is None or not self._is_due:
            return
        self._is_due = False
        if not (self._folder / NAME).exists() and not has_profiler(self._folder):
            threading.Thread(target=sample, args=(self._folder, pid), daemon=True).start()
