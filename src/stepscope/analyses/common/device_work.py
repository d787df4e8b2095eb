"""Device work, where it ran and what kind of work it is.

Device work is kernels, copies and fills. It divides into *communication* (kernels that talk to other ranks), *memcpy*
(copies) and *computation* (all other kernels, and fills).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.collective_calls import communicates
from stepscope.core.errors import MissingTable
from stepscope.core.schema import DEVICE_LABEL, DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence


COMPUTATION, COMMUNICATION, MEMCPY = 0, 1, 2
PROVIDERS = ("a profile recorded with device activities on (CUDA, HIP, XPU, MTIA, …)",)


def device_work(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    *,
    needed_by: str | None,
    linked_only: bool = False,
    communication: str = "any",
) -> pl.DataFrame:
    """Kernels, copies and fills in the order of `spans`, with `end_ns`, `sort`, `rank`, `device_id` and `stream`.

    `linked_only` keeps what the trace ties to a launch: by arrows where it has any, else by a launch record.
    `communication` says which kernels talk to other ranks: `any` (all that do, in whatever way), `library` (only
    kernels of collective libraries, as TraceLens counts), or a regular expression of names.
    Raises MissingTable if there is none and `needed_by` says who needs it, StepscopeError if `communication` is no
    regular expression.
    """
    work = spans.filter(pl.col("category").is_in(DEVICE_WORK))
    if needed_by and work.is_empty():
        raise MissingTable("device work", needed_by=needed_by, providers=PROVIDERS)
    if linked_only:
        arrows = work["flow"].null_count() < work.height
        work = work.filter(pl.col("flow") if arrows else pl.col("launch_id").is_not_null())
        if needed_by and work.is_empty():
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
