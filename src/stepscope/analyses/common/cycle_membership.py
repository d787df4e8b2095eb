"""Where each span counts: on which device, and at which time, which decides its cycle."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.intervals import Ints
from stepscope.core.schema import DEVICE_WORK

__all__ = ["HOST", "NOWHERE", "counted_at", "cycle_of", "device_of_tracks"]


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
