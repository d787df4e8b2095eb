"""The times at which threads are in spans of a kind or a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from stepscope.analyses.critical_path.longest_path import KIND_CODE, divided, kinds_of
from stepscope.analyses.critical_path.threads import Threads
from stepscope.core.intervals import Bools, Intervals, union
from stepscope.core.names import map_names
from stepscope.core.schema import CATEGORIES


def nowhere(threads: Threads) -> list[Intervals]:
    """No times on any thread."""
    none = np.empty(0, np.int64)
    return [(none, none)] * threads.track.size


def of_kind(spans: pl.DataFrame, threads: Threads, kind: str, *, has_device: bool = True) -> Iterator[Intervals]:
    """The times at which what is innermost on each thread is of that kind."""
    is_of_kind = kinds_of(spans, threads.row, has_device=has_device) == KIND_CODE[kind]
    return where_innermost(threads, is_of_kind, or_none=kind == "other_host")


def where_innermost(threads: Threads, wanted: Bools, *, or_none: bool = False) -> Iterator[Intervals]:
    """The times at which one of the wanted spans is innermost on each thread; or also those at which none is open."""
    by_row = np.zeros(int(threads.row.max(initial=0)) + 2, np.bool_)
    by_row[threads.row[wanted]] = True
    by_row[-1] = or_none
    for thread, held in enumerate(_open(threads, wanted)):
        whole = threads.start.min(keepdims=True), threads.end.max(keepdims=True)
        _, row, start, end = divided(threads, thread, whole if or_none else held)
        mine = by_row[row]
        yield union(start[mine], end[mine])


def _open(threads: Threads, wanted: Bools) -> Iterator[Intervals]:
    """The times at which one of the wanted spans is open on each thread."""
    for low, high in pairwise(threads.cuts):
        mine = np.flatnonzero(wanted[low:high]) + low
        yield union(threads.start[mine], threads.end[mine])


def like(
    spans: pl.DataFrame, threads: Threads, matches: Callable[[str], bool], categories: Sequence[str] = CATEGORIES
) -> Bools:
    """Which spans of the threads are of such a name and of one of these categories."""
    wanted = spans["category"].gather(threads.row).is_in(categories).to_numpy().copy()
    rows = np.flatnonzero(wanted)
    wanted[rows] = map_names(spans["name"].gather(threads.row[rows]), matches, pl.Boolean()).to_numpy()
    result: Bools = wanted
    return result


def spans_like(
    spans: pl.DataFrame, threads: Threads, matches: Callable[[str], bool], categories: Sequence[str] = CATEGORIES
) -> Iterator[Intervals]:
    """The times at which a span of such a name and of one of these categories is open on each thread."""
    return _open(threads, like(spans, threads, matches, categories))
