"""Device work, where it ran and what kind of work it is.

Device work is kernels, copies and fills. It divides into *communication* (kernels that talk to other ranks), *memcpy*
(copies) and *computation* (all other kernels, and fills). Here is the one definition of busy, computing, exposed and
idle time of a device in a window; its parts sum to the window. What several devices of a process do is the mean of
their parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.analyses.common.collective_calls import communicates
from stepscope.analyses.common.span_lookup import of_ids
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import Intervals, Ints, covered, is_sorted, union
from stepscope.core.schema import DEVICE_LABEL, DEVICE_WORK
from stepscope.core.table import filtered, is_any_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
    work = filtered(spans, is_any_of(spans["category"], DEVICE_WORK))
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
    where = tracks[["track_id", "rank", "device_id", "stream"]]
    return _placed(work.hstack(of_ids(where, work["track_id"], key="track_id")))


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
    if work.height and all(_is_one_value(work[key]) for key in keys):
        return [(tuple(work[key][0] for key in keys), work)]  # the usual case, in which nothing has to be moved
    parts = work.partition_by(keys, as_dict=True)
    return sorted(parts.items(), key=lambda item: [(value is None, value or 0) for value in item[0]])


def _is_one_value(values: pl.Series) -> bool:
    n_null = values.null_count()
    return n_null == values.len() or (not n_null and values.min() == values.max())


#: Rows that are labelled one by one.
_FEW = 100


def label_devices(frame: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """The frame with `device`, as in cuda:0, for its `device_id`; null where the trace does not describe it."""
    if frame.height > _FEW:
        labels = devices.select("device_id", device=DEVICE_LABEL)
        return frame.join(labels, on="device_id", how="left", maintain_order="left")
    # Of a few rows a join is planned for longer than this takes.
    kinds = zip(*(devices[column].to_list() for column in ("device_id", "type", "index")), strict=True)
    label = {number: kind if index is None else f"{kind}:{index}" for number, kind, index in kinds}
    return frame.hstack([pl.Series("device", [label.get(number) for number in frame["device_id"]], pl.String)])


class Occupied(msgspec.Struct, frozen=True):
    """When a set of work occupied its device, by kind, as disjoint intervals."""

    computation: Intervals
    communication: Intervals
    memcpy: Intervals
    kernels: Intervals  # computation or communication
    busy: Intervals


def occupied(work: pl.DataFrame) -> Occupied:
    """When this work of one device occupied it, by kind."""
    starts, ends, sort = (work[c].to_numpy() for c in ("ts_ns", "end_ns", "sort"))
    if not is_sorted(starts):  # one sort serves every union below
        order = np.argsort(starts, kind="stable")
        starts, ends, sort = starts[order], ends[order], sort[order]

    def of(*sorts: int) -> Intervals:
        keep = sort == sorts[0] if len(sorts) == 1 else sort != MEMCPY
        return union(starts[keep], ends[keep])

    return Occupied(
        computation=of(COMPUTATION),
        communication=of(COMMUNICATION),
        memcpy=of(MEMCPY),
        kernels=of(COMPUTATION, COMMUNICATION),
        busy=union(starts, ends),
    )


def by_device(work: pl.DataFrame) -> list[tuple[tuple[int | None, int | None], pl.DataFrame]]:
    """The work of each (rank, device_id), sorted by them; work of unknown devices counts only if no device is known."""
    return [((rank, device_id), part) for (rank, device_id), part in groups_of(on_devices(work), ("rank", "device_id"))]


def measures(times: Occupied, lows: Ints, highs: Ints) -> dict[str, Ints]:
    """How one device spends each window [low, high), by column: parts that sum to `total_ns`, and what they overlap.

    Computation, exposed communication (nothing computes meanwhile), exposed copies (no kernel runs meanwhile) and idle
    time are the parts. `busy_ns` is the sum of the first three; `communication_ns` and `memcpy_ns` count hidden time
    too. Units: ns.
    """
    computation, kernels, busy = (covered(iv, lows, highs) for iv in (times.computation, times.kernels, times.busy))
    length = np.maximum(highs - lows, 0)
    return {
        "computation_ns": computation,
        "exposed_communication_ns": kernels - computation,
        "exposed_memcpy_ns": busy - kernels,
        "idle_ns": length - busy,
        "busy_ns": busy,
        "communication_ns": covered(times.communication, lows, highs),
        "memcpy_ns": covered(times.memcpy, lows, highs),
        "total_ns": length,
    }


def occupancy(work: pl.DataFrame, lows: Ints, highs: Ints) -> tuple[dict[str, Ints], int]:
    """`measures` of the windows [low, high), as the mean of the devices of this work, and the number of devices.

    The parts of the mean sum to the window too. Without work there is no device, and the first is empty.
    """
    each = [measures(occupied(mine), lows, highs) for _, mine in by_device(work)]
    return mean_of(each), len(each)


_PARTS = ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")


def mean_of(each: Sequence[Mapping[str, Ints]], parts: Iterable[str] = _PARTS) -> dict[str, Ints]:
    """The mean of each entry over devices, in whole numbers. That of `parts` sums to the mean of their sums."""
    if len(each) < 2:
        return dict(each[0]) if each else {}
    sums: dict[str, Ints] = {name: np.sum([one[name] for one in each], axis=0) for name in each[0]}
    means = {name: summed // len(each) for name, summed in sums.items()}
    until: Ints = np.zeros(1, np.int64)
    for name in parts:
        below, until = until, until + sums.get(name, 0)
        if name in means:
            means[name] = until // len(each) - below // len(each)
    if "busy_ns" in means:
        means["busy_ns"] = means["total_ns"] - means["idle_ns"]
    return means


def hidden_ns(work: pl.DataFrame, rows: pl.DataFrame, by: str) -> pl.Series:
    """How long the device of each row (rank, device_id, ts_ns, end_ns) was in work of the kind `by` meanwhile.

    `by` is a field of `Occupied`: `computation` hides communication, `kernels` hide copies. Units: ns.
    """
    numbered = rows[["rank", "device_id", "ts_ns", "end_ns"]].with_row_index("row")
    times = {key: getattr(occupied(mine), by) for key, mine in groups_of(work, ("rank", "device_id"))}
    hidden = np.zeros(rows.height, np.int64)
    for key, mine in groups_of(numbered, ("rank", "device_id")):
        row, starts, ends = (mine[column].to_numpy() for column in ("row", "ts_ns", "end_ns"))
        hidden[row] = covered(times[key], starts, ends)
    return pl.Series("hidden", hidden)
