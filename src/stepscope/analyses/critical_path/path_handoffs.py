"""When one thread of the host waits for another: for a backward pass, or for an exchange of data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.device_work import of_spans
from stepscope.analyses.critical_path.path_order import FAR_OFF, LONG_AGO, LONG_GAP_NS
from stepscope.analyses.critical_path.path_threads import Threads, exchanges
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import Intervals, union

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Handoffs:
    """Moments at which a thread went on because another thread let it; times in ns."""

    thread: Ints
    at: Ints
    source: Ints
    since: Ints  # when the thread itself had last been active before that, LONG_AGO if never


#: `until` is when the thread was active again, `busy` until when the source had been.
_HANDOFF = ("thread", "source", "at", "since", "until", "busy")


def handoffs(spans: pl.DataFrame, ops: pl.DataFrame, arrows: pl.DataFrame, threads: Threads) -> Handoffs:
    """When threads waited for each other, in order of thread and time.

    A caller that is quiet while its helper begins and ends work waits for the last of it, and goes on as that ends. A
    helper that begins while its caller, active since the helper was so last, has fallen quiet was started by it: until
    then the time is the caller's. So it is with the threads of autograd. Of threads that exchange data, a caller waits
    for an exchange that ends while it has been quiet for long, and an exchange begins with the call for it.
    """
    parts = [pl.DataFrame(schema=dict.fromkeys(_HANDOFF, pl.Int64))]
    if threads.track.size > 1:
        parts += _of_autograd(threads, _linked(spans, ops, arrows, threads))
        parts += _of_exchanges(spans, threads)
    # Of several that it may have waited for, the one that was active last.
    frame = pl.concat(parts).sort("thread", "until", "busy", "source").unique(["thread", "until"], keep="last")
    return Handoffs(*(frame.sort("thread", "at")[c].to_numpy() for c in ("thread", "at", "source", "since")))


def _of_autograd(threads: Threads, pairs: Iterable[tuple[int, int]]) -> Iterator[pl.DataFrame]:
    for caller, helper in pairs:
        one, other = threads.active[caller], threads.active[helper]
        yield _gaps_of(caller, helper, one, other, is_caller=True)
        yield _gaps_of(helper, caller, other, one, is_caller=False)


def _gaps_of(thread: int, source: int, own: Intervals, other: Intervals, *, is_caller: bool) -> pl.DataFrame:
    """Handoffs to `thread`; `until` is when it was active again, `busy` until when the source had been."""
    since, until = np.append(LONG_AGO, own[1]), np.append(own[0], FAR_OFF)
    last = np.searchsorted(other[1], until, side="right") - 1
    busy = np.append(other[1], LONG_AGO)[last]
    if is_caller:
        found = np.append(other[0], LONG_AGO)[last] >= since
    else:
        found = (until < FAR_OFF) & (np.append(other[0], FAR_OFF)[last + 1] >= np.append(own[1], FAR_OFF))
    times = (busy if is_caller else until, since, until, busy)
    return _frame(thread, source, times, found & (busy > since))


def _frame(thread: int, source: int, times: tuple[Ints, Ints, Ints, Ints], found: NDArray[np.bool_]) -> pl.DataFrame:
    lanes = (np.full(found.size, lane, np.int64) for lane in (thread, source))
    return pl.DataFrame(dict(zip(_HANDOFF, (*lanes, *times), strict=True))).filter(found)


def _of_exchanges(spans: pl.DataFrame, threads: Threads) -> Iterator[pl.DataFrame]:
    """Handoffs between threads that call for an exchange of data and threads on which it happens."""
    rows = threads.row
    there = exchanges(spans, rows)
    operators = np.flatnonzero((spans["category"].gather(rows) == "operator").to_numpy())
    names = spans["name"].gather(rows[operators])
    calls = np.setdiff1d(operators[talks_to_ranks(names, "any").to_numpy()], there)
    of_thread = np.repeat(np.arange(threads.track.size), np.diff(threads.cuts))
    for caller in np.unique(of_thread[calls]):
        asked = threads.start[calls[of_thread[calls] == caller]]
        for helper in np.setdiff1d(of_thread[there], caller):
            mine = there[of_thread[there] == helper]
            ranges = union(threads.start[mine], threads.end[mine])
            yield _awaited(int(caller), int(helper), threads.active[caller], ranges)
            yield _asked(int(helper), int(caller), threads.active[helper], asked)


def _awaited(caller: int, helper: int, own: Intervals, ranges: Intervals) -> pl.DataFrame:
    since, until = own[1], np.append(own[0][1:], FAR_OFF)
    ended = np.append(ranges[1], LONG_AGO)[np.searchsorted(ranges[1], until, side="right") - 1]
    found = ended >= since + LONG_GAP_NS
    return _frame(caller, helper, (ended, since, until, ended), found)


def _asked(helper: int, caller: int, own: Intervals, asked: Ints) -> pl.DataFrame:
    since = np.append(LONG_AGO, own[1])[:-1]
    last = np.append(asked, LONG_AGO)[np.searchsorted(asked, own[0], side="right") - 1]
    return _frame(helper, caller, (own[0], since, own[0], last), last > since)


def _linked(spans: pl.DataFrame, ops: pl.DataFrame, arrows: pl.DataFrame, threads: Threads) -> list[tuple[int, int]]:
    """Pairs of threads of which the second does the backward pass of what the first did.

    They share numbers of autograd nodes, or the trace draws arrows between them; where both ways, the one more often.
    """
    ends = pl.concat((arrows.select("from_track_id", "to_track_id"), _same_nodes(spans, ops)))
    ends = ends.group_by("from_track_id", "to_track_id").len().sort("len", "from_track_id", "to_track_id")
    codes = [threads.codes(ends[c].cast(pl.Int64).fill_null(-1).to_numpy()).tolist() for c in ends.columns[:2]]
    found = [pair for pair in zip(*codes, strict=True) if pair[0] != pair[1] and min(pair) >= 0]
    return list({frozenset(pair): pair for pair in found}.values())


def _same_nodes(spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Tracks that hold a forward and a backward operator of one number."""
    numbered = ops.select("span_id", "sequence", "forward_thread").drop_nulls("sequence")
    track = of_spans(spans, numbered["span_id"], "track_id").rename("track_id")
    numbered = numbered.select("sequence", track, backward=pl.col("forward_thread").is_not_null()).unique()
    pairs = numbered.filter(~pl.col("backward")).join(numbered.filter("backward"), on="sequence")
    return pairs.select(from_track_id="track_id", to_track_id="track_id_right")
