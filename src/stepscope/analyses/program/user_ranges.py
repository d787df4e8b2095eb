"""How long the program's own named ranges took, on the host and on the device."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import covered, ends_of, union, union_by
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import Column, Name, Table

USER_RANGES = Table(
    "user-ranges",
    "what named ranges took",
    (
        Column("name", Name, "the range's name", key=True),
        Column("side", pl.Enum(("host", "device")), "where it was measured", key=True),
        Column("count", pl.Int64(), "how often it ran"),
        Column("total_ns", pl.Int64(), "summed duration", "ns"),
        Column("mean_ns", pl.Float64(), "mean duration", "ns"),
        Column("min_ns", pl.Int64(), "shortest", "ns"),
        Column("max_ns", pl.Int64(), "longest", "ns"),
        Column("std_ns", pl.Float64(), "standard deviation of a sample; null for a single run", "ns"),
        Column("device_ns", pl.Int64(), "time in which device work of these ranges ran, overlaps counted once", "ns"),
        Column("share_ratio", pl.Float64(), "part of the recording in which one of these ranges is open", "ratio"),
    ),
)


def user_ranges(spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """One row per name and side (host or device), longest in total first. Marks of steps are in `steps` instead.

    The main columns are `count`, `total_ns` and `device_ns`. Device work of a host range is what its own thread
    launched while it was open; backward work that autograd launches from another thread does not count. Device work of
    a device range is what ran during it on its stream. `device_ns` is null if the trace has no device work.

    Units: ns; ratios 0..1.
    Source: HTA's user annotation breakdown, whose standard deviation is 0 where there is one run.
    Raises MissingTable if there are no ranges.
    """
    named = pl.col("category").is_in(("user_range", "device_range"))
    ranges = spans.filter(named).with_columns(
        side=pl.when(pl.col("category") == "user_range").then(pl.lit("host")).otherwise(pl.lit("device")),
    )
    if ranges.is_empty():
        hint = "name parts of the program with torch.profiler.record_function('…')"
        raise MissingTable("named ranges", needed_by="user-ranges", hint=hint)
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    whole = spans.select(ends.max() - pl.col("ts_ns").min()).item()
    length = pl.col("dur_ns")
    sums = ranges.group_by("name", "side").agg(
        pl.len().cast(pl.Int64).alias("count"),
        total_ns=length.sum(),
        mean_ns=length.mean(),
        min_ns=length.min(),
        max_ns=length.max(),
        std_ns=length.std(),
    )
    sums = sums.join(_open(ranges), on=["name", "side"], how="left")
    sums = sums.with_columns(share_ratio=pl.col("open_ns") / whole if whole else None)
    work = spans.filter(pl.col("category").is_in(DEVICE_WORK)).sort("ts_ns")
    if not work.is_empty():
        host, device = ranges.filter(pl.col("side") == "host"), ranges.filter(pl.col("side") == "device")
        launched = [_launched(host, spans, work), _ran(device, tracks, work)]
        sums = sums.join(pl.concat(launched), on=["name", "side"], how="left")
    return USER_RANGES.conform(sums).sort("total_ns", "name", "side", descending=[True, False, False])


def _open(ranges: pl.DataFrame) -> pl.DataFrame:
    """Time in which any range of a name is open, over all threads: name, side, open_ns."""
    ranges = ranges.with_columns(code=pl.struct("name", "side").rank("dense").cast(pl.Int64))
    starts = ranges["ts_ns"].to_numpy()
    codes, lows, highs = union_by(ranges["code"].to_numpy(), starts, starts + ranges["dur_ns"].to_numpy())
    lengths = pl.DataFrame({"code": codes, "open_ns": highs - lows}).group_by("code").agg(pl.col("open_ns").sum())
    return ranges.select("name", "side", "code").unique().join(lengths, on="code", how="left").drop("code")


def _launched(ranges: pl.DataFrame, spans: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Time in which the work that ranges of a name launched ran. Columns: name, side, device_ns."""
    rows = ranges["span_id"].cast(pl.Int64).to_numpy()
    starts = spans["ts_ns"].to_numpy()
    ends = starts[rows] + ranges["dur_ns"].to_numpy()
    all_ends = starts.copy()
    all_ends[rows] = ends
    after = ends_of(spans["track_id"].to_numpy(), starts, all_ends, rows)
    linked = work.drop_nulls("launch_id").sort("launch_id")
    launches = linked["launch_id"].to_numpy()
    low, high = np.searchsorted(launches, rows), np.searchsorted(launches, after)
    of_range = np.repeat(np.arange(rows.size), high - low)
    of_work = np.arange(of_range.size) + np.repeat(low - (np.cumsum(high - low) - (high - low)), high - low)
    names = ranges["name"].to_physical().cast(pl.Int64).to_numpy()
    begin = linked["ts_ns"].to_numpy()[of_work]
    groups, lows, highs = union_by(names[of_range], begin, begin + linked["dur_ns"].to_numpy()[of_work])
    lengths = pl.DataFrame({"code": groups, "device_ns": highs - lows}).group_by("code").agg(pl.col("device_ns").sum())
    known = ranges.select("name", code=pl.Series(names)).unique("code")
    sums = known.join(lengths, on="code", how="left").with_columns(pl.col("device_ns").fill_null(0))
    return sums.select("name", pl.lit("host").alias("side"), "device_ns")


def _ran(ranges: pl.DataFrame, tracks: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Time in which work ran during device ranges of a name, on their streams. Columns: name, side, device_ns."""
    where = tracks.select("track_id", "device_id", "stream")
    work, ranges = (frame.join(where, on="track_id", how="left") for frame in (work, ranges))
    busy = work.partition_by("device_id", "stream", as_dict=True)
    parts = [ranges.select("name", device_ns="dur_ns").clear()]
    for key, mine in ranges.partition_by("device_id", "stream", as_dict=True).items():
        lows = mine["ts_ns"].to_numpy()
        inside = np.zeros(lows.size, np.int64)
        if key in busy:
            starts = busy[key]["ts_ns"].to_numpy()
            on_stream = union(starts, starts + busy[key]["dur_ns"].to_numpy())
            inside = covered(on_stream, lows, lows + mine["dur_ns"].to_numpy())
        parts.append(mine.select("name", device_ns=pl.Series(inside)))
    sums = pl.concat(parts).group_by("name").agg(pl.col("device_ns").sum())
    return sums.select("name", pl.lit("device").alias("side"), "device_ns")


ANALYSIS = analysis_of(user_ranges, USER_RANGES, "What named ranges took.")
