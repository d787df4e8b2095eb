"""Which recordings are processes of one job and which are repeats of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation

    Processes = tuple[Observation, ...]

__all__ = ["as_repeats"]


def as_repeats(files: Sequence[Processes]) -> list[list[Observation]]:
    """Runs of the job, each with its processes, in order. `files` holds the processes found in each file.

    Processes of one job differ in rank, or were recorded at the same time; what has the rank of another, or was
    recorded at another time, is a repeat. Files that say neither are processes of one job.

    Every run has as many processes as the first, else the last ones are a run of their own with fewer.
    """
    runs: list[list[Observation]] = []
    for found in files:
        home = next((run for run in runs if _belongs(found, run)), None)
        if home is None:
            runs.append(list(found))
        else:
            home.extend(found)
    return runs


def _belongs(found: Processes, run: Sequence[Observation]) -> bool:
    ranks = {process.rank for process in run}
    mine = {process.rank for process in found}
    if None not in ranks | mine:
        return ranks.isdisjoint(mine)
    times = [_recorded(process) for process in (*found, *run)]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return True
    return max(start for start, _ in known) < min(end for _, end in known)


def _recorded(observed: Observation) -> tuple[int, int] | None:
    """When the cycles were recorded, in Unix time. Units: ns. None where the recording does not say."""
    origin = observed.meta.origin_unix_ns
    if origin is None or observed.cycles.is_empty():
        return None
    starts = observed.cycles["ts_ns"].to_numpy()
    ends = starts + observed.cycles["dur_ns"].to_numpy()
    return origin + int(starts.min()), origin + int(ends.max())
