"""What waits for an event wait for: the work that a stream had been given when the event was recorded on it."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.critical_path.threads import LONG_AGO
from stepscope.analyses.critical_path.work import Work, calls_like, rows_of
from stepscope.core.arrays import distinct_values
from stepscope.core.intervals import Ints
from stepscope.core.patterns import regex

_WAIT_CALL = regex(r"StreamWaitEvent|QueueWaitNotifier|EnqueueEventsWait")
_RECORD_CALL, _SYNC_CALL = regex(r"EventRecord"), regex(r"EventSynchronize")
#: How many records of events there may be between the record that an unnamed synchronisation waits for and the call.
_MOST_LATER = 4
#: How many pairs of work are looked at for waits that name neither their stream nor the one that they wait for.
_MOST_PAIRS = 1_000_000


def crossings(spans: pl.DataFrame, tracks: pl.DataFrame, work: Work, event_waits: pl.DataFrame) -> tuple[Ints, Ints]:
    """Pairs of work: what a wait for an event made wait, and work of another stream that has to end first.

    If the recorder names the record of the event, it is the last work of that stream queued before the record. Else it
    is the last work of each other stream of the device queued before the wait. If it does not name the stream that
    waits, each may. What the recording contradicts, as it ended too late, is left out.
    """
    calls = calls_like(spans, lambda name: _WAIT_CALL.search(name) is not None)
    if not calls.size or not work.row.size:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    queue = _Queue(work)
    syncs = spans.filter(pl.col("category") == "sync").select("span_id", "launch_id", "track_id").drop_nulls()
    named = _recorded(spans, tracks, event_waits)
    syncs = syncs.filter(pl.Series(np.isin(rows_of(spans, syncs["launch_id"]), calls)))
    syncs = syncs.join(named, on="span_id", how="left", maintain_order="left")
    call, track = rows_of(spans, syncs["launch_id"]), syncs["track_id"].cast(pl.Int64).to_numpy()
    when = spans["ts_ns"].to_numpy()
    known = syncs["at_ns"].is_not_null().to_numpy()
    waiting = queue.next(track, when[call])
    stream, at = (syncs[c].fill_null(-1).to_numpy() for c in ("stream_track", "at_ns"))
    pairs = [(waiting[known], queue.last(stream[known], at[known]))]
    loose = np.setdiff1d(calls, call)
    streams = _busiest(work, loose.size + int((~known).sum()))
    any_waits = np.append(waiting[~known], [queue.next(np.full(loose.size, one), when[loose]) for one in streams])
    before = np.append(when[call[~known]], np.tile(when[loose], streams.size))
    any_waits, before = any_waits.astype(np.int64), before.astype(np.int64)
    device = np.append(work.device, -1)
    pairs += (
        [(any_waits, queue.last(np.full(any_waits.size, one), before)) for one in streams] if any_waits.size else []
    )
    later, earlier = (np.concatenate(column) for column in zip(*pairs, strict=True))
    real = (later >= 0) & (earlier >= 0)
    later, earlier = later[real], earlier[real]
    real = (work.track[later] != work.track[earlier]) & (device[later] == device[earlier])
    real &= work.end[earlier] <= work.start[later]
    both = np.unique(np.stack((later[real], earlier[real])), axis=1)
    return both[0], both[1]


def _recorded(spans: pl.DataFrame, tracks: pl.DataFrame, event_waits: pl.DataFrame) -> pl.DataFrame:
    """Of each wait for an event: the track of the stream that it waits for, and when the event was recorded there."""
    rows = event_waits.drop_nulls().join(spans.select("span_id", "track_id"), on="span_id")
    of_device = tracks.select("track_id", "device_id")
    streams = tracks.filter(pl.col("kind") == "stream").select("device_id", "stream", stream_track="track_id")
    rows = rows.join(of_device, on="track_id").join(streams, on=["device_id", "stream"], nulls_equal=True)
    call = rows_of(spans, rows["recording_id"])
    at = np.append(spans["ts_ns"].to_numpy(), 0)[call]
    rows = rows.select("span_id", pl.col("stream_track").cast(pl.Int64), at_ns=pl.Series(at, dtype=pl.Int64))
    return rows.filter(pl.Series(call >= 0)).unique("span_id", keep="first", maintain_order=True)


def _busiest(work: Work, n_waits: int) -> Ints:
    """The streams with most work, as many as may be paired for so many waits that name none."""
    streams, n_pieces = np.unique(work.track, return_counts=True)
    most = max(int((_MOST_PAIRS / max(n_waits, 1)) ** 0.5), 2)
    return np.sort(streams[np.argsort(-n_pieces, kind="stable")[:most]])


class _Queue:
    """The work of each stream in the order in which it was queued."""

    def __init__(self, work: Work) -> None:
        in_order = (work.called[1:] >= work.called[:-1]) | (work.track[1:] != work.track[:-1])
        rows = np.arange(work.row.size)
        self._order = rows if in_order.all() else np.lexsort((rows, work.called, work.track))
        self._track, self._called = work.track[self._order], work.called[self._order]

    def last(self, track: Ints, at: Ints) -> Ints:
        """The last work that each stream was given by then; -1 if none."""
        place, low, _ = self._places(track, at)
        return np.where(place > low, np.append(self._order, -1)[place - 1], -1)

    def next(self, track: Ints, at: Ints) -> Ints:
        """The first work that each stream is given after that; -1 if none."""
        place, _, high = self._places(track, at)
        return np.where(place < high, np.append(self._order, -1)[place], -1)

    def _places(self, track: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
        """How many pieces come before each time, counted from the first of all; where each stream begins and ends."""
        low, high = (np.searchsorted(self._track, track, side=side) for side in ("left", "right"))
        place = low.copy()
        for one in distinct_values(track):
            mine = np.flatnonzero(track == one)
            if mine.size:
                first, end = int(low[mine[0]]), int(high[mine[0]])
                place[mine] = first + np.searchsorted(self._called[first:end], at[mine], side="right")
        return place, low, high


def awaited_by_events(
    spans: pl.DataFrame, tracks: pl.DataFrame, work: Work, event_waits: pl.DataFrame, rows: Ints
) -> Ints:
    """For each of these calls that waits for an event the work that was queued last before it was recorded.

    -1: the call waits for no event, or it is not known for which; -2: for one that nothing was queued before.

    If the recorder does not name the record, all such calls of a thread are taken to wait for the n-th last record
    before them, with the least n that the recording does not contradict: the work has ended when the call ends.
    """
    awaited = np.full(rows.size, -1, np.int64)
    waits = np.flatnonzero(np.isin(rows, calls_like(spans, lambda name: _SYNC_CALL.search(name) is not None)))
    if not waits.size or not work.row.size:
        return awaited
    queue = _Queue(work)
    syncs = spans.filter(pl.col("category") == "sync").select("span_id", "launch_id").drop_nulls()
    syncs = syncs.join(_recorded(spans, tracks, event_waits), on="span_id", maintain_order="left")
    call, one = np.unique(rows_of(spans, syncs["launch_id"]), return_index=True)
    named = queue.last(syncs["stream_track"].to_numpy()[one], syncs["at_ns"].to_numpy()[one])
    place = np.minimum(np.searchsorted(call, rows[waits]), max(call.size - 1, 0))
    is_named = call[place] == rows[waits] if call.size else np.zeros(waits.size, np.bool_)
    awaited[waits[is_named]] = np.where(named >= 0, named, -2)[place[is_named]] if call.size else -1
    rest = waits[~is_named]
    start = spans["ts_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    lane = spans["track_id"].cast(pl.Int64).to_numpy()
    records = calls_like(spans, lambda name: _RECORD_CALL.search(name) is not None)
    records = records[np.lexsort((start[records], lane[records]))]
    by_call = np.argsort(work.called, kind="stable")
    for thread in distinct_values(lane[rows[rest]]):
        mine = rest[lane[rows[rest]] == thread]
        recorded = start[records[lane[records] == thread]]
        n_before = np.searchsorted(recorded, start[rows[mine]])
        for n_later in range(1, _MOST_LATER + 1):
            at = np.append(recorded, LONG_AGO)[np.maximum(n_before - n_later, -1)]
            at = np.where(n_before >= n_later, at, LONG_AGO)
            last = np.append(by_call, -1)[np.searchsorted(work.called[by_call], at, side="right") - 1]
            ended = np.append(work.end, LONG_AGO)[last]
            if recorded.size and (ended <= end[rows[mine]]).all():
                awaited[mine] = np.where(last >= 0, last, -2)
                break
    return awaited
