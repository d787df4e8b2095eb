"""The windows of time that analyses divide: steps, on the host and on the device, the recording, and equal stretches.

The host may queue a step in far less time than the device needs for it. What a step took is then the cadence of the
device: the time from the end of one step's work to the end of the next one's.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import Ints
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import filtered, integers
from stepscope.core.trace import extent_ns

_BUCKETS = 100
_MOST_BUCKETS = 1_000_000
_US = 1_000
_NOT_OF_PROGRAM = ("overhead", "sched_oncpu", "sched_runq", "io")
#: The number of a step without one, and the time of what never happened.
_NO_STEP, _NEVER = -(1 << 62), np.iinfo(np.int64).min
_WINDOW = {"step": pl.Int32, "rank": pl.Int32, "ts_ns": pl.Int64, "end_ns": pl.Int64}


def stretches(low: int, high: int, bucket_ns: int | None) -> Ints:
    """Bounds of stretches of equal length from low to high, the last one perhaps shorter. Units: ns.

    Without `bucket_ns` the length is the smallest power of ten µs that makes at most 100 of them. Raises StepscopeError
    if there would be too many.
    """
    length = max(high - low, 1)
    if bucket_ns is None:
        bucket_ns = _US
        while bucket_ns * _BUCKETS < length:
            bucket_ns *= 10
    if bucket_ns < 1 or length / bucket_ns > _MOST_BUCKETS:
        hint = f"choose --bucket-ns of at least {-(-length // _MOST_BUCKETS)}"
        raise StepscopeError(f"no more than {_MOST_BUCKETS:,} stretches of time are shown", hint)
    return np.append(np.arange(low, low + length, bucket_ns), high)


def host_windows(steps: pl.DataFrame) -> pl.DataFrame:
    """The trace's steps in order of time, with `host_window_ns`: to the next one's start, or the step's own duration.

    Units: ns. Source: start to start, as a training loop's own clock measures steps.
    """
    rows = steps.sort("ts_ns")
    starts, rank = rows["ts_ns"].to_numpy(), integers(rows["rank"])
    number = integers(rows["step"], _NO_STEP)
    order = np.argsort(rank, kind="stable")
    this, following = order[:-1], order[1:]
    follows = (rank[this] == rank[following]) & (number[this] + 1 == number[following])
    lengths = rows["dur_ns"].to_numpy().copy()
    lengths[this[follows]] = (starts[following] - starts[this])[follows]
    return rows.hstack([pl.Series("host_window_ns", lengths)])


def step_windows(steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The steps in order of time with the windows that they took: bounds `ts_ns` and `end_ns`, `window_ns` long.

    A step begins when it begins on the host, or when the device has done the work of the step before if that is later.
    It lasts until the next one begins; without a next number, until it ends on the host and the device has done its
    work. So a host that waits for the device gives the windows of `host_windows`, and a host that runs ahead gives the
    cadence of the device. Where the device finishes a step before the one before it, its cadence is not known, and the
    windows of the rank are those of the host.

    Further columns: step, rank, source, `host_ts_ns`, `host_ns` and `host_window_ns` of the host, and `late_ns`, from
    the step's end on the host to the end of its work; it is negative if the device is done before. `work` is
    what `queued_work` or `device_work` returns, perhaps empty.

    Units: ns.
    """
    rows = host_windows(steps).rename({"ts_ns": "host_ts_ns", "dur_ns": "host_ns"})
    if rows["rank"].n_unique() > 1:
        ranks = rows["rank"].unique(maintain_order=True)
        windows = pl.concat([_windows_of_rank(of_rank(rows, rank), of_rank(work, rank)) for rank in ranks])
    else:
        windows = _windows_of_rank(rows, work)
    windows = windows.hstack([(windows["end_ns"] - windows["ts_ns"]).alias("window_ns")])
    columns = ("ts_ns", "end_ns", "window_ns", "host_ts_ns", "host_ns", "host_window_ns", "late_ns")
    return windows[["step", "rank", "source", *columns]].sort("ts_ns", "host_ts_ns")


def of_rank(rows: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """The rows of that rank; those without one, if it is None."""
    return rows.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)))


def queued_work(spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Of device work what `step_windows` needs: ts_ns, end_ns, step, launch_id, rank."""
    work = spans.lazy().filter(pl.col("category").is_in(DEVICE_WORK)).join(tracks.lazy(), on="track_id", how="left")
    return work.select("ts_ns", "step", "launch_id", "rank", end_ns=pl.col("ts_ns") + pl.col("dur_ns")).collect()


def _windows_of_rank(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    starts, lengths = rows["host_ts_ns"].to_numpy(), rows["host_ns"].to_numpy()
    ends, numbers = starts + lengths, integers(rows["step"], _NO_STEP)
    followed = np.append(np.diff(numbers) == 1, False)[: numbers.size]
    queued = _queued_by(numbers, work)
    low, high = (starts, ends) if work.is_empty() else _on_device(starts, ends, queued, work)
    if ((high <= low) & (lengths > 0)).any():
        low, high = starts, ends
    until_next = np.append(low[1:], high[-1:])
    # Spans of damaged traces may overlap; the later step begins where it says.
    high = np.where(followed, until_next, np.minimum(high, np.maximum(until_next, low)))
    late, has_none = pl.Series("late_ns", queued[1] - ends), queued[1] == _NEVER
    late = late.set(pl.Series(has_none), None) if has_none.any() else late
    return rows.hstack([pl.Series("ts_ns", low), pl.Series("end_ns", high), late])


def device_steps(steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The trace's steps in order of time with device-side bounds: step, rank, ts_ns, end_ns. They never overlap.

    A step ends with the last work that it queued, if that is later than its own end on the host, and the next one
    starts there, if that is later than its own start on the host. The first one starts where work that had been
    queued before it has ended. `work` has span_id, ts_ns, end_ns, step, launch_id, as of `device_work`; none at all
    leaves the bounds on the host.

    Units: ns. Source: the step boundaries of the TensorBoard profiler plugin, which drops trailing steps besides.
    """
    rows = steps.sort("ts_ns")
    starts = rows["ts_ns"].to_numpy()
    queued = _queued_by(integers(rows["step"], _NO_STEP), work)
    low, high = _on_device(starts, starts + rows["dur_ns"].to_numpy(), queued, work)
    return rows[["step", "rank"]].hstack([pl.Series("ts_ns", low), pl.Series("end_ns", high)])


def _on_device(starts: Ints, ends: Ints, queued: tuple[Ints, Ints], work: pl.DataFrame) -> tuple[Ints, Ints]:
    """`device_steps` of steps in order of time. `queued` is what `_queued_by` returns."""
    if starts.size == 0:
        return starts, ends
    begun, done = queued
    loose = filtered(work[["ts_ns", "end_ns"]], work["launch_id"].is_null())
    is_known = loose.height < work.height and begun[0] != _NEVER
    free = _free_from(int(begun[0]), loose, starts[:1]) if is_known else starts[:1]
    high = np.maximum(np.maximum.accumulate(np.maximum(ends, done)), free)
    return np.maximum(starts, np.concatenate((free, high[:-1]))), high


def _queued_by(numbers: Ints, work: pl.DataFrame) -> tuple[Ints, Ints]:
    """When the device begins and ends the work of each step of these numbers; `_NEVER` for one that queued none."""
    step, starts, ends = integers(work["step"], _NO_STEP), work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()
    linked = work["launch_id"].is_not_null().to_numpy()
    known = np.flatnonzero((step != _NO_STEP) & (linked if linked.any() else True))  # without launches: where it ran
    distinct, of_step = np.unique(numbers, return_inverse=True)
    begun, done = np.full(distinct.size, np.iinfo(np.int64).max), np.full(distinct.size, _NEVER)
    if distinct.size:
        at = np.minimum(np.searchsorted(distinct, step[known]), distinct.size - 1)
        known, at = known[distinct[at] == step[known]], at[distinct[at] == step[known]]
        np.minimum.at(begun, at, starts[known])
        np.maximum.at(done, at, ends[known])
    return np.where(done == _NEVER, _NEVER, begun)[of_step], done[of_step]


def _free_from(begun_ns: int, loose: pl.DataFrame, start: Ints) -> Ints:
    """When the device has done what was queued before the first step, one element; `start` if that is not known.

    Work without a launch record was queued before the recording began, if all of it starts before the first step's own
    work (which begins at `begun_ns`). If some starts later, launches were lost, and nothing can be said.
    """
    if loose.is_empty() or int(loose["ts_ns"].to_numpy().max()) >= begun_ns:
        return start
    free: Ints = np.minimum(loose["end_ns"].to_numpy().max(keepdims=True), begun_ns)
    return free


def whole(spans: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of operators, data loading and device work, else of all spans. Units: ns."""
    profiled = filtered(spans[["ts_ns", "dur_ns"]], spans["category"].is_in(("operator", "dataloader", *DEVICE_WORK)))
    return extent_ns(spans if profiled.is_empty() else profiled)


def recorded(spans: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of what the recorder saw of the program, of all spans if it saw nothing else.

    The recorder's own work (flushing of buffers, setting up) is left out, and so is what was recorded of the scheduler,
    which may last longer than the profile. Units: ns.
    """
    of_program = filtered(spans[["ts_ns", "dur_ns"]], ~spans["category"].is_in(_NOT_OF_PROGRAM))
    return extent_ns(spans if of_program.is_empty() else of_program)


def windows_of(spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Step, rank, ts_ns and end_ns of each window: those of `step_windows`, or one for the recording, its step null."""
    if not steps.is_empty():
        return step_windows(steps, work).select(list(_WINDOW))
    low, high = recorded(spans)
    ranks = tracks["rank"].drop_nulls()
    rank = None if ranks.is_empty() else ranks[0]
    return pl.DataFrame({"step": [None], "rank": [rank], "ts_ns": [low], "end_ns": [high]}, schema=_WINDOW)


HOST = "host"
#: Time of what counts nowhere.
NOWHERE = -(2**63)
#: Lanes that repeat what threads and streams have, or have no work of the process.
_LANES = ("annotation", "other")


def device_of_tracks(tracks: pl.DataFrame, devices: pl.DataFrame) -> pl.Series:
    """Where the spans of each track run: host, gpu0, gpu1 …; null for lanes that repeat others. By track_id from 0.

    Accelerators of all vendors are a gpu here, as in the counters that are recorded with a trace.
    """
    known = devices.filter(pl.col("type") != "cpu").select("device_id", device=pl.format("gpu{}", "index"))
    rows = tracks.select("track_id", "device_id", "kind").join(known, on="device_id", how="left").sort("track_id")
    lane = pl.col("kind").cast(pl.String).is_in(_LANES).fill_null(value=False)
    device = pl.when(pl.col("device_id").is_null()).then(pl.lit(HOST)).otherwise(pl.col("device").fill_null("gpu"))
    shown = pl.when(~lane).then(device)
    return rows.select(device=shown)["device"]


def counted_at(spans: pl.DataFrame) -> Ints:
    """When each span counts: its start; of device work, the start of the call that queued it.

    So the work of a cycle is what the cycle queued, however far the device lags behind. If the trace ties some work to
    its call, the rest was queued before the recording began, and counts nowhere (`NOWHERE`); if it ties none, all
    counts when it ran. Units: ns.
    """
    at = spans["ts_ns"].to_numpy().copy()
    is_work = spans["category"].is_in(DEVICE_WORK)
    if not is_work.any():
        return at
    rows = np.flatnonzero(is_work.to_numpy())
    launches = spans["launch_id"].gather(rows)
    linked = launches.is_not_null().to_numpy()
    if linked.any():
        at[rows[linked]] = at[launches.drop_nulls().to_numpy()]
        at[rows[~linked]] = NOWHERE
    return at


def cycle_of(at: Ints, lows: Ints, highs: Ints) -> Ints:
    """Row of the cycle [low, high) that each time lies in, -1 for none. Cycles are in order and do not overlap."""
    if lows.size == 0:
        return np.full(at.size, -1, np.int64)
    row = np.searchsorted(lows, at, side="right") - 1
    return np.where((row >= 0) & (at < highs[row]), row, -1)
