"""The files of a job: which of them a report stands on, and which ranks lack, broke, or are there twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.analyses.ranks.groups import missing_of
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.reports._phrases import counted, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.reports._summary import Summary

__all__ = ["Job", "job_of"]

_NAMED, _RUNS = 3, 4


@dataclass(frozen=True, slots=True)
class Job:
    """What a report stands on, `summaries`, and what it does without.

    `broken` are paths of files that could not be read, with the error; `twice` paths of files whose rank another file
    has, with that rank; `missing` the ranks that no file is for, of `world_size` where that is known.
    """

    summaries: tuple[Summary, ...]
    broken: tuple[tuple[str, StepscopeError], ...] = ()
    twice: tuple[tuple[str, int], ...] = ()
    missing: tuple[int, ...] = ()
    world_size: int | None = None

    def sentences(self) -> list[str]:
        """What is missing, in words."""
        sentences = []
        if self.broken:
            first = self.broken[0][1].message
            sentences.append(f"{counted(len(self.broken), 'file')} left out: {_listed(self.broken)} ({first}).")
        if self.twice:
            ranks = ranges([rank for _, rank in self.twice])
            n, noun = len(self.twice), "rank" if len({rank for _, rank in self.twice}) == 1 else "ranks"
            sentences.append(f"{counted(n, 'file')} left out: {_listed(self.twice)} (another file has {noun} {ranks}).")
        if self.missing and len(self.summaries) > 1:
            of = f" of {self.world_size:,}" if self.world_size else ""
            verb = "is" if len(self.missing) == 1 else "are"
            sentences.append(f"{counted(len(self.missing), 'rank')}{of} {verb} missing: {_first(self.missing)}")
        return sentences

    def facts(self) -> dict[str, object]:
        """The same for machines."""
        return {
            "missing_ranks": list(self.missing),
            "left_out": [
                {"path": path, "rank": files.rank_in(path), "error": error.message} for path, error in self.broken
            ],
            "duplicates": [{"path": path, "rank": rank} for path, rank in self.twice],
        }


def job_of(paths: Sequence[str], outcomes: Sequence[Summary | StepscopeError]) -> Job:
    """The job that files make up, from what reading each gave.

    Files of one rank are recordings of their own, unless most ranks have one: then the first stands for the rank.
    Raises the first error if no file could be read.
    """
    broken = [
        (path, outcome) for path, outcome in zip(paths, outcomes, strict=True) if isinstance(outcome, StepscopeError)
    ]
    sound = [
        (path, outcome)
        for path, outcome in zip(paths, outcomes, strict=True)
        if not isinstance(outcome, StepscopeError)
    ]
    if not sound:
        raise broken[0][1] if broken else StepscopeError("no traces given")
    first_of_rank, twice = _first_of_each(sound)
    summaries = tuple(summary for _, summary in first_of_rank)
    there = [*(summary.meta.rank for summary in summaries), *(files.rank_in(path) for path, _ in broken)]
    world, missing = missing_of((r for r in there if r is not None), (s.meta.world_size for s in summaries))
    return Job(summaries, tuple(broken), tuple(twice), missing, world)


def _first_of_each(sound: list[tuple[str, Summary]]) -> tuple[list[tuple[str, Summary]], list[tuple[str, int]]]:
    ranks: set[int] = set()
    first, twice = [], []
    for path, summary in sound:
        rank = summary.meta.rank
        if rank is not None and rank in ranks:
            twice.append((path, rank))
            continue
        first.append((path, summary))
        if rank is not None:
            ranks.add(rank)
    return (first, twice) if len(twice) < len(ranks) else (sound, [])


def _first(ranks: Sequence[int]) -> str:
    """'2–3, 5.', '2, 4, 6, 8 …': the ranks, or of many runs of them those that come first."""
    jumps = [i for i in range(1, len(ranks)) if ranks[i] != ranks[i - 1] + 1]
    return f"{ranges(ranks)}." if len(jumps) < _RUNS else f"{ranges(ranks[: jumps[_RUNS - 1]])} …"


def _listed(entries: Sequence[tuple[str, object]]) -> str:
    names = [path.replace("\\", "/").rsplit("/", 1)[-1] for path, _ in entries]
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
