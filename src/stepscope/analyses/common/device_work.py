"""Device work and the windows in which analyses count it: steps as the device sees them, or stretches of equal length.

Device work is kernels, copies and fills. It divides into *communication* (kernels that talk to other ranks), *memcpy*
(copies) and *computation* (all other kernels, and fills).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.collective_calls import communicates
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.intervals import Ints
from stepscope.core.schema import DEVICE_LABEL, DEVICE_WORK
from stepscope.core.trace import extent_ns

if TYPE_CHECKING:
    from collections.abc import Sequence


_BUCKETS = 100
_MOST_BUCKETS = 1_000_000
_US = 1_000
COMPUTATION, COMMUNICATION, MEMCPY = 0, 1, 2
PROVIDERS = ("a profile recorded with device activities on (CUDA, HIP, XPU, MTIA, …)",)


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
    """When the device has done what was queued before the first step, one element; `start` if that is not known.

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
    profiled = spans.filter(spans["category"].is_in(("operator", "dataloader", *DEVICE_WORK)))
    return extent_ns(spans if profiled.is_empty() else profiled)


def windows_of(spans: pl.DataFrame, tracks: pl.DataFrame, steps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """What `device_steps` returns; without steps one row for the whole recording, its step null."""
    if not steps.is_empty():
        return device_steps(steps, work)
    low, high = whole(spans)
    ranks = tracks["rank"].drop_nulls()
    rank = None if ranks.is_empty() else ranks[0]
    dtypes = {"step": pl.Int32, "rank": pl.Int32, "ts_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame({"step": [None], "rank": [rank], "ts_ns": [low], "end_ns": [high]}, schema=dtypes)


def device_work(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    *,
    needed_by: str,
    linked_only: bool = False,
    communication: str = "any",
) -> pl.DataFrame:
    """Kernels, copies and fills in the order of `spans`, with `end_ns`, `sort`, `rank`, `device_id` and `stream`.

    `linked_only` keeps what the trace ties to a launch: by arrows where it has any, else by a launch record.
    `communication` says which kernels talk to other ranks: `any` (all that do, in whatever way), `library` (only
    kernels of collective libraries, as TraceLens counts), or a regular expression of names.
    Raises MissingTable if there is no device work, StepscopeError if `communication` is no regular expression.
    """
    work = spans.filter(pl.col("category").is_in(DEVICE_WORK))
    if work.is_empty():
        raise MissingTable("device work", needed_by=needed_by, providers=PROVIDERS)
    if linked_only:
        arrows = work["flow"].null_count() < work.height
        work = work.filter(pl.col("flow") if arrows else pl.col("launch_id").is_not_null())
        if work.is_empty():
            raise MissingTable("device work tied to its launch", needed_by=needed_by, hint="try without linked-only")
    sort = (
        pl.when(pl.col("category") == "memcpy")
        .then(MEMCPY)
        .when(communicates(work, spans, communication))
        .then(COMMUNICATION)
        .otherwise(COMPUTATION)
        .cast(pl.Int8)
    )
    work = work.with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns"), sort=sort)
    where = tracks.select("track_id", "rank", "device_id", "stream")
    return _placed(work.join(where, on="track_id", how="left", maintain_order="left"))


def _placed(work: pl.DataFrame) -> pl.DataFrame:
    """Work that names no device belongs to the only device of its rank; it stays unknown if the rank has several."""
    if not work["device_id"].null_count():
        return work
    known = pl.col("device_id").drop_nulls().unique()
    only = work.group_by("rank").agg(only=pl.when(known.len() == 1).then(known.first()))
    work = work.join(only, on="rank", how="left", nulls_equal=True, maintain_order="left")
    return work.with_columns(device_id=pl.coalesce("device_id", "only")).drop("only")


def on_devices(work: pl.DataFrame) -> pl.DataFrame:
    """The work without that of unknown devices, for ranks in which some device is known.

    Such work runs on one of the rank's devices, or on the host. It is no device of its own.
    """
    unknown = pl.col("device_id").is_null() & pl.col("device_id").is_not_null().any().over("rank")
    return work.filter(~unknown) if work["device_id"].null_count() else work


def groups_of(work: pl.DataFrame, keys: Sequence[str]) -> list[tuple[tuple[int | None, ...], pl.DataFrame]]:
    """The work of each combination of `keys`, sorted by them, null last."""
    parts = work.partition_by(keys, as_dict=True)
    return sorted(parts.items(), key=lambda item: [(value is None, value or 0) for value in item[0]])


def label_devices(frame: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The frame with `device`, as in cuda:0, for its `device_id`; null where the trace does not describe it."""
    labels = devices.select("device_id", device=DEVICE_LABEL)
    return frame.join(labels, on="device_id", how="left", maintain_order="left")
