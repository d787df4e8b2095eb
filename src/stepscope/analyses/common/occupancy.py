"""How devices spend windows of time: the one definition of busy, computing, exposed and idle time, for each device.

A device's parts of a window sum to the window. What several devices of a process do is the mean of their parts: two
devices that work in turns are both idle half of the time, and nothing that either does hides what the other lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import COMMUNICATION, COMPUTATION, MEMCPY, groups_of, on_devices
from stepscope.core.intervals import Intervals, Ints, covered, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Occupied", "by_device", "hidden_ns", "mean_of", "measures", "occupancy", "occupied"]


@dataclass(frozen=True, slots=True)
class Occupied:
    """When a set of work occupied its device, by kind, as disjoint intervals."""

    computation: Intervals
    communication: Intervals
    memcpy: Intervals
    kernels: Intervals  # computation or communication
    busy: Intervals


def occupied(work: pl.DataFrame) -> Occupied:
    """When this work of one device occupied it, by kind."""
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
    """The mean of each entry over devices, in whole numbers. The mean of `parts` sums to the mean of their sums.

    Units: those of the entries.
    """
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
    numbered = rows.select("rank", "device_id", "ts_ns", "end_ns").with_row_index("row")
    times = {key: getattr(occupied(mine), by) for key, mine in groups_of(work, ("rank", "device_id"))}
    parts = [
        mine.select("row", hidden=pl.Series(covered(times[key], mine["ts_ns"].to_numpy(), mine["end_ns"].to_numpy())))
        for key, mine in groups_of(numbered, ("rank", "device_id"))
    ]
    return pl.concat(parts).sort("row")["hidden"] if parts else pl.Series("hidden", [], pl.Int64)
