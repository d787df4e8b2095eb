"""When threads get batches from the workers of a data loader, and at which pace these make them."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import in_rows
from stepscope.analyses.critical_path.threads import Threads
from stepscope.analyses.critical_path.waits import LEAST_HELD, Limits, no_limits, usual
from stepscope.core.intervals import Bools, Ints, covered, union
from stepscope.core.patterns import regex

_ITSELF, _WORKERS = regex(r"SingleProcess"), regex(r"MultiProcess")
#: A fetch that takes this share of a turn longer than to take the batch over is a wait for it.
_WAITED = 0.02
#: The producer sets the pace if turns differ by less than this, in relation to the consumer's own part of them.
_PACED = 0.5
#: Taking batches over takes about the same time each: fetches that differ by more than this are waits. They may well
#: differ by a tenth, of which a few fetches show up to a fifth.
_SAME = 0.2
#: Where so many fetches are alike and short, these hand over batches that were there, and only the others are waits.
_MOST_ALIKE = 0.6
#: So many of the shortest fetches hand over batches that were there if they are alike and the next one takes this many
#: times as long as the longest of them.
_LEAST_SHORT, _FAR_LONGER = 3, 1.5
#: Turns that differ by less are constant, and then fetches of this share of a turn are waits.
_CONSTANT, _LONG = 0.01, 0.15
#: Fetches that differ by less do not show bursts.
_BURSTS = 0.05
#: Taking a batch over takes no more than this; if all fetches are waits it is taken for the shorter time.
_LONGEST_COPY_NS, _USUAL_COPY_NS = 1_000_000, 50_000
_MOST_WORKERS = 16
#: Threads with fetches that are looked at, those with most first: a job has one or a few.
_MOST_THREADS = 256
#: So many batches of bursts must have taken the same time for the number of workers to be known.
_LEAST_REPEATS = 4


def loader_limits(spans: pl.DataFrame, threads: Threads) -> tuple[Limits, dict[int, bool]]:
    """When threads get batches from the workers of a data loader, and whether the loader's pace is known, by thread.

    With W workers a batch is ready no earlier than the service time after the batch W before it. W and the service time
    are those that fit batches which were waited for. Fetches without waiting say nothing about the loader's pace.
    A loader without workers does the work on the thread itself; it is no wait.
    """
    rows = threads.row
    is_fetch = (in_rows(spans["category"], rows) == "dataloader").to_numpy() & (threads.end > threads.start)
    of_thread = np.repeat(np.arange(threads.track.size), np.diff(threads.cuts))
    limits, paces = no_limits(), {}
    fetches = np.flatnonzero(is_fetch)  # in order of threads
    loading, first, n_fetches = np.unique(of_thread[fetches], return_index=True, return_counts=True)
    for at in np.sort(np.argsort(-n_fetches, kind="stable")[:_MOST_THREADS]):
        thread, mine = loading[at], fetches[first[at] : first[at] + n_fetches[at]]
        mine = mine[threads.end[mine] == np.maximum.accumulate(threads.end[mine])]  # not those within others
        if _makes_batches(spans, threads, int(thread), mine):
            continue
        fetched = _fetches(int(thread), threads.start[mine], threads.end[mine])
        paces[int(thread)] = fetched is not None and fetched[1]
        limits = limits if fetched is None else limits.and_also(fetched[0])
    return limits, paces


def _makes_batches(spans: pl.DataFrame, threads: Threads, thread: int, fetches: Ints) -> bool:
    """Whether the thread makes the batches itself in these spans: by their name, or if operators fill most of them."""
    name = str(spans["name"][int(threads.row[fetches[0]])])
    if _ITSELF.search(name) or _WORKERS.search(name):
        return _ITSELF.search(name) is not None
    mine = threads.of(thread)
    is_operator = (in_rows(spans["category"], threads.row[mine]) == "operator").to_numpy()
    busy = union(threads.start[mine][is_operator], threads.end[mine][is_operator])
    start, end = threads.start[fetches], threads.end[fetches]
    return bool(covered(busy, start, end).sum() > _PACED * (end - start).sum())


def _fetches(thread: int, start: Ints, end: Ints) -> tuple[Limits, bool] | None:
    """The limits of the fetches of one thread, and whether they are certain; None if it never waited."""
    took, turn, own = end - start, np.diff(end), start[1:] - end[:-1]
    if took.size < LEAST_HELD:
        return None
    mean = float(turn.mean())
    later = took[1:]
    is_constant = max(turn.std(), later.std()) <= _CONSTANT * mean and np.median(took) > _LONG * mean
    paced = turn.std() < _PACED * own.std() or is_constant or _in_bursts(later, mean)
    middle = int(np.median(later))
    alike = np.abs(later - middle) <= _SAME * middle
    few_waits = not paced and not alike.all() and alike.mean() >= _MOST_ALIKE and middle <= _LONGEST_COPY_NS
    always = not few_waits and (paced or later.std() > _SAME * later.mean() or took.min() > _LONGEST_COPY_NS)
    copy = min(int(took.min()) // 4, _USUAL_COPY_NS) if always else int(took.min())
    copy = copy if not always or is_constant else _shortest(took) or copy
    waited = took - copy > _WAITED * mean if always or few_waits else took > _LONGEST_COPY_NS
    at = np.where(waited, end - copy, end)
    workers = _workers(at, waited)
    producer = np.arange(at.size) - workers
    later = np.flatnonzero(producer >= 0)
    served = np.zeros(at.size, np.int64)
    served[later] = at[later] - at[producer[later]]
    mine = waited & (producer >= 0)
    if not mine.any():
        return None
    after = np.where(waited, served, usual(served, mine))
    after[producer < 0] = int(np.median(served[mine]))
    n = at.size
    limits = Limits(
        np.full(n, thread, np.int64),
        at,
        np.where(waited, start, at),
        np.full(n, -1, np.int64),
        np.maximum(producer, -1),
        after,
    )
    return limits, bool(waited.all()) or _repeats(served[mine])


def _shortest(took: Ints) -> int | None:
    """How long it takes to take a batch over, if a few fetches are alike and far shorter than the others."""
    took = np.sort(took)
    n_short = int(np.searchsorted(took, (1 + _SAME) * took[0], side="right"))
    if n_short < _LEAST_SHORT or n_short == took.size or took[0] > _LONGEST_COPY_NS:
        return None
    return int(np.median(took[:n_short])) if took[n_short] > _FAR_LONGER * took[n_short - 1] else None


def _repeats(served: Ints) -> bool:
    """Whether batches of a burst took the same time often enough to know how many workers there are.

    Where each batch is waited for, only their rate counts, which any number of workers explains.
    """
    return served.size >= _LEAST_REPEATS and bool(served.std() < _BURSTS * served.mean())


def _in_bursts(took: Ints, turn: float) -> bool:
    """Whether fetches of several in a row add up to the same, as waits for as many workers do and copies do not."""
    if np.median(took) < _LONG * turn or took.std() < _BURSTS * took.mean():
        return False
    until = np.concatenate(([0], np.cumsum(took)))
    sums = ((until[n:] - until[:-n]) / n**0.5 for n in range(2, min(took.size // 2, 4 * _MOST_WORKERS) + 1))
    return any(some.std() < _PACED * took.std() / 2 for some in sums)


def _workers(at: Ints, waited: Bools) -> int:
    """The number of workers for which batches that were waited for took most nearly the same time."""
    best, spread = 1, np.inf
    for workers in range(1, min(_MOST_WORKERS, at.size // 2) + 1):
        served = (at[workers:] - at[:-workers])[waited[workers:]]
        if served.size < 2 or not served.any():
            continue
        varies = float(served.std() / served.mean())
        # Sums of several turns vary less than turns by themselves.
        alike = (workers / best) ** 0.5 if workers % best == 0 else 1.0
        if varies < _PACED * spread / alike and spread > _CONSTANT:
            best, spread = workers, varies
    return best
