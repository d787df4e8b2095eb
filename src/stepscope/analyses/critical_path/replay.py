"""The recorded program run again: when each piece of work starts and each wait ends if parts of it take other times.

The graph is contracted. Its nodes are the starts of device work and the moments at which a host thread may have to
wait; all else is host time between them, which stays as recorded, untraced gaps included. A forward pass in topological
order gives every node its earliest time: the latest of what each of its dependencies allows. The dependency that held
something up keeps its recorded lag, so that an unchanged replay is the recording; others get the usual lag of their
kind, or the recorded time if that is less. Nothing is clamped, so a constraint that the recording did not feel, such as
a full launch queue or a slow data loader, takes effect as soon as a change makes it matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.analyses.common.span_lookup import in_rows
from stepscope.analyses.critical_path.contention import Contention, contention_of
from stepscope.analyses.critical_path.events import crossings
from stepscope.analyses.critical_path.forward_pass import SOURCE, Floats, Shape, shape_of
from stepscope.analyses.critical_path.loader import loader_limits
from stepscope.analyses.critical_path.longest_path import beginnings
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads, latest
from stepscope.analyses.critical_path.waits import (
    Handoffs,
    Limits,
    Waits,
    handoffs,
    no_limits,
    queue_limits,
    waits,
)
from stepscope.analyses.critical_path.windows import Windows
from stepscope.analyses.critical_path.work import (
    ACROSS,
    BEFORE,
    KERNEL_WAIT,
    LAUNCH,
    LAUNCH_DELAY,
    NOTHING,
    UNEXPLAINED,
    WAITS,
    Held,
    Work,
    held_up,
    path_work,
)
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Bools, Intervals, Ints, covered
from stepscope.core.names import kernel_class, map_names
from stepscope.core.schema import DEVICES, OPS

Edges = tuple[Ints, Ints, Floats]  # from, to, how long after
#: How often lengths of computation follow from where communication runs, which follows from them, at most; and the
#: share of all work that may still move.
TURNS, SETTLED = 6, 1e-4
#: The quantile of the lags of their kind that dependencies get which held nothing up.
MEDIAN = 0.5
#: Work of a graph begins so long after the work before it: 0.5 to 1.4 µs on RTX 3080, V100 and T4, 0 on H100.
_GRAPH_GAP_NS = 1_000
Lags = Literal["recorded", "pooled", "other steps"]


class Changes(msgspec.Struct, frozen=True):
    """What takes another time: factors of each piece of work, of each kind in WAITS, and of times on each thread.

    `without_waiting` are kinds of moments (of MOMENTS) that no longer wait. Nothing depends on work that is `detached`
    but the next work of its stream and the end of the step. Work that is `captured` in a graph begins no later after
    its call than is usual, and no later after the work before it than work of graphs does.
    """

    work: Floats
    waits: Floats
    host: tuple[tuple[tuple[float, Intervals], ...], ...]
    without_waiting: tuple[int, ...] = ()
    detached: Bools | None = None
    captured: Bools | None = None
    loader: float = 1.0

    def on_thread(self, thread: int, times: Ints, origin: int) -> Floats:
        """When a thread would get to each of these times, in ns after the origin, if it never waited."""
        after = (times - origin).astype(np.float64)
        for factor, held in self.host[thread]:
            after -= (1 - factor) * covered(held, np.full(times.size, origin), times)
        return after


def unchanged(work: Work, n_threads: int) -> Changes:
    """Changes that change nothing."""
    return Changes(np.ones(work.row.size), np.ones(len(WAITS)), ((),) * n_threads)


#: What a moment waits for: device work in a synchronising call or a blocking copy, another thread, room in the launch
#: queue, the data loader, device work in an operator that stands for a synchronising call.
SYNC, COPY, THREAD, QUEUE, LOADER, GUESSED = MOMENTS = range(6)


class Moments(msgspec.Struct, frozen=True):
    """Moments when host threads may have to wait, sorted by thread and time; times in ns."""

    kind: Ints
    thread: Ints
    at: Ints
    since: Ints  # when the thread began to wait; LONG_AGO if it had not begun
    work: Ints  # work that has to end first (queue: has to start); -1 if none
    lag: Ints  # how long after that the thread goes on
    source: Ints  # thread that has to get this far first; -1 if none
    producer: Ints  # the moment at which a worker of the loader began this batch; -1 if none


#: So many batches must have been waited for before their mean time bounds what a step takes.
_LEAST_PACED = 4


class Replay(msgspec.Struct, frozen=True):
    """One run: when each node happened, when windows begin and end on the host, when work ends; and all edges."""

    times: Floats
    begin: Floats
    end: Floats
    ended: Floats
    edges: Edges


class Graph(msgspec.Struct, frozen=True):
    """Node 0 is the origin, followed by the starts of work and the moments. `make` builds it."""

    work: Work
    held: Held
    moments: Moments
    windows: Windows
    origin: int
    lags: Lags
    contention: Contention | None = None
    spare: float = MEDIAN  # quantile of the lags that dependencies get which held nothing up
    shape: list[Shape] = msgspec.field(default_factory=list)  # filled by the first run, as are the nodes before times
    last: dict[str, Ints] = msgspec.field(default_factory=dict)
    # Lags that held nothing up, by kind and quantile.
    usual: dict[tuple[int, float], float] = msgspec.field(default_factory=dict)

    @property
    def n_inferred(self) -> int:
        """How many dependencies no field of the recording names."""
        guessed = np.isin(self.moments.kind, (THREAD, QUEUE, LOADER, GUESSED))
        return int(guessed.sum()) + int((self.held.across >= 0).sum())

    def run(self, changes: Changes) -> Replay:
        """The program with these changes. Times in ns."""
        return self.settled(changes)[1]

    def settled(self, changes: Changes) -> tuple[Changes, Replay]:
        """The same, and the changes with what computation gains and loses as communication beside it moves."""
        run, wanted, contention = self.once(changes), changes.work, self.contention
        if contention is None or not contention.share:
            return changes, run
        took = self.work.end - self.work.start
        for _ in range(TURNS):
            start = run.times[1 : self.work.start.size + 1]
            factors = contention.factors(self.work, wanted, start, run.ended)
            moved = np.abs((factors - changes.work) * took).sum()
            if moved <= SETTLED * took.sum():
                break
            changes = replace(changes, work=factors)
            run = self.once(changes)
        return changes, run

    def once(self, changes: Changes, reached: Floats | None = None) -> Replay:
        """The program with these changes, in which work takes no other time than they say. Times in ns.

        `reached` is what `reached` returns for these changes, if it is known.
        """
        reached = self.reached(changes) if reached is None else reached
        edges, _ = self.edges(changes, reached)
        return self.replay(changes, reached, self._forward(*edges), edges)

    def reached(self, changes: Changes) -> Floats:
        """When each moment's thread would get there after the origin, if it never waited, in ns."""
        return _on_threads(self, changes, self.moments.thread, self.moments.at)

    def edges(self, changes: Changes, reached: Floats) -> tuple[Edges, Bools]:
        """All dependencies with these changes, and which of them begin at the end of work."""
        parts = [*_of_work(self, changes, reached), *_of_moments(self, changes, reached)]
        room = _of_queue(self, changes)
        from_, to, after = (np.concatenate(column) for column in zip(*parts, room, strict=True))
        ends = (from_ >= 1) & (from_ <= self.work.start.size) & (np.arange(from_.size) < from_.size - room[0].size)
        return (from_, to, after), ends

    def replay(self, changes: Changes, reached: Floats, times: Floats, edges: Edges) -> Replay:
        """The run with these changes in which nodes happen at these times, in ns."""
        bounds = np.concatenate((self.windows.begin, self.windows.end))
        node, since = positions(self, changes, reached, "bounds", np.tile(self.windows.main, 2), bounds)
        begin, end = np.split(times[node] + since, 2)
        ended = times[1 : self.work.start.size + 1] + (self.work.end - self.work.start) * changes.work
        return Replay(times, begin, end, ended, edges)

    def _forward(self, from_: Ints, to: Ints, after: Floats) -> Floats:
        """The earliest time of each node, in ns."""
        if not self.shape:
            recorded = np.concatenate(([self.origin - 1], self.work.start, self.moments.at))
            self.shape.append(shape_of(from_, to, recorded, self.work.start.size))
        return self.shape[0].earliest(after, float(self.origin))

    def period(self, run: Replay, steady: slice) -> float:
        """How long these windows take in the long run, in relation to the recording.

        They take no less than the host does between their ends: what the device is behind with, it catches up with.
        """
        windows = self.windows
        recorded = max(float((windows.high - windows.low)[steady].sum()), 1.0)
        took = float(self.lengths(run)[steady].sum())
        first = range(windows.low.size)[steady][0] - 1
        if first >= 0 and (windows.main == windows.main[0]).all():
            ahead = max(float(windows.end[-1] - windows.end[first]) - recorded, 0.0)
            took = max(took, float(run.end[-1] - run.end[first]) - ahead)
        return took / recorded

    def loader_pace(self) -> float:
        """The time in which the workers of the slowest loader make the batches of a window, in ns; 0 if none is known.

        Batches that were waited for tell how long one takes; how far back its producer is, how many are made at a time.
        """
        moments, slowest = self.moments, 0.0
        for thread in set(moments.thread[moments.kind == LOADER].tolist()):
            mine = np.flatnonzero((moments.kind == LOADER) & (moments.thread == thread))
            rows = np.flatnonzero((moments.producer[mine] >= 0) & (moments.at[mine] > moments.since[mine]))
            if rows.size >= _LEAST_PACED:
                producer = np.searchsorted(mine, moments.producer[mine[rows]])
                each = float(moments.lag[mine[rows]].mean() / (rows - producer).mean())
                slowest = max(slowest, each * mine.size / self.windows.low.size)
        return slowest

    def lengths(self, run: Replay) -> Floats:
        """How long each window takes, in ns."""
        windows = self.windows
        recorded = (t.astype(np.float64) for t in (windows.begin, windows.end, self.work.end))
        new, old = _lengths(windows, run.begin, run.end, run.ended), _lengths(windows, *recorded)
        result: Floats = np.maximum(windows.high - windows.low + new - old, 0)
        return result


class Program(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A recorded program: its host threads, its device work, and what each waited for.

    `ops` and `devices` are those tables of the trace. `known` is what each change that was asked before concerns, and
    `answers` what changes did that were asked together.
    """

    spans: pl.DataFrame
    threads: Threads
    work: Work
    held: Held
    waited: Waits
    passed: Handoffs
    first: Handoffs
    windows: Windows
    graph: Graph
    loader_known: dict[int, bool]  # threads with a loader that has workers, and whether its pace is known
    known: dict[object, tuple[Bools, list[Intervals]]] = msgspec.field(default_factory=dict)
    answers: dict[object, Changes] = msgspec.field(default_factory=dict)
    ops: pl.DataFrame = msgspec.field(default_factory=OPS.empty)
    devices: pl.DataFrame = msgspec.field(default_factory=DEVICES.empty)

    @cached_property
    def classes(self) -> NDArray[np.str_]:
        """The class of each piece of device work."""
        return map_names(in_rows(self.spans["name"], self.work.row), kernel_class, pl.String()).to_numpy().astype(str)


def program_of(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    ops: pl.DataFrame,
    arrows: pl.DataFrame,
    event_waits: pl.DataFrame,
    devices: pl.DataFrame,
    threads: Threads,
    windows: Windows,
    *,
    lags: Lags = "recorded",
) -> Program:
    """The program of a trace's tables. `devices` is what `device_work` returns."""
    work = path_work(devices, spans, threads)
    held = held_up(work, crossings(spans, tracks, work, event_waits))
    waited = waits(spans, tracks, threads, work, event_waits)
    passed = handoffs(spans, ops, arrows, threads)
    first = beginnings(threads, windows, passed)
    fetches, paces = loader_limits(spans, threads)
    limits = queue_limits(work).and_also(fetches)
    graph = make(work, held, waited, (passed, first), windows, limits, lags=lags)
    graph = replace(graph, contention=contention_of(spans, ops, work))
    return Program(spans, threads, work, held, waited, passed, first, windows, graph, paces)


def make(
    work: Work,
    held: Held,
    waited: Waits,
    passed: Sequence[Handoffs],
    windows: Windows,
    limits: Limits | None = None,
    *,
    lags: Lags = "recorded",
) -> Graph:
    """The graph of a recording. `passed` are all handoffs, in any order.

    With `lags` `pooled`, every launch delay and gap between kernels is replaced by the median of its kind; with `other
    steps` by that of the steps but the one that queued the work.
    """
    moments = _moments(waited, work, passed, no_limits() if limits is None else limits)
    bounds = (work.start, moments.at, windows.begin, windows.low)
    origin = min(int(times.min()) for times in bounds if times.size)
    return Graph(work, held, moments, windows, origin, lags)


def _lengths(windows: Windows, begin: Floats, end: Floats, ended: Floats) -> Floats:
    """A window ends when the host and all work that it queued have ended, and begins no earlier than the last ended."""
    is_mine = windows.queued >= 0
    end = end.copy()
    np.maximum.at(end, windows.queued[is_mine], ended[is_mine])
    end = np.maximum.accumulate(end)
    return end - np.maximum(begin, np.concatenate((begin[:1], end[:-1])))


def _moments(waited: Waits, work: Work, passed: Sequence[Handoffs], limits: Limits) -> Moments:
    """All moments when a thread may wait, including those without a recorded wait."""
    is_held = waited.work >= 0
    at = np.where(is_held, np.append(work.end, 0)[waited.work], waited.end)
    lag = np.where(is_held, 0, waited.end - np.append(work.end, 0)[waited.queued])
    tails = (waited.end - at)[is_held]
    lag = np.where(is_held, 0, np.minimum(lag, np.median(tails) if tails.size else 0)).astype(np.int64)
    since = np.where(is_held, waited.start, waited.end)
    none = np.full(waited.row.size, -1, np.int64)
    kind = np.select([waited.is_copy, waited.is_inferred], [COPY, GUESSED], SYNC)
    awaited = np.where(is_held, waited.work, waited.queued)
    parts = [(kind, waited.thread, at, since, awaited, lag, none, none)]
    for one in passed:
        none = np.full(one.at.size, -1, np.int64)
        parts.append((np.full(one.at.size, THREAD), one.thread, one.at, one.since, none, none, one.source, none))
    n_before = sum(part[0].size for part in parts)
    none = np.full(limits.at.size, -1, np.int64)
    kind = np.where(limits.work >= 0, QUEUE, LOADER)
    producer = np.where(limits.producer >= 0, limits.producer + n_before, -1)
    parts.append((kind, limits.thread, limits.at, limits.since, limits.work, limits.after, none, producer))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[1]))
    place = np.append(np.argsort(order), -1)
    columns[-1] = place[columns[-1]]
    return Moments(*(column[order] for column in columns))


def _on_threads(graph: Graph, changes: Changes, thread: Ints, times: Ints) -> Floats:
    """When a thread would get to each time, in ns after the origin, if it never waited."""
    after = (times - graph.origin).astype(np.float64)
    if not any(changes.host):
        return after
    changing = np.array([bool(factors) for factors in changes.host], np.bool_)
    rows = np.flatnonzero(np.append(changing, False)[thread])
    rows = rows[np.argsort(thread[rows], kind="stable")]
    heads = np.flatnonzero(np.append(True, np.diff(thread[rows]) != 0)[: rows.size])
    for mine in np.split(rows, heads[1:]) if rows.size else ():
        after[mine] = changes.on_thread(int(thread[mine[0]]), times[mine], graph.origin)
    return after


def positions(
    graph: Graph, changes: Changes, reached: Floats, what: str, thread: Ints, times: Ints
) -> tuple[Ints, Floats]:
    """For each time on a thread the last node there before it, and how long after that node it is.

    `reached` is when each moment's thread would get there after the origin, if it never waited. `what` names the times,
    which are the same in every run.
    """
    moments = graph.moments
    if what not in graph.last:
        graph.last[what] = latest(moments.thread, moments.at, thread, times)
    last = graph.last[what]
    after = _on_threads(graph, changes, thread, times) - np.append(reached, 0.0)[last]
    return np.where(last >= 0, last + 1 + graph.work.start.size, SOURCE), after


def _of_work(graph: Graph, changes: Changes, reached: Floats) -> Iterator[Edges]:
    """The dependencies of work."""
    work, held = graph.work, graph.held
    gap = work.start - held.at
    if graph.lags != "recorded":
        queued = graph.windows.queued
        gap = _pooled(gap, held, work, queued if graph.lags == "other steps" else np.full_like(queued, -1))
    recorded = gap * changes.waits[held.wait]
    typical = _usual(graph, KERNEL_WAIT, gap)
    later, earlier = held.crossing
    more = held.across[later] != earlier
    follows, crosses = np.flatnonzero(work.before >= 0), np.flatnonzero(held.across >= 0)
    for by, rows, one in (
        (BEFORE, follows, work.before[follows]),
        (ACROSS, crosses, held.across[crosses]),
        (None, later[more], earlier[more]),
    ):
        until = np.minimum(work.end[one], work.start[rows])
        least = np.minimum(typical, work.start[rows] - until) * changes.waits[KERNEL_WAIT]
        lag = np.where(held.by[rows] == by, recorded[rows], least)
        if by == BEFORE and changes.captured is not None:
            inside = changes.captured[rows] & changes.captured[one] & (held.wait[rows] != UNEXPLAINED)
            lag = np.where(inside, np.minimum(lag, _GRAPH_GAP_NS), lag)
        if by != BEFORE and changes.detached is not None:
            lag[changes.detached[one]] = -np.inf
        yield one + 1, rows + 1, (until - work.start[one]) * changes.work[one] + lag
    rows = np.flatnonzero(work.call >= 0)
    submitted = held.submitted[rows]
    typical = _usual(graph, LAUNCH_DELAY, gap)
    least = np.minimum(typical, work.start[rows] - submitted) * changes.waits[LAUNCH_DELAY]
    delay = np.where(held.by[rows] == LAUNCH, recorded[rows], least)
    if changes.captured is not None:
        delay = np.where(changes.captured[rows], np.minimum(delay, typical), delay)
    node, after = positions(graph, changes, reached, "calls", work.thread[rows], submitted)
    yield node, rows + 1, after + delay
    rows = np.flatnonzero(held.by == NOTHING)
    yield np.full(rows.size, SOURCE), rows + 1, (work.start[rows] - graph.origin).astype(np.float64)


def _pooled(gap: Ints, held: Held, work: Work, without: Ints) -> Ints:
    """Gaps replaced by the medians of their kind: what held the work up, and what the work is.

    The median is that of gaps with another number in `without`; a kind that has no others keeps its gaps.
    """
    pooled = gap.copy()
    kind = held.by * 3 + work.sort
    for one in distinct_values(kind):
        mine = np.flatnonzero((kind == one) & (held.wait != UNEXPLAINED) & (held.by != NOTHING))
        for window in distinct_values(without[mine]):
            is_own = without[mine] == window
            learned = gap[mine] if window < 0 else gap[mine[~is_own]]
            pooled[mine[is_own]] = np.median(learned) if learned.size else gap[mine[is_own]]
    return pooled


def _of_moments(graph: Graph, changes: Changes, reached: Floats) -> Iterator[Edges]:
    """The dependencies of host threads."""
    moments, n_work = graph.moments, graph.work.start.size
    node = np.arange(moments.at.size) + 1 + n_work
    follows = np.append(False, moments.thread[1:] == moments.thread[:-1])[: node.size]
    previous = np.where(follows, node - 1, SOURCE)
    yield previous, node, np.zeros(node.size)
    rows = np.flatnonzero(moments.since != LONG_AGO)
    from_, after = positions(graph, changes, reached, "waits", moments.thread[rows], moments.since[rows])
    # A moment without a wait is itself the latest by then: it follows the previous one.
    is_self = from_ >= node[rows]
    gone = reached[rows] - np.where(follows, np.roll(reached, 1), 0.0)[rows]
    yield np.where(is_self, previous[rows], from_), node[rows], np.where(is_self, gone, after)
    yield from _of_loader(graph, changes, node)
    rows = np.flatnonzero((moments.work >= 0) & (moments.kind != QUEUE))
    one = moments.work[rows]
    took = (graph.work.end - graph.work.start)[one] * changes.work[one]
    at = moments.at[rows]
    tail = reached[rows] - _on_threads(graph, changes, moments.thread[rows], at - moments.lag[rows])
    free = np.isin(moments.kind[rows], changes.without_waiting)
    if changes.detached is not None:
        free |= changes.detached[one]
    yield one + 1, node[rows], np.where(free, -np.inf, took + tail)
    rows = np.flatnonzero(moments.source >= 0)
    from_, after = positions(graph, changes, reached, "handoffs", moments.source[rows], moments.at[rows])
    yield from_, node[rows], after


def _of_queue(graph: Graph, changes: Changes) -> Edges:
    """When the launch queue has room: once work begins."""
    moments = graph.moments
    rows = np.flatnonzero((moments.work >= 0) & (moments.kind == QUEUE))
    room = moments.lag[rows] + (-np.inf if QUEUE in changes.without_waiting else 0.0)
    return moments.work[rows] + 1, rows + 1 + graph.work.start.size, room.astype(np.float64)


def _of_loader(graph: Graph, changes: Changes, node: Ints) -> Iterator[Edges]:
    """When batches are ready. Workers began the first ones before the recording, at the time that their pace gives."""
    moments = graph.moments
    is_batch = moments.kind == LOADER
    rows = np.flatnonzero(is_batch & (moments.producer >= 0))
    gone = 0.0 if changes.loader else -np.inf
    yield node[moments.producer[rows]], node[rows], (moments.lag[rows] * changes.loader + gone).astype(np.float64)
    rows = np.flatnonzero(is_batch & (moments.producer < 0) & (moments.at > moments.since))
    began = moments.at[rows] - moments.lag[rows] - graph.origin
    ready = (began + moments.lag[rows] * changes.loader + gone).astype(np.float64)
    yield np.full(rows.size, SOURCE), node[rows], ready


def _usual(graph: Graph, wait: int, gap: Ints) -> float:
    """The lag of a kind that dependencies get which held nothing up, in ns."""
    known = (wait, graph.spare)
    if known not in graph.usual:
        gaps = gap[(graph.held.wait == wait) & ((gap > 0) | (wait == KERNEL_WAIT))]
        graph.usual[known] = float(np.quantile(gaps, graph.spare)) if gaps.size else 0.0
    return graph.usual[known]
