"""What if: the schedule of the recorded graph when some spans or waits take longer or shorter.

Everything happens as soon as all that it waits for has happened, which is a search for longest paths. Recorded times
turn it into a search for shortest paths: the weight of a dependency is by how much it is shorter than the recorded time
between its ends. That is never negative, so Dijkstra's search finds each moment's slack, and thus its new time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION, MEMCPY
from stepscope.analyses.critical_path.longest_path import KIND_CODE, KINDS, divided, kinds_of
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads, latest
from stepscope.analyses.critical_path.waits import Handoffs, Waits
from stepscope.analyses.critical_path.windows import Windows
from stepscope.analyses.critical_path.work import (
    ACROSS,
    BEFORE,
    KERNEL_WAIT,
    LAUNCH,
    LAUNCH_DELAY,
    NOTHING,
    WAITS,
    Held,
    Work,
)
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import Intervals, Ints, covered, difference, union
from stepscope.core.names import KERNEL_CLASSES, kernel_class, map_names

_RULE = re.compile(r"\s*(?P<what>.+?)\s*=\s*(?P<factor>\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+)\s*(?:,|$)")
_HINT = "write it as in 'gemm=0.5,launch delay=0': a kind, a class of kernels or a regular expression, and a factor"


#: Kinds of device work. All other kinds, except waits, are on the host.
_SORTS = {"computation": COMPUTATION, "communication": COMMUNICATION, "memcpy": MEMCPY}
Floats = NDArray[np.float64]
Edges = tuple[Ints, Ints, Floats]  # from, to, how long after
_SOURCE = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What is scaled by `factor`: a kind of KINDS, or all whose name matches, anywhere or on devices only."""

    what: str
    factor: float
    kind: str | None = None
    matches: Callable[[str], bool] = bool
    device_only: bool = False


def rules(text: str) -> list[Rule]:
    """The rules of a text such as 'gemm=0.5,launch delay=0'. Raises StepscopeError."""
    result, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise StepscopeError(f"not a scale: {text[at:]!r}", _HINT)
        result.append(_rule(match["what"], float(match["factor"])))
        at = match.end()
    if not result:
        raise StepscopeError("nothing to scale", _HINT)
    return result


def _rule(what: str, factor: float) -> Rule:
    kind = what.lower().replace(" ", "_").replace("-", "_")
    if kind in KINDS:
        return Rule(what, factor, kind)
    if what in KERNEL_CLASSES:
        return Rule(what, factor, matches=lambda name: kernel_class(name) == what, device_only=True)
    try:
        search = re.compile(what).search
    except re.error as error:
        raise StepscopeError(f"not a regular expression: {what!r} ({error})", _HINT) from error
    return Rule(what, factor, matches=lambda name: search(name) is not None)


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of each piece of work, of each kind in WAITS, and of disjoint times on each thread."""

    work: Floats
    waits: Floats
    host: tuple[tuple[tuple[float, Intervals], ...], ...]
    largest: float

    def on_thread(self, thread: int, times: Ints, origin: int) -> Floats:
        """When a thread would get to each of these times, in ns after the origin, if it never waited."""
        after = (times - origin).astype(np.float64)
        for factor, held in self.host[thread]:
            after -= (1 - factor) * covered(held, np.full(times.size, origin), times)
        return after


def scale_of(wanted: Sequence[Rule], spans: pl.DataFrame, threads: Threads, work: Work) -> Scale:
    """Where the rules hold; the first of several counts. Raises StepscopeError if a rule holds nowhere.

    On the host, a rule for names holds for everything inside a matching span on its thread.
    """
    names = spans["name"].gather(work.row)
    factor, free = np.ones(work.row.size), np.ones(work.row.size, np.bool_)
    host: list[list[tuple[float, Intervals]]] = [[] for _ in threads.track]
    of_waits = {rule.kind: rule.factor for rule in reversed(wanted)}
    waits = np.array([of_waits.get(kind, 1.0) for kind in WAITS])
    for rule in wanted:
        if rule.kind is not None:
            mine = np.isin(work.sort, [_SORTS[rule.kind]] if rule.kind in _SORTS else [])
        else:
            mine = map_names(names, rule.matches, pl.Boolean()).to_numpy()
        factor[mine & free] = rule.factor
        n_held = int(mine.sum())
        free &= ~mine
        for taken, held in zip(host, _held(rule, spans, threads, has_device=work.row.size > 0), strict=True):
            n_held += held[0].size
            rest = reduce(difference, (before for _, before in taken), held)
            taken.append((rule.factor, rest))
        if n_held == 0 and rule.kind not in WAITS:
            raise StepscopeError(f"nothing to scale: no operator, call, range or kernel matches {rule.what!r}", _HINT)
    return Scale(factor, waits, tuple(map(tuple, host)), max(1.0, *(rule.factor for rule in wanted)))


def _held(rule: Rule, spans: pl.DataFrame, threads: Threads, *, has_device: bool) -> Iterator[Intervals]:
    """The times at which the rule holds on each thread."""
    if rule.device_only or rule.kind in WAITS:
        none = np.empty(0, np.int64)
        yield from ((none, none) for _ in threads.track)
    elif rule.kind is not None:
        whole = threads.start.min(keepdims=True), threads.end.max(keepdims=True)
        for thread in range(threads.track.size):
            _, row, start, end = divided(threads, thread, whole)
            mine = kinds_of(spans, row, has_device=has_device) == KIND_CODE[rule.kind]
            yield union(start[mine], end[mine])
    else:
        matching = map_names(spans["name"].gather(threads.row), rule.matches, pl.Boolean()).to_numpy()
        for thread in range(threads.track.size):
            mine = np.flatnonzero(matching[threads.of(thread)]) + threads.of(thread).start
            yield union(threads.start[mine], threads.end[mine])


@dataclass(frozen=True, slots=True)
class _Moments:
    """Moments when host threads may have to wait, sorted by thread and time; times in ns."""

    thread: Ints
    at: Ints
    since: Ints  # when the thread began to wait; LONG_AGO if it had not begun
    work: Ints  # work that has to end first; -1 if none
    lag: Ints  # how long after that the thread goes on
    source: Ints  # thread that has to get this far first; -1 if none


@dataclass(frozen=True, slots=True)
class _Graph:
    """Node 0 is the origin, followed by the starts of work and the moments."""

    work: Work
    moments: _Moments
    scale: Scale
    origin: int
    recorded: Ints  # when each node happened
    reached: Floats  # when each moment's thread would get there after the origin, if it never waited


def replayed(
    work: Work, held: Held, waits: Waits, passed: tuple[Handoffs, ...], windows: Windows, scale: Scale
) -> NDArray[np.int64]:
    """How long each window would take, in ns. `passed` are all handoffs, in any order.

    The whole recording is replayed, as the host may be ahead of the device by more than a step. The dependency that
    held something up keeps its recorded lag, scaled by its rule. Other dependencies get the median lag, or the recorded
    time if that is less.
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
    """A window ends when the host and all work that it queued have ended, and begins no earlier than the last ended."""
    is_mine = windows.queued >= 0
    end = end.copy()
    np.maximum.at(end, windows.queued[is_mine], ended[is_mine])
    end = np.maximum.accumulate(end)
    return end - np.maximum(begin, np.concatenate((begin[:1], end[:-1])))


def _moments(waits: Waits, work: Work, passed: tuple[Handoffs, ...]) -> _Moments:
    """All moments when a thread may wait, including those without a recorded wait."""
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
    """When a thread would get to each time, in ns after the origin, if it never waited."""
    after = np.zeros(times.size)
    for one in np.unique(thread):
        mine = thread == one
        after[mine] = graph.scale.on_thread(int(one), times[mine], graph.origin)
    return after


def _positions(graph: _Graph, thread: Ints, times: Ints) -> tuple[Ints, Floats]:
    """For each time on a thread the last node there before it, and how long after that node it is."""
    moments = graph.moments
    last = latest(moments.thread, moments.at, thread, times)
    after = _on_threads(graph, thread, times) - np.append(graph.reached, 0.0)[last]
    return np.where(last >= 0, last + 1 + graph.work.start.size, _SOURCE), after


def _of_work(graph: _Graph, held: Held) -> Iterator[Edges]:
    """The dependencies of work."""
    work, scale = graph.work, graph.scale
    gap = work.start - held.at
    recorded = gap * scale.waits[held.wait]
    typical = _median(gap[held.wait == KERNEL_WAIT])
    for by, other in ((BEFORE, work.before), (ACROSS, held.across)):
        rows = np.flatnonzero(other >= 0)
        one = other[rows]
        until = np.minimum(work.end[one], work.start[rows])
        least = np.minimum(typical, work.start[rows] - until) * scale.waits[KERNEL_WAIT]
        lag = np.where(held.by[rows] == by, recorded[rows], least)
        yield one + 1, rows + 1, (until - work.start[one]) * scale.work[one] + lag
    rows = np.flatnonzero(work.call >= 0)
    submitted = held.submitted[rows]
    typical = _median(gap[(held.wait == LAUNCH_DELAY) & (gap > 0)])
    least = np.minimum(typical, work.start[rows] - submitted) * scale.waits[LAUNCH_DELAY]
    delay = np.where(held.by[rows] == LAUNCH, recorded[rows], least)
    node, after = _positions(graph, work.thread[rows], submitted)
    yield node, rows + 1, after + delay
    rows = np.flatnonzero(held.by == NOTHING)
    yield np.full(rows.size, _SOURCE), rows + 1, (work.start[rows] - graph.origin).astype(np.float64)


def _of_moments(graph: _Graph) -> Iterator[Edges]:
    """The dependencies of host threads."""
    moments, n_work = graph.moments, graph.work.start.size
    node = np.arange(moments.at.size) + 1 + n_work
    follows = np.append(False, moments.thread[1:] == moments.thread[:-1])[: node.size]
    previous = np.where(follows, node - 1, _SOURCE)
    yield previous, node, np.zeros(node.size)
    rows = np.flatnonzero(moments.since != LONG_AGO)
    from_, after = _positions(graph, moments.thread[rows], moments.since[rows])
    # A moment without a wait is itself the latest by then: it follows the previous one.
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
    """The new time of each node, in ns."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    from_, to, after = (np.concatenate(column) for column in zip(*edges, strict=True))
    slow = graph.scale.largest
    short = np.maximum(slow * (graph.recorded[to] - graph.recorded[from_]) - after, 0.0)
    # Of several dependencies between two nodes the tightest counts; a sparse matrix would add them up.
    order = np.lexsort((short, to, from_))
    from_, to, short = from_[order], to[order], short[order]
    first = np.append(True, (from_[1:] != from_[:-1]) | (to[1:] != to[:-1]))[: to.size]
    n = graph.recorded.size
    matrix = csr_array((short[first], (from_[first], to[first])), shape=(n, n))
    slack = dijkstra(matrix, indices=np.array([_SOURCE]))[0]
    times: Floats = graph.origin + slow * (graph.recorded - graph.origin) - slack
    return times
