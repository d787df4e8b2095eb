"""Calls of the host that wait for the device: synchronising calls, and copies that return when they are done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.device_work import MEMCPY
from stepscope.analyses.critical_path.path_order import last_ended, latest
from stepscope.analyses.critical_path.path_threads import Threads
from stepscope.analyses.critical_path.path_work import Work, calls_like, rows_of
from stepscope.core.names import is_sync_call

Ints = NDArray[np.int64]

_STREAM_SYNC = "stream sync"


@dataclass(frozen=True, slots=True)
class Waits:
    """Calls that wait for device work, or would; times in ns."""

    row: Ints
    thread: Ints
    start: Ints
    end: Ints
    work: Ints  # the work whose end it waited for, -1 if it found all done
    queued: Ints  # then, the work that its thread had queued last, for which it might have waited; -1 if none


def waits(spans: pl.DataFrame, tracks: pl.DataFrame, threads: Threads, work: Work) -> Waits:
    """Every synchronising call, and every copy's call in which its copy ended.

    A synchronising call waited for the work that ended last while it was open, of all that its process had queued
    before; of its stream alone, where the recorder tells which that is.
    """
    rows = calls_like(spans, is_sync_call)
    lanes = spans["track_id"].gather(rows).cast(pl.Int64).to_numpy()
    on_thread = threads.codes(lanes) >= 0
    rows, lanes = rows[on_thread], lanes[on_thread]
    start, end = _times(spans, rows)
    thread = threads.codes(lanes)
    awaited = _awaited(spans, tracks, threads, work, rows)
    synced = Waits(rows, thread, start, end, awaited, np.where(awaited < 0, _queued(work, thread, start, end), -1))
    copied = _copies(work)
    pairs = ((getattr(synced, name), getattr(copied, name)) for name in Waits.__slots__)
    return Waits(*(np.concatenate(pair) for pair in pairs))


def _times(spans: pl.DataFrame, rows: Ints) -> tuple[Ints, Ints]:
    start = spans["ts_ns"].to_numpy()[rows]
    return start, start + spans["dur_ns"].to_numpy()[rows]


def _awaited(spans: pl.DataFrame, tracks: pl.DataFrame, threads: Threads, work: Work, rows: Ints) -> Ints:
    """The work whose end each synchronising call waited for, -1 if none."""
    start, end = _times(spans, rows)
    process = _processes(tracks, threads)
    lanes = threads.codes(spans["track_id"].gather(rows).cast(pl.Int64).to_numpy())
    stream = _streams(spans, rows)
    lasting = np.flatnonzero(work.end > work.start)
    # Whose work it is that no call is known for can only be told where there is but one process.
    nobody = 0 if process.size and process.max() == 0 else -1
    owner = np.where(work.thread >= 0, np.append(process, nobody)[work.thread], nobody)[lasting]
    # One search for both: streams are the groups from 0 on, processes those from -2 down.
    groups = np.concatenate((work.track[lasting], -2 - owner))
    wanted = np.where(stream >= 0, stream, -2 - process[lanes])
    twice = np.tile(lasting, 2)
    at = last_ended((groups, work.end[twice], work.called[twice]), (wanted, start, end, start))
    return np.append(twice, -1)[at]


def _queued(work: Work, thread: Ints, start: Ints, end: Ints) -> Ints:
    """The work that each thread had queued last before a time, if it had ended by another time; else -1."""
    order = np.lexsort((work.called, work.thread))
    last = latest(work.thread[order], work.called[order], thread, start)
    found = np.append(order, -1)[last]
    return np.where(np.append(work.end, 0)[found] <= end, found, -1)


def _processes(tracks: pl.DataFrame, threads: Threads) -> Ints:
    """Number of the process of each thread, from 0."""
    mine = pl.DataFrame({"track_id": threads.track}, schema={"track_id": pl.Int64})
    where = tracks.select(pl.col("track_id").cast(pl.Int64), "host", "pid")
    mine = mine.join(where, on="track_id", how="left", maintain_order="left")
    numbered = mine.select("host", "pid").unique(maintain_order=True).with_row_index("process")
    found = mine.join(numbered, on=["host", "pid"], how="left", nulls_equal=True, maintain_order="left")
    return found["process"].cast(pl.Int64).to_numpy()


def _streams(spans: pl.DataFrame, rows: Ints) -> Ints:
    """The track of the stream for which each call waits, where the recorder tells; else -1."""
    told = spans.filter(pl.col("category") == "sync").select("launch_id", "track_id", "name").drop_nulls()
    told = told.filter(pl.col("name").cast(pl.String).str.to_lowercase().str.contains(_STREAM_SYNC))
    calls = rows_of(spans, told["launch_id"])
    order = np.argsort(calls, kind="stable")
    at = np.searchsorted(calls[order], rows)
    tracks = np.append(told["track_id"].cast(pl.Int64).to_numpy()[order], -1)
    return np.where(np.append(calls[order], -1)[at] == rows, tracks[at], -1)


def _copies(work: Work) -> Waits:
    """Calls that queued a copy, in which the last of their copies ended."""
    mine = np.flatnonzero((work.sort == MEMCPY) & (work.call >= 0) & (work.end > work.start))
    mine = mine[(work.end[mine] > work.called[mine]) & (work.end[mine] <= work.returned[mine])]
    mine = mine[np.lexsort((work.end[mine], work.call[mine]))]
    last = mine[np.flatnonzero(np.diff(work.call[mine], append=-1))]
    none = np.full(last.size, -1, np.int64)
    return Waits(work.call[last], work.thread[last], work.called[last], work.returned[last], last, none)
