"""Recordings without a profile: counters, and times of steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.core.schema import COUNTERS, STEP_TIMES
from stepscope.core.trace import Meta, Trace

MS = 1_000_000
HZ = 20


def recording(*, waiting=0.01, running=0.9, seconds=30, step_ms=None, seed=0):
    """A process whose counters were sampled, and which waits for a core for this share of the time."""
    random = np.random.default_rng(seed)
    ts = (np.arange(seconds * HZ) * (1e9 / HZ)).astype(np.int64)
    levels = {"process_runq_time": (waiting, 1e9, "ns/s"), "process_oncpu_time": (running, 1e9, "ns/s")}
    frames = [
        pl.DataFrame({"ts_ns": ts, "value": share * whole * (1 + 0.05 * random.standard_normal(ts.size))}).with_columns(
            device=pl.lit("pid:5"), metric=pl.lit(metric), unit=pl.lit(unit), pid=pl.lit(5)
        )
        for metric, (share, whole, unit) in levels.items()
    ]
    tables = {"counters": COUNTERS.conform(pl.concat(frames).sort("ts_ns"))}
    if step_ms is not None:
        n = int(seconds * 1000 / step_ms)
        dur = (step_ms * MS * (1 + 0.01 * random.standard_normal(n))).astype(np.int64)
        steps = pl.DataFrame({"ts_ns": np.cumsum(dur) - dur, "dur_ns": dur}).with_columns(
            pid=pl.lit(5), n_steps=pl.lit(1), source=pl.lit("optimizer steps"), is_profiled=pl.lit(value=False)
        )
        tables["step_times"] = STEP_TIMES.conform(steps)
    return Trace(Meta("counters.csv", "counters"), tables)
