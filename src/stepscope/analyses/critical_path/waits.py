"""What host threads wait for: the device in synchronising calls and copies, each other in handoffs, and limits.

Limits say how far a thread may get ahead: a launch queue holds so many calls, a data loader makes batches at a pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.device_work import MEMCPY
from stepscope.analyses.common.span_lookup import in_rows, of_spans
from stepscope.analyses.critical_path.events import awaited_by_events
from stepscope.analyses.critical_path.threads import (
    FAR_OFF,
    LONG_AGO,
    LONG_GAP_NS,
    Threads,
    last_ended,
    latest,
)
from stepscope.analyses.critical_path.work import Work, calls_like, rows_of
from stepscope.core.arrays import distinct_values
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import Bools, Intervals, Ints, union
from stepscope.core.names import SYNC_OPERATORS, is_sync_call, map_names
from stepscope.core.table import filtered, integers

_STREAM_SYNC = "stream sync"
#: `until` is when the thread became active again, `busy` when the source was last active.
_HANDOFF = ("thread", "source", "at", "since", "until", "busy")


class Waits(msgspec.Struct, frozen=True):
    """Calls that wait for device work, or would if any were left; times in ns."""

    row: Ints  # -1 if the call was not recorded
    thread: Ints
    start: Ints
    end: Ints
    work: Ints  # the work whose end it waited for; -1 if all was done
    queued: Ints  # if all was done: the work that its thread had queued last; -1 if none
    is_copy: Bools  # whether it is the call of a blocking copy
    is_inferred: Bools  # whether the recorder notes no such call, and something else stands for it


def waits(spans: pl.DataFrame, tracks: pl.DataFrame, threads: Threads, work: Work, event_waits: pl.DataFrame) -> Waits:
    """Every synchronising call, and every call that queued a copy and was open when the copy ended.

    A call that waits for an event waits for the work that was queued last before the event was recorded. Any other
    synchronising call waited for the work that ended last while it was open, out of all that its process had queued
    before, or on its stream only if the recorder names the stream. Where the recorder notes no such call, operators
    that need a value of the device stand for them, and without any the silences of a thread that end when the device
    has just run dry.
    """
    rows = calls_like(spans, is_sync_call)
    is_noted = rows.size > 0
    rows = rows if is_noted or not work.row.size else _sync_operators(spans, threads)
    lanes = in_rows(spans["track_id"], rows).cast(pl.Int64).to_numpy()
    on_thread = threads.codes(lanes) >= 0
    rows, lanes = rows[on_thread], lanes[on_thread]
    start, end = _times(spans, rows)
    thread = threads.codes(lanes)
    awaited = _awaited(spans, tracks, threads, work, rows)
    queued = np.where(awaited < 0, _queued(work, thread, start, end), -1)
    of_event = awaited_by_events(spans, tracks, work, event_waits, rows)
    ended = np.append(work.end, (LONG_AGO, LONG_AGO))[of_event]
    is_known = (of_event != -1) & (ended <= end)
    awaited = np.where(is_known, np.where(ended > start, of_event, -1), awaited)
    queued = np.where(is_known, np.where(ended > start, -1, of_event), queued)
    synced = Waits(
        rows,
        thread,
        start,
        end,
        np.maximum(awaited, -1),
        np.maximum(queued, -1),
        rows < 0,
        np.full(rows.size, not is_noted),
    )
    parts = [synced, _copies(work)]
    if not is_noted and not rows.size and work.row.size:
        parts.append(_unrecorded(tracks, threads, work))
    return Waits(*(np.concatenate([getattr(part, name) for part in parts]) for name in Waits.__struct_fields__))


def _unrecorded(tracks: pl.DataFrame, threads: Threads, work: Work) -> Waits:
    """What shows that a thread waited, in a recording without any call that waits.

    Between two calls of a thread nothing is known: it may have computed, or waited. That it goes on just when
    everything queued has ended, after a long time in which nothing was recorded, is a wait; computing ends at any time.
    """
    thread, start, end, awaited = _dry_ends(threads, _processes(tracks, threads), work)
    none = np.full(thread.size, -1, np.int64)
    return Waits(none, thread, start, end, awaited, none, none >= 0, none < 0)


#: A thread goes on so soon after the last work, and within this part of its silence: by chance few would.
_SOON_NS, _SOON_RATIO = 1_000_000, 0.02


def _dry_ends(threads: Threads, process: Ints, work: Work) -> tuple[Ints, Ints, Ints, Ints]:
    """Thread, start, end and awaited work of the stretches in which a thread waited, and nothing was recorded of it.

    `process` is the number of each thread's process. A stretch counts if all work that the process is known to have
    queued before has ended in it, the last of it shortly before its end. Units: ns.
    """
    thread, start, end = _silences(threads)
    lasting = np.flatnonzero((work.end > work.start) & (work.thread >= 0))
    owner, called, ended = process[work.thread[lasting]], work.called[lasting], work.end[lasting]
    place = last_ended((owner, ended, called), (process[thread], start, end, start))
    after = end - np.append(ended, 0)[place]
    is_wait = (place >= 0) & (after <= np.minimum(_SOON_NS, _SOON_RATIO * (end - start)))
    is_wait &= _all_done(owner, called, ended, process[thread], start) <= end
    return thread[is_wait], start[is_wait], end[is_wait], lasting[place[is_wait]]


def _silences(threads: Threads) -> tuple[Ints, Ints, Ints]:
    """Thread, start and end of the long stretches between two spans of a thread in which it has none."""
    lanes, begins, stops = ([np.empty(0, np.int64)] for _ in range(3))
    for thread in range(threads.track.size):
        mine = threads.of(thread)
        starts, ends = union(threads.start[mine], threads.end[mine])
        is_long = starts[1:] - ends[:-1] >= LONG_GAP_NS
        lanes.append(np.full(int(is_long.sum()), thread, np.int64))
        begins.append(ends[:-1][is_long])
        stops.append(starts[1:][is_long])
    return np.concatenate(lanes), np.concatenate(begins), np.concatenate(stops)


def _all_done(owner: Ints, called: Ints, ended: Ints, process: Ints, at: Ints) -> Ints:
    """When all work that each process had queued before each time has ended."""
    order = np.lexsort((called, owner))
    reach = np.empty(order.size, np.int64)
    heads = np.flatnonzero(np.diff(owner[order], prepend=-1))
    for mine in np.split(np.arange(order.size), heads[1:]) if order.size else ():
        reach[mine] = np.maximum.accumulate(ended[order[mine]])
    last = latest(owner[order], called[order], process, at)
    return np.append(reach, np.iinfo(np.int64).min)[last]


def _sync_operators(spans: pl.DataFrame, threads: Threads) -> Ints:
    """Rows of the operators that wait for the device; of nested ones the outermost."""
    waiting = (in_rows(spans["category"], threads.row) == "operator").to_numpy()
    names = map_names(in_rows(spans["name"], threads.row), SYNC_OPERATORS.__contains__, pl.Boolean())
    mine = np.flatnonzero(waiting & names.to_numpy())
    return threads.row[mine[~np.isin(threads.parent[mine], mine)]]


def _times(spans: pl.DataFrame, rows: Ints) -> tuple[Ints, Ints]:
    start = spans["ts_ns"].to_numpy()[rows]
    return start, start + spans["dur_ns"].to_numpy()[rows]


def _awaited(spans: pl.DataFrame, tracks: pl.DataFrame, threads: Threads, work: Work, rows: Ints) -> Ints:
    """The work whose end each synchronising call waited for; -1 if none."""
    start, end = _times(spans, rows)
    process = _processes(tracks, threads)
    lanes = threads.codes(in_rows(spans["track_id"], rows).cast(pl.Int64).to_numpy())
    stream = _streams(spans, rows)
    lasting = np.flatnonzero(work.end > work.start)
    # The process of work without a known call is only known if there is a single process.
    nobody = 0 if process.size and process.max() == 0 else -1
    owner = np.where(work.thread >= 0, np.append(process, nobody)[work.thread], nobody)[lasting]
    # One search serves both: groups from 0 up are streams, those from -2 down are processes.
    groups = np.concatenate((work.track[lasting], -2 - owner))
    wanted = np.where(stream >= 0, stream, -2 - process[lanes])
    twice = np.tile(lasting, 2)
    at = last_ended((groups, work.end[twice], work.called[twice]), (wanted, start, end, start))
    return np.append(twice, -1)[at]


def _queued(work: Work, thread: Ints, start: Ints, end: Ints) -> Ints:
    """The work that each thread had queued last before `start`, if it ended by `end`; else -1."""
    order = np.lexsort((work.called, work.thread))
    last = latest(work.thread[order], work.called[order], thread, start)
    work_queued = np.append(order, -1)[last]
    return np.where(np.append(work.end, 0)[work_queued] <= end, work_queued, -1)


def _processes(tracks: pl.DataFrame, threads: Threads) -> Ints:
    """Number of the process of each thread, from 0."""
    process = {track: (host, pid) for track, host, pid in tracks[["track_id", "host", "pid"]].iter_rows()}
    mine = [process.get(track) for track in threads.track.tolist()]
    numbers = {one: number for number, one in enumerate(dict.fromkeys(mine))}
    return np.array([numbers[one] for one in mine], np.int64)


def _streams(spans: pl.DataFrame, rows: Ints) -> Ints:
    """The track of the stream that each call waits for, if recorded; else -1."""
    is_sync = spans["category"] == "sync"
    if not is_sync.any():
        return np.full(rows.size, -1, np.int64)
    syncs = spans[["launch_id", "track_id", "name"]].filter(is_sync).drop_nulls()
    syncs = syncs.filter(pl.col("name").cast(pl.String).str.to_lowercase().str.contains(_STREAM_SYNC))
    calls = rows_of(spans, syncs["launch_id"])
    order = np.argsort(calls, kind="stable")
    at = np.searchsorted(calls[order], rows)
    tracks = np.append(syncs["track_id"].cast(pl.Int64).to_numpy()[order], -1)
    return np.where(np.append(calls[order], -1)[at] == rows, tracks[at], -1)


def _copies(work: Work) -> Waits:
    """Calls that queued copies and were open when the last of them ended."""
    mine = np.flatnonzero((work.sort == MEMCPY) & (work.call >= 0) & (work.end > work.start))
    mine = mine[(work.end[mine] > work.called[mine]) & (work.end[mine] <= work.returned[mine])]
    mine = mine[np.lexsort((work.end[mine], work.call[mine]))]
    last = mine[np.flatnonzero(np.diff(work.call[mine], append=-1))]
    none = np.full(last.size, -1, np.int64)
    return Waits(
        work.call[last], work.thread[last], work.called[last], work.returned[last], last, none, none < 0, none > 0
    )


class Handoffs(msgspec.Struct, frozen=True):
    """Moments at which a thread went on because another thread had finished something; times in ns."""

    thread: Ints
    at: Ints
    source: Ints
    since: Ints  # when the thread itself was last active before that; LONG_AGO if never


def handoffs(spans: pl.DataFrame, ops: pl.DataFrame, arrows: pl.DataFrame, threads: Threads) -> Handoffs:
    """When threads waited for each other, sorted by thread and time.

    Autograd: a caller that is quiet while its helper works waits for the end of that work. The caller starts the helper
    if it was active since the helper's last activity and is quiet when the helper begins; the time until then is the
    caller's. Collectives on the host: a caller waits for a collective that ends when the caller has been quiet for
    long, and a collective begins with the call for it.
    """
    parts = [pl.DataFrame(schema=dict.fromkeys(_HANDOFF, pl.Int64))]
    if threads.track.size > 1:
        linked = _linked(spans, ops, arrows, threads)
        parts += _of_autograd(threads, _with_stepping(spans, threads, linked))
        parts += _of_replicas(spans, threads)
        parts += _of_collectives(spans, threads)
    frame = pl.concat(parts)
    if not frame.is_empty():
        # Of several candidates, the source that was active last.
        frame = frame.sort("thread", "until", "busy", "source").unique(["thread", "until"], keep="last")
        frame = frame.sort("thread", "at")
    return Handoffs(*(frame[c].to_numpy() for c in ("thread", "at", "source", "since")))


def _of_autograd(threads: Threads, pairs: Iterable[tuple[int, int]]) -> Iterator[pl.DataFrame]:
    for caller, helper in pairs:
        one, other = threads.active[caller], threads.active[helper]
        yield _gaps_of(caller, helper, one, other, is_caller=True)
        yield _gaps_of(helper, caller, other, one, is_caller=False)


_NODE = "autograd::engine::"


def _with_stepping(spans: pl.DataFrame, threads: Threads, linked: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs, and the thread that marks steps with each of autograd's threads, as replicas run forward elsewhere."""
    rows = np.flatnonzero((in_rows(spans["category"], threads.row) == "step").to_numpy())
    if not rows.size:
        return list(linked)
    main = int(np.searchsorted(threads.cuts, rows[0], side="right")) - 1
    names = in_rows(spans["name"], threads.row)
    nodes = np.flatnonzero(map_names(names, lambda name: name.startswith(_NODE), pl.Boolean()).to_numpy())
    helpers = {int(one) for one in distinct_values(np.searchsorted(threads.cuts, nodes, side="right") - 1)} - {main}
    return [*linked, *((main, helper) for helper in sorted(helpers) if (main, helper) not in linked)]


_REPLICAS = "DataParallel.forward"


def _of_replicas(spans: pl.DataFrame, threads: Threads) -> Iterator[pl.DataFrame]:
    """Handoffs of torch.nn.DataParallel: its operator starts a thread for each replica, and waits for all of them."""
    names = in_rows(spans["name"], threads.row)
    calls = np.flatnonzero((names == _REPLICAS).to_numpy())
    for caller in distinct_values(np.searchsorted(threads.cuts, calls, side="right") - 1):
        mine = calls[(calls >= threads.cuts[caller]) & (calls < threads.cuts[caller + 1])]
        inner = np.delete(np.arange(threads.cuts[caller], threads.cuts[caller + 1]), mine - threads.cuts[caller])
        ends = np.sort(threads.end[inner])
        for helper in np.setdiff1d(np.arange(threads.track.size), caller):
            starts, stops = threads.active[helper]
            first = np.searchsorted(starts, threads.start[mine])
            last = np.searchsorted(stops, threads.end[mine], side="right") - 1
            ran = first <= last
            begun, done = starts[first[ran]], stops[last[ran]]
            begin = threads.start[mine][ran]
            before = np.append(LONG_AGO, stops)[first[ran]]
            since = np.maximum(begin, np.append(LONG_AGO, ends)[np.searchsorted(ends, begun, side="right")])
            every = np.ones(begun.size, np.bool_)
            yield _frame(int(helper), int(caller), (begun, before, begun, begin), every)
            yield _frame(int(caller), int(helper), (done, since, threads.end[mine][ran], done), every)


def _gaps_of(thread: int, source: int, own: Intervals, other: Intervals, *, is_caller: bool) -> pl.DataFrame:
    """Handoffs from `source` to `thread`."""
    since, until = np.append(LONG_AGO, own[1]), np.append(own[0], FAR_OFF)
    last = np.searchsorted(other[1], until, side="right") - 1
    busy = np.append(other[1], LONG_AGO)[last]
    if is_caller:
        is_handoff = np.append(other[0], LONG_AGO)[last] >= since
    else:
        is_handoff = (until < FAR_OFF) & (np.append(other[0], FAR_OFF)[last + 1] >= np.append(own[1], FAR_OFF))
    times = (busy if is_caller else until, since, until, busy)
    return _frame(thread, source, times, is_handoff & (busy > since))


def _frame(thread: int, source: int, times: tuple[Ints, Ints, Ints, Ints], mask: Bools) -> pl.DataFrame:
    lanes = (np.full(mask.size, lane, np.int64) for lane in (thread, source))
    return pl.DataFrame(dict(zip(_HANDOFF, (*lanes, *times), strict=True))).filter(mask)


def _of_collectives(spans: pl.DataFrame, threads: Threads) -> Iterator[pl.DataFrame]:
    """Handoffs between threads that call collectives and threads that run them."""
    rows = threads.row
    there = threads.collectives
    operators = np.flatnonzero((in_rows(spans["category"], rows) == "operator").to_numpy())
    names = in_rows(spans["name"], rows[operators])
    calls = np.setdiff1d(operators[talks_to_ranks(names).to_numpy()], there)
    of_thread = np.repeat(np.arange(threads.track.size), np.diff(threads.cuts))
    for caller in distinct_values(of_thread[calls]):
        asked = threads.start[calls[of_thread[calls] == caller]]
        for helper in np.setdiff1d(of_thread[there], caller):
            mine = there[of_thread[there] == helper]
            ranges = union(threads.start[mine], threads.end[mine])
            yield _awaited_helper(int(caller), int(helper), threads.active[caller], ranges)
            yield _asked(int(helper), int(caller), threads.active[helper], asked)


def _awaited_helper(caller: int, helper: int, own: Intervals, ranges: Intervals) -> pl.DataFrame:
    since, until = own[1], np.append(own[0][1:], FAR_OFF)
    ended = np.append(ranges[1], LONG_AGO)[np.searchsorted(ranges[1], until, side="right") - 1]
    is_handoff = ended >= since + LONG_GAP_NS
    return _frame(caller, helper, (ended, since, until, ended), is_handoff)


def _asked(helper: int, caller: int, own: Intervals, asked: Ints) -> pl.DataFrame:
    since = np.append(LONG_AGO, own[1])[:-1]
    last = np.append(asked, LONG_AGO)[np.searchsorted(asked, own[0], side="right") - 1]
    return _frame(helper, caller, (own[0], since, own[0], last), last > since)


def _linked(spans: pl.DataFrame, ops: pl.DataFrame, arrows: pl.DataFrame, threads: Threads) -> list[tuple[int, int]]:
    """Pairs of threads: the second runs the backward pass of the first.

    They share numbers of autograd nodes, or the trace has arrows between them. If in both directions, the more frequent
    one counts.
    """
    ends = pl.concat((arrows[["from_track_id", "to_track_id"]], _same_nodes(spans, ops)))
    ends = ends.group_by("from_track_id", "to_track_id").len().sort("len", "from_track_id", "to_track_id")
    codes = [threads.codes(integers(ends[c])).tolist() for c in ends.columns[:2]]
    linked = [pair for pair in zip(*codes, strict=True) if pair[0] != pair[1] and min(pair) >= 0]
    return list({frozenset(pair): pair for pair in linked}.values())


def _same_nodes(spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Pairs of tracks with a forward and a backward operator of the same sequence number."""
    numbered = ops[["span_id", "sequence", "forward_thread"]].drop_nulls("sequence")
    track = of_spans(spans, numbered["span_id"], "track_id").rename("track_id")
    numbered = numbered.select("sequence", track, backward=pl.col("forward_thread").is_not_null()).unique()
    forward, backward = (filtered(numbered, mask) for mask in (~numbered["backward"], numbered["backward"]))
    pairs = forward.join(backward, on="sequence")
    return pairs.select(from_track_id="track_id", to_track_id="track_id_right")


class Limits(msgspec.Struct, frozen=True):
    """Moments at which a thread cannot be too far ahead of something else; times in ns."""

    thread: Ints
    at: Ints
    since: Ints  # when the thread had done its own part
    work: Ints  # work that has to start first; -1 if none
    producer: Ints  # an earlier one of these; -1 if none
    after: Ints  # how long after the start of the work, or after the producer

    def and_also(self, other: Limits) -> Limits:
        """These and others, in which references to producers are kept."""
        shifted = replace(other, producer=np.where(other.producer >= 0, other.producer + self.at.size, -1))
        return Limits(*(np.concatenate((getattr(self, n), getattr(shifted, n))) for n in Limits.__struct_fields__))


def no_limits() -> Limits:
    """None at all."""
    return Limits(*(np.empty(0, np.int64) for _ in Limits.__struct_fields__))


#: A call is held up by a full queue if it takes this many times as long as the shortest, and that much longer.
_BLOCKED, _BLOCKED_NS = 3, 5_000
#: At least so many calls are held up, and this share of those that take so long.
LEAST_HELD, _AT_PLATEAU = 3, 0.7
#: Depths of a full queue differ by no more than this in relation to it, and by no more than _DEPTHS if that is less.
_SAME_DEPTH, _DEPTHS = 0.02, 1


def queue_limits(work: Work) -> Limits:
    """The calls that a full launch queue holds up, or might: all calls of each device whose queue was ever full.

    A queue was full if the largest number of pieces of work that were queued and had not begun, Q, occurs again and
    again, and the calls at whose end it occurs take much longer than others, as they end when work begins. No call
    then ends before the work that was queued Q calls earlier begins. If devices have no such number, streams may.
    """
    rows = np.flatnonzero(work.call >= 0)
    rows = rows[np.lexsort((work.start[rows], work.called[rows]))]
    rows = rows[np.sort(np.unique(work.call[rows], return_index=True)[1])]  # the first work of each call
    for lanes in (work.device, work.track):
        limits = no_limits()
        for lane in distinct_values(lanes[rows]):
            mine = rows[lanes[rows] == lane]
            depth = _depth_when_full(work, mine)
            limits = limits if depth is None else limits.and_also(_queued_calls(work, mine, depth))
        if limits.at.size:
            return limits
    return no_limits()


def _depth_when_full(work: Work, rows: Ints) -> int | None:
    """How many pieces of work the queue of these, in the order of their calls, holds; None if it never was full."""
    if rows.size <= LEAST_HELD:
        return None
    took = work.returned[rows] - work.called[rows]
    begun = np.searchsorted(np.sort(work.start[rows]), work.returned[rows], side="right")
    depths = np.arange(rows.size) + 1 - begun
    depth = int(depths.max())
    begins = work.start[rows[np.maximum(np.arange(rows.size) - depth, 0)]]
    is_full = (depths >= depth - max(_DEPTHS, _SAME_DEPTH * depth)) & (begins >= work.called[rows])
    is_long = (
        (took > _BLOCKED * took.min()) & (took > took.min() + _BLOCKED_NS) & (work.end[rows] > work.returned[rows])
    )
    held = is_long & is_full & (begins <= work.returned[rows])
    is_queue = depth > 1 and held.sum() >= max(LEAST_HELD, _AT_PLATEAU * is_long.sum())
    return depth if is_queue else None


def _queued_calls(work: Work, rows: Ints, depth: int) -> Limits:
    """The limits of calls whose queue holds so many pieces of work."""
    later, earlier = rows[depth:], rows[:-depth]
    holds = work.start[earlier] <= work.returned[later]
    later, earlier = later[holds], earlier[holds]
    begins, ends = work.start[earlier], work.returned[later]
    took = work.returned[rows] - work.called[rows]
    might = work.start[earlier] > work.called[later] + _BLOCKED * int(took.min())
    rest = np.append(took[:depth], (ends - work.called[later])[~might])
    own = np.minimum(work.called[later] + int(np.median(rest)), ends)
    is_blocked = begins > own
    after = usual(ends - begins, is_blocked)
    none = np.full(later.size, -1, np.int64)
    return Limits(
        work.thread[later],
        np.where(is_blocked, begins, ends),
        np.where(is_blocked, own, ends),
        earlier,
        none,
        np.where(is_blocked, 0, after),
    )


def usual(lengths: Ints, observed: Bools) -> Ints:
    """The median of the lengths that were observed, or a length itself if that is less; 0 if none was."""
    return np.minimum(int(np.median(lengths[observed])) if observed.any() else 0, lengths)
