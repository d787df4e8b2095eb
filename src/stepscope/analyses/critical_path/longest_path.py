"""The longest path through each step, followed backwards from its end, and the pieces that it consists of.

Recorded times order the graph. A path takes the time between two recorded moments, whatever its route, so no path is
longer than the step; the one that follows the last-met dependency at each wait fills the whole step. Nodes are pieces
of device work and joins: the moments when a host thread went on because something else had ended. Each node has one
predecessor, so pointer doubling gives all paths without walking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import in_rows
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads, host_collectives, latest
from stepscope.analyses.critical_path.waits import Handoffs, Waits
from stepscope.analyses.critical_path.windows import Windows
from stepscope.analyses.critical_path.work import ACROSS, BEFORE, LAUNCH, WAITS, Held, Work
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import Bools, Intervals, Ints, innermost_at, locate, own_lengths, union
from stepscope.core.names import is_sync_call, map_names
from stepscope.core.schema import CATEGORIES

#: Kinds of pieces.
KINDS = {
    "computation": "a kernel that computes, or a fill",
    "communication": "a kernel that communicates with other ranks; without a device, such an operator",
    "memcpy": "a copy on the device",
    "operator": "a framework operator on the host, without what it calls",
    "runtime": "a call of the device's runtime or driver, such as a launch",
    "sync": "a call that waits for the device, after the work that it waited for",
    "dataloader": "a data loader that fetches data",
    "other_host": "all other host time: Python, and what the trace does not show",
    "launch_delay": "from the end of a launch call to the start of its work, on a free stream",
    "kernel_wait": "a short gap between two pieces of work, although the second was launched in time",
    "unexplained": "work waits, and nothing recorded explains why",
}
Kind = pl.Enum(list(KINDS))
#: Kinds whose pieces are parts of spans; the others are between spans.
SPANNED = ("computation", "communication", "memcpy", "operator", "runtime", "sync", "dataloader")
KIND_CODE = {kind: code for code, kind in enumerate(KINDS)}
_OF_SORT = np.array([KIND_CODE[k] for k in ("computation", "communication", "memcpy")])  # by sort of device work
_OF_WAIT = np.array([KIND_CODE[k] for k in WAITS])
_OF_CATEGORY = {
    "operator": "operator", "runtime": "runtime", "driver": "runtime", "sync": "sync", "dataloader": "dataloader",
}  # fmt: skip
_CODE_OF_CATEGORY = np.array([KIND_CODE[_OF_CATEGORY.get(category, "other_host")] for category in CATEGORIES], np.int64)


class Joins(msgspec.Struct, frozen=True):
    """Moments at which a host thread went on because work, or another thread, had finished; sorted by thread, time."""

    thread: Ints
    at: Ints
    work: Ints  # the work that ended; -1 if it was a thread
    source: Ints  # the other thread; -1 if it was work


class Paths(msgspec.Struct, frozen=True):
    """The path of each window: work, entered backwards at a time, and stays on host threads; times in ns."""

    work_window: Ints
    work: Ints
    entered: Ints
    stay_window: Ints
    thread: Ints
    low: Ints
    high: Ints


def joins(waits: Waits, work: Work, passed: Handoffs, first: Handoffs) -> Joins:
    """All joins in order; `first` are those at which a thread becomes active in a window."""
    held = waits.work >= 0
    none, nobody = np.full(passed.at.size + first.at.size, -1, np.int64), np.full(int(held.sum()), -1, np.int64)
    thread = np.concatenate((waits.thread[held], passed.thread, first.thread))
    at = np.concatenate((work.end[waits.work[held]], passed.at, first.at))
    order = np.lexsort((at, thread))
    of_work = np.concatenate((waits.work[held], none))
    source = np.concatenate((nobody, passed.source, first.source))
    return Joins(thread[order], at[order], of_work[order], source[order])


def beginnings(threads: Threads, windows: Windows, passed: Handoffs) -> Handoffs:
    """Where a thread becomes active in a window: the window's main thread is assumed to start it."""
    parts = []
    for thread, (starts, ends) in enumerate(threads.active):
        at = np.searchsorted(starts, windows.low)
        first, over = np.append(starts, np.iinfo(np.int64).max)[at], np.append(ends, LONG_AGO)[at - 1]
        known = passed.at[passed.thread == thread]
        n_known = np.searchsorted(known, first, side="right") - np.searchsorted(known, windows.low, side="right")
        mine = (first < windows.high) & (over <= windows.low) & (windows.main != thread) & (n_known == 0)
        parts.append((np.full(int(mine.sum()), thread, np.int64), first[mine], windows.main[mine], over[mine]))
    empty = (np.empty(0, np.int64),) * 4
    return Handoffs(*(np.concatenate(column) for column in zip(empty, *parts, strict=True)))


def paths(work: Work, held: Held, joined: Joins, windows: Windows) -> Paths:
    """The path of each window from its end to its start."""
    n_work = work.start.size
    # From a node the path goes on at work, or on a thread back to that thread's latest join.
    lane = np.concatenate((np.where(held.by == LAUNCH, work.thread, -1), joined.source, windows.main, [-1]))
    since = np.concatenate((held.at, joined.at, windows.high, [LONG_AGO]))
    to_work = np.select([held.by == BEFORE, held.by == ACROSS], [work.before, held.across], -1)
    follows = np.concatenate((to_work, joined.work, _ending(work, windows), [-1]))
    on_thread = np.flatnonzero((follows < 0) & (lane >= 0))
    last = latest(joined.thread, joined.at, lane[on_thread], since[on_thread])
    follows[on_thread] = np.where(last >= 0, n_work + last, -1)
    arrives = since.copy()
    arrives[on_thread] = np.append(joined.at, LONG_AGO)[last]
    window, node, entered = _visited(follows, arrives, n_work + joined.at.size, windows.low)
    is_work = node < n_work
    stays = np.zeros(lane.size, np.bool_)
    stays[on_thread] = True
    stay = np.flatnonzero(stays[node])
    low = np.maximum(arrives[node[stay]], windows.low[window[stay]])
    high = np.minimum(since[node[stay]], windows.high[window[stay]])
    real = high > low
    stay = stay[real]
    return Paths(
        window[is_work], node[is_work], entered[is_work], window[stay], lane[node[stay]], low[real], high[real]
    )


def _ending(work: Work, windows: Windows) -> Ints:
    """The work that ends when the window ends; -1 if none."""
    order = np.argsort(work.end, kind="stable")
    ends = work.end[order]
    at = np.searchsorted(ends, windows.high)
    return np.where(np.append(ends, LONG_AGO)[at] == windows.high, np.append(order, -1)[at], -1)


def _visited(follows: Ints, arrives: Ints, first: int, lows: Ints) -> tuple[Ints, Ints, Ints]:
    """The nodes on each window's path: window, node, and when it was entered. Window i begins at node `first` + i.

    `follows` and `arrives` end with a node without predecessor, so that -1 refers to it.
    """
    window = np.arange(lows.size)
    node, entered = first + window, np.full(lows.size, np.iinfo(np.int64).max)
    jump, at = follows, arrives
    for _ in range(follows.size.bit_length()):
        # Each path has its first 2^k nodes. Jumping 2^k nodes from each of them gives the next 2^k.
        onward, when = jump[node], at[node]
        real = (onward >= 0) & (when > lows[window])
        if not real.any():
            break
        window = np.concatenate((window, window[real]))
        node = np.concatenate((node, onward[real]))
        entered = np.concatenate((entered, when[real]))
        at = np.where(jump >= 0, at[jump], LONG_AGO)
        jump = np.where(jump >= 0, jump[jump], -1)
    return window, node, entered


def pieces(
    spans: pl.DataFrame, threads: Threads, work: Work, held: Held, paths: Paths, windows: Windows
) -> pl.DataFrame:
    """The pieces of all paths, in any order: window, kind, row (of its span; -1 if none), ts_ns, dur_ns."""
    parts = [_on_device(work, held, paths, windows), *_on_host(spans, threads, paths, has_device=work.row.size > 0)]
    return pl.concat(parts)


def _on_device(work: Work, held: Held, paths: Paths, windows: Windows) -> pl.DataFrame:
    """Work on the paths and the gaps before it."""
    low, at = windows.low[paths.work_window], paths.work
    begin, end = np.maximum(work.start[at], low), np.minimum(paths.entered, work.end[at])
    since = np.maximum(held.at[at], low)
    runs = _frame(paths.work_window, _OF_SORT[work.sort[at]], work.row[at], begin, end)
    return pl.concat((runs, _frame(paths.work_window, _OF_WAIT[held.wait[at]], work.row[at], since, work.start[at])))


def _frame(window: Ints, kind: Ints, row: Ints, start: Ints, end: Ints) -> pl.DataFrame:
    """Pieces, without those of no duration."""
    frame = pl.DataFrame(
        {"window": window, "kind": kind.astype(np.int8), "row": row, "ts_ns": start, "dur_ns": end - start}
    )
    return frame.filter(pl.col("dur_ns") > 0)


def _on_host(spans: pl.DataFrame, threads: Threads, paths: Paths, *, has_device: bool) -> Iterator[pl.DataFrame]:
    """Stays on threads, divided among the innermost spans."""
    order = np.lexsort((paths.low, paths.thread))
    thread = paths.thread[order]
    for one in distinct_values(thread):
        mine = order[np.searchsorted(thread, one) : np.searchsorted(thread, one, side="right")]
        which, owner, start, end = divided(threads, int(one), (paths.low[mine], paths.high[mine]))
        kind = kinds_of(spans, owner, has_device=has_device)
        yield _frame(paths.stay_window[mine][which], kind, owner, start, end)


def divided(threads: Threads, thread: int, stays: Intervals) -> tuple[Ints, Ints, Ints, Ints]:
    """Disjoint sorted stays on a thread in pieces: the stay, the row of the innermost span or -1, start, end."""
    mine = threads.of(thread)
    starts, ends = threads.start[mine], threads.end[mine]
    inside = (times[locate(stays, times) >= 0] for times in (starts, ends))
    points = np.sort(np.concatenate((stays[0], *inside)))
    points = points[np.flatnonzero(np.diff(points, prepend=-1) != 0)]
    which = locate(stays, points)
    stop = np.minimum(np.append(points[1:], stays[1][-1:]), stays[1][which])
    parents = threads.parent[mine]
    lane = np.zeros(starts.size, np.int64)
    inner = innermost_at(
        np.zeros(points.size, np.int64), points, starts, ends, lane, np.where(parents >= 0, parents - mine.start, -1)
    )
    return which, np.where(inner >= 0, threads.row[mine][inner], -1), points, stop


def kinds_of(spans: pl.DataFrame, rows: Ints, *, has_device: bool) -> Ints:
    """The kind of host time whose innermost span is that row; -1: none is open."""
    is_there = np.zeros(spans.height + 1, np.bool_)
    is_there[rows] = True
    distinct = np.flatnonzero(is_there[:-1])
    kind = np.full(spans.height + 1, KIND_CODE["other_host"], np.int8)
    kind[distinct] = _kinds(spans, distinct, has_device=has_device)
    result: Ints = kind[rows].astype(np.int64)
    return result


def _kinds(spans: pl.DataFrame, rows: Ints, *, has_device: bool) -> Ints:
    category = in_rows(spans["category"], np.maximum(rows, 0))
    kinds: Ints = _CODE_OF_CATEGORY[category.to_physical().to_numpy()]
    calls = np.flatnonzero(kinds == KIND_CODE["runtime"])
    waits = map_names(in_rows(spans["name"], np.maximum(rows[calls], 0)), is_sync_call, pl.Boolean())
    kinds[calls[waits.to_numpy()]] = KIND_CODE["sync"]
    kinds[host_collectives(spans, np.maximum(rows, 0))] = KIND_CODE["communication"]
    if not has_device:
        named = np.flatnonzero(category.is_in(("operator", "user_range")).to_numpy())
        talks = talks_to_ranks(in_rows(spans["name"], np.maximum(rows[named], 0)))
        kinds[named[talks.to_numpy()]] = KIND_CODE["communication"]
    return kinds


def spent(spans: pl.DataFrame, threads: Threads, work: Work, windows: Windows) -> pl.DataFrame:
    """The time of all spans, on the path or not: window, kind, row, total_ns.

    Device work counts in the windows that it overlaps; a host span's self time counts where the span begins.
    """
    first = np.searchsorted(windows.high, work.start, side="right")
    n_windows = np.maximum(np.searchsorted(windows.low, work.end) - first, 0)
    at = np.repeat(np.arange(work.start.size), n_windows)
    window = np.arange(at.size) + np.repeat(first - (np.cumsum(n_windows) - n_windows), n_windows)
    start, end = np.maximum(work.start[at], windows.low[window]), np.minimum(work.end[at], windows.high[window])
    device = _frame(window, _OF_SORT[work.sort[at]], work.row[at], start, end)
    held = locate((windows.low, windows.high), threads.start)
    mine = np.flatnonzero(held >= 0)
    own = own_lengths(threads.start, threads.end, threads.parent)[mine]
    kind = _kinds(spans, threads.row[mine], has_device=work.row.size > 0)
    host = _frame(held[mine], kind, threads.row[mine], np.zeros(mine.size, np.int64), own)
    host = host.filter(pl.col("kind") != KIND_CODE["other_host"])
    return pl.concat((device, host)).select("window", "kind", "row", total_ns="dur_ns")


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
    wanted = in_rows(spans["category"], threads.row).is_in(categories).to_numpy().copy()
    rows = np.flatnonzero(wanted)
    wanted[rows] = map_names(in_rows(spans["name"], threads.row[rows]), matches, pl.Boolean()).to_numpy()
    result: Bools = wanted
    return result


def spans_like(
    spans: pl.DataFrame, threads: Threads, matches: Callable[[str], bool], categories: Sequence[str] = CATEGORIES
) -> Iterator[Intervals]:
    """The times at which a span of such a name and of one of these categories is open on each thread."""
    return _open(threads, like(spans, threads, matches, categories))
