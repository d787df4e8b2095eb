"""Where steps begin and end as the device sees them: a step lasts until the device has done what the step queued."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.schema import DEVICE_WORK
from stepscope.core.trace import extent_ns

Ints = NDArray[np.int64]


def device_steps(steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The trace's steps in order of time with device-side bounds: step, rank, ts_ns, end_ns. They never overlap.

    A step ends with the last work that it queued, if that is later than its own end on the host, and the next one
    starts there, if that is later than its own start on the host. The first one starts where work that had been
    queued before it has ended. `work` has span_id, ts_ns, end_ns, step, launch_id, as of `device_work`; none at all
    leaves the bounds on the host.

    Units: ns. Source: the step boundaries of the TensorBoard profiler plugin, which drops trailing steps besides.
    """
    rows = steps.sort("ts_ns").select("step", "rank", "ts_ns", end_ns=pl.col("ts_ns") + pl.col("dur_ns"))
    linked = work.filter(pl.col("launch_id").is_not_null())
    loose = work.filter(pl.col("launch_id").is_null())
    # Without any launch record, work counts for the step in which it ran.
    own = (loose if linked.is_empty() else linked).group_by("step")
    queued = own.agg(done_ns=pl.col("end_ns").max(), begun_ns=pl.col("ts_ns").min())
    rows = rows.join(queued, on="step", how="left", maintain_order="left")
    begin = rows["ts_ns"].to_numpy()
    if begin.size == 0:
        return rows.select("step", "rank", "ts_ns", "end_ns")
    free = _free_from(rows["begun_ns"][0], loose, begin[:1]) if linked.height else begin[:1]
    done = rows.select(pl.max_horizontal("end_ns", "done_ns")).to_series().to_numpy()
    end = np.maximum(np.maximum.accumulate(done), free)
    begin = np.maximum(begin, np.concatenate((free, end[:-1])))
    return rows.select("step", "rank").with_columns(ts_ns=pl.Series(begin), end_ns=pl.Series(end))


def _free_from(begun_ns: int | None, loose: pl.DataFrame, start: Ints) -> Ints:
    """When the device has done what was queued before the first step, one element; `start`, where nothing tells.

    Work without a launch record was queued before the recording began, if all of it starts before the first step's own
    work (which begins at `begun_ns`). If some starts later, launches were lost, and nothing can be said.
    """
    if begun_ns is None or loose.is_empty() or int(loose["ts_ns"].to_numpy().max()) >= begun_ns:
        return start
    free: Ints = np.minimum(loose["end_ns"].to_numpy().max(keepdims=True), begun_ns)
    return free


def whole(spans: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of operators, data loading and device work; of all spans where there are none of them.

    Units: ns. What a profiler does before and after is left out.
    """
    kept = spans.filter(spans["category"].is_in(("operator", "dataloader", *DEVICE_WORK)))
    return extent_ns(spans if kept.is_empty() else kept)


def windows_of(spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """What `device_steps` returns; without steps one row for the whole recording, its step null."""
    if not steps.is_empty():
        return device_steps(steps, work)
    low, high = whole(spans)
    ranks = tracks["rank"].drop_nulls()
    rank = None if ranks.is_empty() else ranks[0]
    dtypes = {"step": pl.Int32, "rank": pl.Int32, "ts_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame({"step": [None], "rank": [rank], "ts_ns": [low], "end_ns": [high]}, schema=dtypes)
