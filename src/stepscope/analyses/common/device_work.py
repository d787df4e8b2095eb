"""The work that occupied accelerators, with where it ran and what sort it is: the common start of device analyses.

Work means kernels, copies and fills. It is divided once, here: *communication* is a kernel that talks to other ranks,
*memcpy* is a copy, *computation* is every other kernel and fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.collectives import talks_to_ranks
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, union
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPUTATION, COMMUNICATION, MEMCPY = 0, 1, 2
PROVIDERS = ("a profile recorded with device activities on (CUDA, HIP, XPU, MTIA, …)",)


@dataclass(frozen=True, slots=True)
class Occupied:
    """When a set of work occupied its device, by sort, as disjoint intervals; `first_ns` and `last_ns` bound it."""

    computation: Intervals
    communication: Intervals
    memcpy: Intervals
    kernels: Intervals  # computation or communication
    busy: Intervals
    first_ns: int
    last_ns: int


def device_work(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    *,
    needed_by: str,
    linked_only: bool = False,
    communication: str = "library",
) -> pl.DataFrame:
    """Kernels, copies and fills in the order of `spans`, with `end_ns`, `sort`, `rank`, `device_id` and `stream`.

    `linked_only` keeps what the trace ties to a launch: by arrows where it has any, else by a launch record.
    `communication` says which kernels talk to other ranks: `library` (kernels of collective libraries, as other tools
    count), `any` (also kernels that do it themselves: multimem, NVSHMEM, DeepEP, one-shot), or a regular expression.
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
        .when((pl.col("category") == "kernel") & talks_to_ranks(work["name"], communication))
        .then(COMMUNICATION)
        .otherwise(COMPUTATION)
        .cast(pl.Int8)
    )
    work = work.with_columns(end_ns=pl.col("ts_ns") + pl.col("dur_ns"), sort=sort)
    where = tracks.select("track_id", "rank", "device_id", "stream")
    return work.join(where, on="track_id", how="left", maintain_order="left")


def groups_of(work: pl.DataFrame, keys: Sequence[str]) -> list[tuple[tuple[int | None, ...], pl.DataFrame]]:
    """The work of each combination of `keys`, sorted by them, null last."""
    parts = work.partition_by(keys, as_dict=True)
    return sorted(parts.items(), key=lambda item: [(value is None, value or 0) for value in item[0]])


def occupied(work: pl.DataFrame) -> Occupied:
    """When this (non-empty) work occupied its device, by sort."""
    work = work.sort("ts_ns")  # one sort serves every union below
    starts, ends, sort = (work[c].to_numpy() for c in ("ts_ns", "end_ns", "sort"))

    def of(*sorts: int) -> Intervals:
        keep = sort == sorts[0] if len(sorts) == 1 else sort != MEMCPY
        return union(starts[keep], ends[keep])

    return Occupied(
        computation=of(COMPUTATION),
        communication=of(COMMUNICATION),
        memcpy=of(MEMCPY),
        kernels=of(COMPUTATION, COMMUNICATION),
        busy=union(starts, ends),
        first_ns=int(starts[0]),
        last_ns=int(ends.max()),
    )


def label_devices(frame: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The frame with `device`, as in cuda:0, beside its `device_id`; null where the trace does not describe it."""
    label = pl.when(pl.col("index").is_not_null()).then(pl.format("{}:{}", "type", "index")).otherwise("type")
    labels = devices.select("device_id", device=label)
    return frame.join(labels, on="device_id", how="left", maintain_order="left")


def of_spans(spans: pl.DataFrame, ids: pl.Series, column: str) -> pl.Series:
    """That column of the spans with these ids, row by row; null where the id is null."""
    have = spans["span_id"]
    if spans.height and have[0] == 0 and have[-1] == spans.height - 1 and have.is_sorted():
        return spans[column].gather(ids)  # ids are row numbers, unless someone has filtered the table
    looked_up = ids.to_frame("span_id").join(
        spans.select("span_id", column), on="span_id", how="left", maintain_order="left"
    )
    return looked_up[column]
