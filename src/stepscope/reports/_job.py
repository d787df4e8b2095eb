"""The files of a job: which a report uses, which cannot be read, and which ranks are missing or duplicate."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.analyses.ranks.groups import missing_of
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import SERIALISED
from stepscope.core.units import counted, ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.reports._summary import Summary

    _Shares = dict[str, dict[str, float]]  # by title of the table and name

_NAMED, _RUNS = 3, 4
#: Recordings are of one program if most names of the shorter table are in both, with this much of the time of each.
_SAME_NAMES, _SAME_TIME = 0.8, 0.3


class Job(msgspec.Struct, frozen=True):
    """The summaries that a report uses, and the files and ranks that it does without.

    `broken` are paths of unreadable files with their errors, `twice` paths of files whose rank another file has, with
    that rank, `missing` the first 1,000 of `n_missing` ranks without a file, out of `world_size` if that is known.
    """

    summaries: tuple[Summary, ...]
    broken: tuple[tuple[str, StepscopeError], ...] = ()
    twice: tuple[tuple[str, int], ...] = ()
    missing: tuple[int, ...] = ()
    n_missing: int = 0
    world_size: int | None = None

    def sentences(self) -> list[str]:
        """Sentences on the files left out and the ranks missing."""
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
            verb = "is" if self.n_missing == 1 else "are"
            who = _first(self.missing, self.n_missing)
            sentences.append(f"{counted(self.n_missing, 'rank')}{of} {verb} missing: {who}")
        return sentences

    def facts(self) -> dict[str, object]:
        """The same as data, for JSON."""
        return {
            "missing_ranks": list(self.missing),
            "n_missing_ranks": self.n_missing,
            "left_out": [
                {"path": path, "rank": files.rank_in(path), "error": error.message} for path, error in self.broken
            ],
            "duplicates": [{"path": path, "rank": rank} for path, rank in self.twice],
        }


def job_of(paths: Sequence[str], outcomes: Sequence[Summary | StepscopeError]) -> Job:
    """The job that the files make up. `outcomes` are their summaries or errors.

    If most ranks have one file only, further files of a rank are left out; else each file is its own recording.
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
    world, n_missing, missing = missing_of((r for r in there if r is not None), (s.meta.world_size for s in summaries))
    return Job(summaries, tuple(broken), tuple(twice), missing, n_missing, world)


def owners(summaries: Sequence[Summary]) -> list[int]:
    """Which files belong together: those of one rank; without ranks, those of one process or of the same devices.

    A number for each file, the same for files of one owner. A rank may have written several files, and a process may
    have been recorded several times; they are no further ranks. Processes that ran at the same time are different
    ones, even if each calls its device cuda:0.
    """
    groups: list[list[Summary]] = []
    of_rank: dict[int, int] = {}
    numbers = []
    for summary in summaries:
        rank, after = summary.meta.rank, len(groups)
        if rank is None:
            place = next((i for i, group in enumerate(groups) if _belongs(summary, group)), after)
        else:
            place = of_rank.setdefault(rank, after)
        if place == after:
            groups.append([])
        groups[place].append(summary)
        numbers.append(place)
    return numbers


def _belongs(summary: Summary, group: Sequence[Summary]) -> bool:
    """Whether a file without a rank is of the owner of this group."""
    if group[0].meta.rank is not None:
        return False
    return any(_alike(summary, member) for member in group) and not any(_at_once(summary, member) for member in group)


def _alike(a: Summary, b: Summary) -> bool:
    if None not in (a.meta.host, b.meta.host) and a.meta.host != b.meta.host:
        return False
    return bool(set(a.pids) & set(b.pids) or set(a.places) & set(b.places))


def _at_once(a: Summary, b: Summary) -> bool:
    """Whether these are recordings of different processes at the same time."""
    return bool(a.pids and b.pids and not set(a.pids) & set(b.pids) and _overlap(a, b))


def _overlap(a: Summary, b: Summary) -> bool | None:
    """Whether these were recorded at the same time; None if that is unknown."""
    begin_a, begin_b = a.meta.origin_unix_ns, b.meta.origin_unix_ns
    if begin_a is None or begin_b is None:
        return None
    return begin_a < begin_b + b.recorded_ns and begin_b < begin_a + a.recorded_ns


def runs_of(summaries: Sequence[Summary]) -> list[int]:
    """Which files are of one run: a number for each file, the same for files of one run.

    Files are of one run if they have different ranks, are of one process, overlap in time, or show the same program on
    the same kind of device. A file that has nothing to compare counts to the first run that it may be of.
    """
    ranks = {summary.meta.rank for summary in summaries}
    if len(ranks) == len(summaries) and None not in ranks:
        return [0] * len(summaries)
    pairs = [(summary, _shares(summary)) for summary in summaries]
    numbers: list[int] = []
    for i, pair in enumerate(pairs):
        joined: set[int] = set()
        for number, earlier in zip(numbers, pairs, strict=False):
            if number not in joined and _of_one_run(earlier, pair):
                joined.add(number)
        first = min(joined, default=i)
        numbers = [*(first if number in joined else number for number in numbers), first]
    for number in sorted(set(numbers)):
        of_number = [pair for a, pair in zip(numbers, pairs, strict=True) if a == number]
        differing = {
            a for a, pair in zip(numbers, pairs, strict=True) if any(_of_one_run(pair, b) is False for b in of_number)
        }
        first = next((a for a in sorted(set(numbers)) if a < number and a not in differing), number)
        numbers = [first if a == number else a for a in numbers]
    return numbers


def _of_one_run(one: tuple[Summary, _Shares], other: tuple[Summary, _Shares]) -> bool | None:
    """Whether two files are of one run; None if they have nothing to compare."""
    (a, shares_a), (b, shares_b) = one, other
    if None not in (a.meta.rank, b.meta.rank) and a.meta.rank != b.meta.rank:
        return True
    overlap = _overlap(a, b)
    if overlap or set(a.pids) & set(b.pids):
        return True
    if a.devices and b.devices and set(a.devices) != set(b.devices):
        return False
    title = next((title for title in shares_a if title in shares_b), None)
    if title is None:
        return overlap
    first, second = shares_a[title], shares_b[title]
    shared = first.keys() & second.keys()
    same_names = len(shared) >= _SAME_NAMES * min(len(first), len(second))
    return same_names and sum(min(first[name], second[name]) for name in shared) >= _SAME_TIME


def _shares(summary: Summary) -> _Shares:
    """For each table of names and times of a summary, the share of the time of each name."""
    shares = {}
    for block in summary.tables:
        times = next((c for c in block.frame.columns if c.endswith("_ns")), None)
        if times and "name" in block.frame.columns and (whole := block.frame[times].sum()):
            rows = block.frame.select(pl.col("name").cast(pl.String), pl.col(times).fill_null(0) / whole)
            shares[block.title] = dict(rows.iter_rows())
    return shares


def measured(summaries: Sequence[Summary]) -> list[Summary]:
    """The files that say most of each owner: those with device work and steps, if it has such, else with device work.

    Of these, those whose idle time is the program's, if there are any.

    The others are partial views of the same run, such as the steps alone.
    """
    numbers = owners(summaries)
    best: dict[int, tuple[bool, ...]] = {}
    for owner, summary in zip(numbers, summaries, strict=True):
        best[owner] = max(best.get(owner, ()), _says(summary))
    return [s for owner, s in zip(numbers, summaries, strict=True) if _says(s) == best[owner]]


def _says(summary: Summary) -> tuple[bool, ...]:
    issues = summary.issues
    serialised = issues is not None and not issues.is_empty() and SERIALISED in issues["code"]
    return bool(summary.busy), bool(summary.numbers), not serialised


def devices_of(summaries: Sequence[Summary]) -> Counter[str]:
    """How many devices of each product or kind worked. A device that several files of one owner name counts once."""
    distinct = {
        (owner, summary.places[i] if i < len(summary.places) else str(i), name): name
        for owner, summary in zip(owners(summaries), summaries, strict=True)
        for i, name in enumerate(summary.devices)
    }
    return Counter(distinct.values())


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


def _first(ranks: Sequence[int], n: int) -> str:
    """'2–3, 5.', '2, 4, 6, 8 …': the ranks, `n` with those not given; if they form many runs, only the first runs."""
    jumps = [i for i in range(1, len(ranks)) if ranks[i] != ranks[i - 1] + 1]
    if len(jumps) < _RUNS:
        return f"{ranges(ranks)}{'.' if n == len(ranks) else ' …'}"
    return f"{ranges(ranks[: jumps[_RUNS - 1]])} …"


def _listed(entries: Sequence[tuple[str, object]]) -> str:
    names = [path.replace("\\", "/").rsplit("/", 1)[-1] for path, _ in entries]
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
