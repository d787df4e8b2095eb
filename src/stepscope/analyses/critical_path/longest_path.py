"""The longest path through each step, found backwards: from its end always to what was waited for last.

Recorded times order the graph. A path takes the time between two recorded moments, whichever way it goes, so none is
longer than the step; the one that follows, at each wait, the dependency that was met last, takes all of it. Nodes are
pieces of device work and joins, which are the moments when a host thread went on because something else had ended.
Each node has one such predecessor, so all paths are read off by doubling of strides, without walking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.analyses.critical_path.path_handoffs import Handoffs
from stepscope.analyses.critical_path.path_order import LONG_AGO, latest
from stepscope.analyses.critical_path.path_threads import Threads
from stepscope.analyses.critical_path.path_waits import Waits
from stepscope.analyses.critical_path.path_windows import Windows
from stepscope.analyses.critical_path.path_work import ACROSS, BEFORE, LAUNCH, Held, Work

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Joins:
    """Moments at which a host thread went on because work (or another thread) let it, by thread and time."""

    thread: Ints
    at: Ints
    work: Ints  # whose end that was, -1 where it was a thread
    source: Ints  # the other thread, -1 where it was work


@dataclass(frozen=True, slots=True)
class Paths:
    """What lies on the path of each window: work that was entered at a time, and stays on host threads; times in ns."""

    work_window: Ints
    work: Ints
    entered: Ints
    stay_window: Ints
    thread: Ints
    low: Ints
    high: Ints


def joins(waits: Waits, work: Work, passed: Handoffs, first: Handoffs) -> Joins:
    """All joins in order; `first` are those at which a thread began its part of a window."""
    held = waits.work >= 0
    none, nobody = np.full(passed.at.size + first.at.size, -1, np.int64), np.full(int(held.sum()), -1, np.int64)
    thread = np.concatenate((waits.thread[held], passed.thread, first.thread))
    at = np.concatenate((work.end[waits.work[held]], passed.at, first.at))
    order = np.lexsort((at, thread))
    of_work = np.concatenate((waits.work[held], none))
    source = np.concatenate((nobody, passed.source, first.source))
    return Joins(thread[order], at[order], of_work[order], source[order])


def beginnings(threads: Threads, windows: Windows, passed: Handoffs) -> Handoffs:
    """Where a thread first becomes active in a window whose other threads are: its main thread is taken to start it."""
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
    # A node's path goes on either at work (entered at a time), or on a thread (at a time) down to its latest join.
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
    """The work with whose end each window ends, -1 if there is none."""
    order = np.argsort(work.end, kind="stable")
    ends = work.end[order]
    at = np.searchsorted(ends, windows.high)
    return np.where(np.append(ends, LONG_AGO)[at] == windows.high, np.append(order, -1)[at], -1)


def _visited(follows: Ints, arrives: Ints, first: int, lows: Ints) -> tuple[Ints, Ints, Ints]:
    """The nodes on each window's path: window, node, and when it was entered. Window i begins at node `first` + i.

    `follows` and `arrives` end with a node that follows nothing, which -1 stands for.
    """
    window = np.arange(lows.size)
    node, entered = first + window, np.full(lows.size, np.iinfo(np.int64).max)
    jump, at = follows, arrives
    for _ in range(follows.size.bit_length()):
        # So far each path has its first 2^k nodes. From each of these, 2^k nodes on, is one of the next 2^k.
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
