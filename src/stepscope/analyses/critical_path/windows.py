"""The windows of time whose longest paths are wanted: steps, named ranges, all of it, or steps near the median."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import in_rows, of_spans, row_numbers
from stepscope.analyses.common.windows import device_steps, step_windows, whole
from stepscope.analyses.critical_path.threads import LONG_AGO, Threads
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.intervals import NO_ROW, Bools, Ints, locate, outermost
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import filtered, integers

RECORDING = "recording"
_NAMES_SHOWN = 5


class Windows(msgspec.Struct, frozen=True):
    """Disjoint sorted windows of time, each with the host thread that it belongs to; times in ns."""

    step: pl.Series
    rank: pl.Series
    low: Ints
    high: Ints
    main: Ints
    begin: Ints  # on the host
    end: Ints
    queued: Ints  # per piece of work: the window that queued it; -1 if none

    def only(self, chosen: Ints) -> Windows:
        """The chosen ones, without `queued`."""
        rows = pl.Series(chosen)
        low, high, main, begin, end = (t[chosen] for t in (self.low, self.high, self.main, self.begin, self.end))
        nothing = np.full(self.queued.size, -1, np.int64)
        return Windows(self.step.gather(rows), self.rank.gather(rows), low, high, main, begin, end, nothing)


def path_windows(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame,
    work: pl.DataFrame,
    threads: Threads,
    *,
    within: str | None,
    step: int | None,
) -> tuple[Windows, Ints]:
    """The windows, and which of them are wanted; `work` is what `device_work` returns.

    Steps have the windows of `step_windows`. A range ends when it ends on the host and the device has finished all
    work that it queued. The next one begins at that time, or when it begins on the host if that is later. Raises
    MissingTable (steps, ranges of that name), UnknownName (step), StepscopeError (no regular expression).
    """
    if within is None:
        if steps.is_empty():
            hint = f"try --within {RECORDING}, or --within a range's name"
            raise MissingTable("steps", needed_by="critical-path", hint=hint, topic="steps")
        marks = filtered(spans[["step", "track_id"]], spans["category"] == "step").drop_nulls().unique("step")
        ranges = steps.join(marks, on="step", how="left")
        bounds = _bounded(step_windows(steps, work), ranges)
    elif within == RECORDING:
        bounds = _whole(spans, tracks, threads)
        work = work.with_columns(step=pl.lit(None, pl.Int32))
    else:
        ranges = _matching(spans, threads, within, step).join(tracks.select("track_id", "rank"), on="track_id")
        work = _within(ranges, spans, work)
        bounds = _bounded(device_steps(ranges, work), ranges)
    main = threads.codes(integers(bounds["track_id"]))
    numbers = bounds[["step"]].with_row_index("window").unique("step", keep="first")
    numbers = work[["step"]].join(numbers, on="step", how="left", nulls_equal=True, maintain_order="left")
    queued = integers(numbers["window"])
    low, high, begin, end = (bounds[c].to_numpy() for c in ("ts_ns", "end_ns", "begin", "end"))
    main = np.where(main >= 0, main, np.argmax(threads.n_active))
    windows = Windows(bounds["step"], bounds["rank"], low, high, main, begin, end, queued)
    if step is None:
        return windows, np.arange(bounds.height)
    chosen = np.flatnonzero((bounds["step"] == step).fill_null(value=False).to_numpy())
    if chosen.size == 0:
        raise UnknownName("step", str(step), map(str, bounds["step"].drop_nulls()))
    return windows, chosen


def _bounded(bounds: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Adds the track of each step's range on the host, and its `begin` and `end` there."""
    host = ranges.select("step", "track_id", begin="ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns"))
    return bounds.join(host.unique("step"), on="step", how="left", maintain_order="left")


def _whole(spans: pl.DataFrame, tracks: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    """The recording as one window. It belongs to the thread that is active at its end, else to the most active one."""
    low, high = whole(spans)
    until_then = [thread for thread, (_, ends) in enumerate(threads.active) if high in ends]
    main = until_then[0] if until_then else int(np.argmax(threads.n_active))
    ends = threads.active[main][1]
    ranks = tracks["rank"].drop_nulls()
    columns = {
        "step": pl.Series([None], dtype=pl.Int32),
        "rank": pl.Series(ranks.head(1) if len(ranks) else [None], dtype=pl.Int32),
        "track_id": pl.Series([int(threads.track[main])], dtype=pl.Int64),
        **{name: [low] for name in ("ts_ns", "begin")},
        "end_ns": [high],
        "end": [int(np.minimum(ends, high).max())],
    }
    return pl.DataFrame(columns)


def _matching(spans: pl.DataFrame, threads: Threads, within: str, step: int | None) -> pl.DataFrame:
    """Ranges on host threads whose names match, numbered by start: the given one, or all that are not nested."""
    try:
        search = re.compile(within).search
    except re.error as error:
        raise StepscopeError(f"not a regular expression: {within!r} ({error})") from error
    lanes = pl.Series(threads.track, dtype=pl.UInt32).implode()
    ranges = spans.filter((pl.col("category") == "user_range") & pl.col("track_id").is_in(lanes))
    names = ranges["name"].unique().cast(pl.String).to_list()
    wanted = [name for name in names if search(name)]
    if not wanted:
        shown = f"the trace has {', '.join(sorted(names)[:_NAMES_SHOWN])}" if names else "the trace has none"
        hint = f"{shown}; --within {RECORDING} takes the whole trace"
        raise MissingTable(f"ranges named {within!r}", needed_by="critical-path", hint=hint)
    number = pl.col("ts_ns").rank("ordinal").cast(pl.Int32) - 1
    ranges = ranges.filter(pl.col("name").cast(pl.String).is_in(wanted)).with_columns(step=number)
    if step is not None:
        if not 0 <= step < ranges.height:
            raise UnknownName("range", str(step), (f"0 to {ranges.height - 1}",))
        return ranges.filter(pl.col("step") == step)
    start = ranges["ts_ns"].to_numpy()
    end = start + ranges["dur_ns"].to_numpy()
    lane = ranges["track_id"].cast(pl.Int64).to_numpy()
    return ranges.filter(pl.Series(outermost(lane, start, end, np.zeros(lane.size, np.int64))))


def _within(ranges: pl.DataFrame, spans: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The work; its `step` is the number of the range in which it was queued."""
    ranges = ranges.sort("step")
    called = of_spans(spans, work["launch_id"], "ts_ns").fill_null(LONG_AGO).to_numpy()
    start = ranges["ts_ns"].to_numpy()
    end = np.maximum.accumulate(start + ranges["dur_ns"].to_numpy())
    at = locate((start, end), called)
    return work.with_columns(step=ranges["step"].gather(pl.Series(at).replace(-1, None)))


#: A quick answer replays the step of median length and so many around it that all together have so many spans.
_LEAST_STEPS, _QUICK_SPANS = 3, 20_000


def near_median(spans: pl.DataFrame, steps: pl.DataFrame) -> tuple[pl.DataFrame, Bools | None]:
    """The steps around that of median length, and a mask of their spans; all, and None, if the recording is small.

    Device work counts where it was queued, and what ran when the first step began is part of it.
    """
    n = max(_LEAST_STEPS, _QUICK_SPANS * steps.height // max(spans.height, 1))
    if steps.height <= n:
        return steps, None
    steps = steps.sort("ts_ns")
    rank = steps["rank"][int(steps["dur_ns"].arg_sort()[steps.height // 2])]
    steps = steps.filter(pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)))
    middle = int(steps["dur_ns"].arg_sort()[steps.height // 2])
    first = min(max(middle - n // 2, 0), max(steps.height - n, 0))
    steps = steps.slice(first, n)
    low, high = steps["ts_ns"][0], steps["ts_ns"][-1] + steps["dur_ns"][-1]
    begun = spans["ts_ns"].to_numpy()
    work = np.flatnonzero(spans["category"].is_in(DEVICE_WORK).to_numpy())
    called, launch = begun[work], row_numbers(spans["span_id"], in_rows(spans["launch_id"], work))
    is_queued = launch != NO_ROW
    called[is_queued] = begun[launch[is_queued]]
    is_near = (begun >= low) & (begun < high)
    runs_over = (called < low) & (begun[work] + in_rows(spans["dur_ns"], work).to_numpy() > low)
    is_near[work] = ((called >= low) & (called < high)) | runs_over
    return steps, is_near
