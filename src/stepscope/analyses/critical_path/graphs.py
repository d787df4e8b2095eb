"""What launches become as graphs: which host time one call replaces, and what that call costs."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import MEMCPY
from stepscope.analyses.common.span_lookup import in_rows
from stepscope.analyses.critical_path.longest_path import nowhere, spans_like, where_innermost
from stepscope.analyses.critical_path.replay import Program
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads
from stepscope.analyses.critical_path.work import FIRST_USE_NS, FIRST_USE_RATIO, Work
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Bools, Intervals, Ints, difference, own_lengths, union

#: From the call that launches a graph to its first work it takes some 20 µs (10 to 80 on RTX 3080, V100 and T4), and
#: then 0.8 to 3.1 µs for each piece of work until the call returns.
GRAPH_BEGINS_NS, GRAPH_NODE_NS = 20_000, 1_500


def in_graphs(work: Work) -> Bools:
    """Which pieces of work graphs hold: all that calls queue but copies."""
    result: Bools = (work.call >= 0) & (work.sort != MEMCPY)
    return result


def captured_times(program: Program) -> tuple[list[Intervals], list[Intervals], list[Intervals]]:
    """The host time that launches of graphs replace, 1 ns for each such launch, and 1 ns for each piece of its work.

    What a step launches between two waits becomes one call. Fetching batches, copies, and synchronising calls stay, and
    so does what the host does before and after. From the outermost span around the first call that queues a kernel to
    the end of that around the last one no thread needs time but for the call of the graph, which gives the device all
    work and then takes time for each piece of it. The program is warmed up before, so what operators take for their
    first use goes too.
    """
    spans, threads, work, waited = program.spans, program.threads, program.work, program.waited
    loads = list(spans_like(spans, threads, lambda _: True, ("dataloader",)))
    copies = np.flatnonzero((work.sort == MEMCPY) & (work.call >= 0))
    parts = [(waited.start, waited.end), (work.called[copies], work.returned[copies]), *loads]
    stays = union(*(np.concatenate(times) for times in zip(*parts, strict=True)))
    rows = np.flatnonzero(in_graphs(work) & (program.windows.queued >= 0))
    rows = rows[np.argsort(work.called[rows], kind="stable")]
    since = np.append(LONG_AGO, stays[1])[np.searchsorted(stays[1], work.called[rows], side="right")]
    region = np.stack((program.windows.queued[rows], since), axis=1)
    first = np.flatnonzero(np.append(True, (region[1:] != region[:-1]).any(axis=1))[: rows.size])
    last = np.append(first[1:], rows.size)[: first.size] - 1
    after = np.maximum(since, program.windows.begin[program.windows.queued[rows]])
    begin = threads.start[_outermost(threads, work.call[rows[first]], after[first])]
    end = threads.end[_outermost(threads, work.call[rows[last]], after[last])]
    first_uses = where_innermost(threads, _is_first_use(spans, threads))
    captured = [
        difference(union(np.append(begin, loading[0]), np.append(end, loading[1])), stays) for loading in first_uses
    ]
    calls, nodes = nowhere(threads), nowhere(threads)
    for thread in distinct_values(work.thread[rows]):
        one, other = (np.flatnonzero(work.thread[rows[at]] == thread) for at in (first, last))
        calls[thread] = union(begin[one], begin[one] + 1)
        nodes[thread] = union(end[other], (end + last - first + 1)[other])
    return captured, calls, nodes


def _outermost(threads: Threads, rows: Ints, after: Ints) -> Ints:
    """The outermost span around each of these spans that begins after that, as an index of those of threads."""
    at = np.searchsorted(threads.row, rows)
    while True:
        parent = threads.parent[at]
        up = (parent >= 0) & (threads.start[parent] > after)
        if not up.any():
            return at
        at = np.where(up, parent, at)


def _is_first_use(spans: pl.DataFrame, threads: Threads) -> Bools:
    """Which spans of the threads are operators that prepare something which later ones of their name find there."""
    result = np.zeros(threads.row.size, np.bool_)
    operators = np.flatnonzero((in_rows(spans["category"], threads.row) == "operator").to_numpy())
    if not operators.size:
        return result
    operators = operators[np.argsort(threads.start[operators], kind="stable")]
    own = own_lengths(threads.start, threads.end, threads.parent)[operators]
    is_long = own > max(FIRST_USE_NS, FIRST_USE_RATIO * int(np.median(own)))
    is_first = in_rows(spans["name"], threads.row[operators]).is_first_distinct().to_numpy()
    result[operators[is_long & is_first]] = True
    return result
