"""When everything would have happened, had some of it taken longer or shorter: the graph's schedule, as soon as may be.

Each moment comes when the last of what it waits for allows. Recorded times turn this search for longest paths into one
for shortest: count, of a dependency, not how long it takes but by how much it falls short of the time that was there.
That is never negative, so Dijkstra's search gives each moment's slack, and it and the recorded time give the new time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.analyses.critical_path.path_handoffs import Handoffs
from stepscope.analyses.critical_path.path_order import LONG_AGO, latest
from stepscope.analyses.critical_path.path_scale import Scale
from stepscope.analyses.critical_path.path_waits import Waits
from stepscope.analyses.critical_path.path_windows import Windows
from stepscope.analyses.critical_path.path_work import (
    ACROSS,
    BEFORE,
    KERNEL_WAIT,
    LAUNCH,
    LAUNCH_DELAY,
    NOTHING,
    Held,
    Work,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Edges = tuple[Ints, Ints, Floats]  # from, to, how long after

_SOURCE = 0


@dataclass(frozen=True, slots=True)
class _Moments:
    """Where host threads may have to wait, in order of thread and time; times in ns."""

    thread: Ints
    at: Ints
    since: Ints  # until when the thread went on by itself, LONG_AGO if it had not begun
    work: Ints  # work that has to end first, -1 if none
    lag: Ints  # how long after that, in which the thread goes on
    source: Ints  # thread that has to come as far, -1 if none


@dataclass(frozen=True, slots=True)
class _Graph:
    """Node 0 is the origin, then come the starts of work, then the moments."""

    work: Work
    moments: _Moments
    scale: Scale
    origin: int
    recorded: Ints  # when each node happened
    reached: Floats  # how long after the origin each moment's thread would be there, if it never waited


def replayed(
    work: Work, held: Held, waits: Waits, passed: tuple[Handoffs, ...], windows: Windows, scale: Scale
) -> NDArray[np.int64]:
    """How long each window would take, in ns. `passed` are all handoffs, in any order.

    The recording is replayed as a whole, so that a host which was ahead of the device stays so no longer than it can.
    What held a thing up keeps its lag, scaled as asked; for what did not, the typical lag is taken, the median, or the
    time that was there if that is less.
    """
    moments = _moments(waits, work, passed)
    bounds = (work.start, moments.at, windows.begin, windows.low)
    origin = min(int(times.min()) for times in bounds if times.size)
    recorded = np.concatenate(([origin], work.start, moments.at))
    graph = _Graph(work, moments, scale, origin, recorded, np.zeros(moments.at.size))
    graph.reached[:] = _on_threads(graph, moments.thread, moments.at)
    times = _scheduled(graph, [*_of_work(graph, held), *_of_moments(graph)])
    node, after = _positions(graph, np.tile(windows.main, 2), np.concatenate((windows.begin, windows.end)))
    begin, end = np.split(times[node] + after, 2)
    ended = times[1 : work.start.size + 1] + (work.end - work.start) * scale.work
    new = _lengths(windows, begin, end, ended)
    old = _lengths(windows, *(t.astype(np.float64) for t in (windows.begin, windows.end, work.end)))
    return np.rint(np.maximum(windows.high - windows.low + new - old, 0)).astype(np.int64)


def _lengths(windows: Windows, begin: Floats, end: Floats, ended: Floats) -> Floats:
    """A window ends with the last work that it queued or on the host, and begins so, or as the one before has ended."""
    is_mine = windows.queued >= 0
    end = end.copy()
    np.maximum.at(end, windows.queued[is_mine], ended[is_mine])
    end = np.maximum.accumulate(end)
    return end - np.maximum(begin, np.concatenate((begin[:1], end[:-1])))


def _moments(waits: Waits, work: Work, passed: tuple[Handoffs, ...]) -> _Moments:
    """All moments at which a thread may wait, also where the recording shows no wait."""
    waited = waits.work >= 0
    at = np.where(waited, np.append(work.end, 0)[waits.work], waits.end)
    lag = np.where(waited, 0, waits.end - np.append(work.end, 0)[waits.queued])
    tails = (waits.end - at)[waited]
    lag = np.where(waited, 0, np.minimum(lag, np.median(tails) if tails.size else 0)).astype(np.int64)
    since = np.where(waited, waits.start, waits.end)
    nothing = np.full(waits.row.size, -1, np.int64)
    parts = [(waits.thread, at, since, np.where(waited, waits.work, waits.queued), lag, nothing)]
    for one in passed:
        none = np.full(one.at.size, -1, np.int64)
        parts.append((one.thread, one.at, one.since, none, none, one.source))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return _Moments(*(column[order] for column in columns))


def _on_threads(graph: _Graph, thread: Ints, times: Ints) -> Floats:
    """How long after the origin a thread would get to each time, if it never waited."""
    found = np.zeros(times.size)
    for one in np.unique(thread):
        mine = thread == one
        found[mine] = graph.scale.on_thread(int(one), times[mine], graph.origin)
    return found


def _positions(graph: _Graph, thread: Ints, times: Ints) -> tuple[Ints, Floats]:
    """For each time on a thread the node that it follows there, and how long after it comes."""
    moments = graph.moments
    last = latest(moments.thread, moments.at, thread, times)
    after = _on_threads(graph, thread, times) - np.append(graph.reached, 0.0)[last]
    return np.where(last >= 0, last + 1 + graph.work.start.size, _SOURCE), after


def _of_work(graph: _Graph, held: Held) -> Iterator[Edges]:
    """What work waits for."""
    work, scale = graph.work, graph.scale
    gap = work.start - held.at
    kept = gap * scale.waits[held.wait]
    typical = _median(gap[held.wait == KERNEL_WAIT])
    for by, other in ((BEFORE, work.before), (ACROSS, held.across)):
        rows = np.flatnonzero(other >= 0)
        one = other[rows]
        until = np.minimum(work.end[one], work.start[rows])
        least = np.minimum(typical, work.start[rows] - until) * scale.waits[KERNEL_WAIT]
        lag = np.where(held.by[rows] == by, kept[rows], least)
        yield one + 1, rows + 1, (until - work.start[one]) * scale.work[one] + lag
    rows = np.flatnonzero(work.call >= 0)
    submitted = held.submitted[rows]
    typical = _median(gap[(held.wait == LAUNCH_DELAY) & (gap > 0)])
    least = np.minimum(typical, work.start[rows] - submitted) * scale.waits[LAUNCH_DELAY]
    delay = np.where(held.by[rows] == LAUNCH, kept[rows], least)
    node, after = _positions(graph, work.thread[rows], submitted)
    yield node, rows + 1, after + delay
    rows = np.flatnonzero(held.by == NOTHING)
    yield np.full(rows.size, _SOURCE), rows + 1, (work.start[rows] - graph.origin).astype(np.float64)


def _of_moments(graph: _Graph) -> Iterator[Edges]:
    """What host threads wait for."""
    moments, n_work = graph.moments, graph.work.start.size
    node = np.arange(moments.at.size) + 1 + n_work
    follows = np.append(False, moments.thread[1:] == moments.thread[:-1])[: node.size]
    previous = np.where(follows, node - 1, _SOURCE)
    yield previous, node, np.zeros(node.size)
    rows = np.flatnonzero(moments.since != LONG_AGO)
    from_, after = _positions(graph, moments.thread[rows], moments.since[rows])
    # One that goes on without a wait is itself the latest there by then: it follows the one before.
    is_self = from_ >= node[rows]
    gone = graph.reached[rows] - np.where(follows, np.roll(graph.reached, 1), 0.0)[rows]
    yield np.where(is_self, previous[rows], from_), node[rows], np.where(is_self, gone, after)
    rows = np.flatnonzero(moments.work >= 0)
    one = moments.work[rows]
    took = (graph.work.end - graph.work.start)[one] * graph.scale.work[one]
    at = moments.at[rows]
    tail = graph.reached[rows] - _on_threads(graph, moments.thread[rows], at - moments.lag[rows])
    yield one + 1, node[rows], took + tail
    rows = np.flatnonzero(moments.source >= 0)
    from_, after = _positions(graph, moments.source[rows], moments.at[rows])
    yield from_, node[rows], after


def _median(times: Ints) -> float:
    return float(np.median(times)) if times.size else 0.0


def _scheduled(graph: _Graph, edges: list[Edges]) -> Floats:
    """When each node comes, in ns."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    from_, to, after = (np.concatenate(column) for column in zip(*edges, strict=True))
    slow = graph.scale.largest
    short = np.maximum(slow * (graph.recorded[to] - graph.recorded[from_]) - after, 0.0)
    # Of several dependencies between the same two the tightest counts; a sparse matrix would add them up.
    order = np.lexsort((short, to, from_))
    from_, to, short = from_[order], to[order], short[order]
    first = np.append(True, (from_[1:] != from_[:-1]) | (to[1:] != to[:-1]))[: to.size]
    n = graph.recorded.size
    matrix = csr_array((short[first], (from_[first], to[first])), shape=(n, n))
    slack = dijkstra(matrix, indices=np.array([_SOURCE]))[0]
    times: Floats = graph.origin + slow * (graph.recorded - graph.origin) - slack
    return times
