"""The recorder's end of the collector of scheduling events: started before the job, told its pid, waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.record.system import child_handle, meta, tracefs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Collector", "started"]


@dataclass(frozen=True, slots=True)
class Collector:
    """The process that collects, or None of it where scheduling is not recorded."""

    beside: child_handle.Beside | None

    def send(self, pid: int) -> None:
        """Tell it the job."""
        if self.beside is not None:
            self.beside.say(str(pid))

    def end(self, *, tell_it: bool = False) -> list[str]:
        """Wait for its end, which the job's end or (`tell_it`) a signal brings. In words, what went wrong."""
        if self.beside is None:
            return []
        ended = self.beside.end(tell_it=tell_it)
        if ended.how is None:
            return ended.errors
        tracefs.remove_leftovers()
        return ended.errors or [f"the collector of scheduling events ended early ({ended.how})"]


def started(folder: Path, *, wanted: bool) -> Collector:
    """Start it if it is wanted, and wait until it is ready; what it cannot record becomes an issue in meta.json.

    Raises OSError if that cannot be written.
    """
    if not wanted:
        return Collector(None)
    beside = child_handle.begin("sched.main", {"folder": str(folder)})
    told = beside.first_line()
    if told.get("issue"):
        meta.merge(folder, [told["issue"]])
    return Collector(beside)
