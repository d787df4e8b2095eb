"""Time on cores and waits for them in each cycle, from spans of scheduling: exact, where samples are means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.model import BEHIND, OWN_PROCESS, RESOURCES
from stepscope.core.intervals import reached

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = ["in_place_of", "scheduled"]

_METRICS = {"sched_oncpu": "process_oncpu_time", "sched_runq": "process_runq_time"}


def scheduled(trace: Trace, pid: int | None, cycles: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of the process' threads by cycle, ns per second: on a core, waiting for one, and behind whom.

    The last stand under the device `behind NAME`, NAME being another process that had the core meanwhile. Nothing if
    scheduling was not recorded.
    """
    lanes = trace.tracks.filter(pl.col("pid") == pid)["track_id"] if pid is not None else trace.tracks["track_id"]
    rows = trace.sched.join(trace.spans, on="span_id", how="inner")
    rows = rows.filter(pl.col("track_id").is_in(lanes.implode()))
    if rows.is_empty():
        return RESOURCES.empty()
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    start = rows["ts_ns"].to_numpy()
    end = start + rows["dur_ns"].to_numpy()
    row, cycle = reached(start, end, (lows, highs))
    time = np.minimum(end[row], highs[cycle]) - np.maximum(start[row], lows[cycle])
    outside = pl.col("other").is_not_null() & ~pl.col("other_is_own") & (pl.col("metric") == _METRICS["sched_runq"])
    pieces = rows.select("other", "other_is_own", metric=pl.col("category").cast(pl.String).replace(_METRICS))[row]
    pieces = pieces.with_columns(
        cycle=cycles["cycle"].gather(cycle), time_ns=pl.Series(time), length_ns=pl.Series((highs - lows)[cycle])
    )
    own = pieces.with_columns(device=pl.lit(OWN_PROCESS))
    behind = pieces.filter(outside).with_columns(device=BEHIND + pl.col("other").cast(pl.String))
    found = [
        part.group_by("cycle", "device", "metric", maintain_order=True).agg(
            mu=pl.col("time_ns").sum() * 1e9 / pl.col("length_ns").first(), n_samples=pl.len()
        )
        for part in (own, behind)
    ]
    # Where a thread was not seen to run or wait it did neither.
    keys = pl.concat(found).select("device", "metric").unique(maintain_order=True)
    known = cycles.filter(pl.Series((lows < int(end.max())) & (highs > int(start.min()))))
    whole = (
        known.select("cycle")
        .join(keys, how="cross")
        .join(pl.concat(found), on=["cycle", "device", "metric"], how="left", maintain_order="left")
    )
    zero = whole.with_columns(pl.col("mu").fill_null(0.0), pl.col("n_samples").fill_null(0), unit=pl.lit("ns/s"))
    return RESOURCES.conform(zero)


def in_place_of(sampled: pl.DataFrame, exact: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES as sampled, with what is known exactly in place of it."""
    keys = ["device", "metric"]
    left = sampled.join(exact.select(keys).unique(), on=keys, how="anti", maintain_order="left")
    return pl.concat([left, exact])
