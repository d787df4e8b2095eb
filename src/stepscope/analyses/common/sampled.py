"""How resources fared while functions ran: the samples that stand during each function's events, weighted by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.sample_hold import Stretches, series_of

__all__ = ["Pieces", "Resource", "pieces_of", "resources_of", "spread_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resource:
    """A sampled metric of something, with what it stood at over time."""

    device: str
    metric: str
    unit: str | None
    held: Stretches
    values: Floats


@dataclass(frozen=True, slots=True)
class Pieces:
    """Time that the events of each group spent in each stretch: one row per group and stretch, sorted by group."""

    group: Ints
    stretch: Ints
    time_ns: Floats
    n_groups: int
    #: Events of each group, and how many of them had a sample taken while they ran.
    events: Ints
    sampled: Ints


def resources_of(counters: pl.DataFrame) -> list[list[Resource]]:
    """The resources that samples tell of, those sampled at the same times together."""
    found: dict[tuple[bytes, bytes], list[Resource]] = {}
    for device, metric, unit, held, values in series_of(counters):
        together = found.setdefault((held.times.tobytes(), held.starts.tobytes()), [])
        together.append(Resource(device, metric, unit, held, values))
    return list(found.values())


def pieces_of(held: Stretches, starts: Ints, ends: Ints, group: Ints, n_groups: int) -> Pieces:
    """How the events [start, end) of each group lie in the stretches. Events outside all of them have no row."""
    first = np.searchsorted(held.ends, starts, side="right")
    count = np.maximum(np.searchsorted(held.starts, ends) - first, 0)
    event = np.repeat(np.arange(starts.size), count)
    stretch = np.arange(event.size) - np.repeat(np.cumsum(count) - count, count) + first[event]
    time = np.minimum(ends[event], held.ends[stretch]) - np.maximum(starts[event], held.starts[stretch])
    key, at = np.unique(group[event] * held.times.size + stretch, return_inverse=True)
    inside = np.searchsorted(held.times, ends) > np.searchsorted(held.times, starts)
    return Pieces(
        group=key // max(held.times.size, 1),
        stretch=key % max(held.times.size, 1),
        time_ns=np.bincount(at, np.maximum(time, 0), minlength=key.size).astype(np.float64),
        n_groups=n_groups,
        events=np.bincount(group, minlength=n_groups),
        sampled=np.bincount(group[inside], minlength=n_groups),
    )


def spread_of(pieces: Pieces, values: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the values in each group, weighted by time; NaN where nothing is known.

    The deviation is that of the value over all the time of the group's events: within events and between them.
    """
    known = np.bincount(pieces.group, pieces.time_ns, minlength=pieces.n_groups)
    level = float(np.median(values))  # taken off, so that squares of large values keep their digits
    taken = values[pieces.stretch] - level
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(pieces.group, pieces.time_ns * taken, minlength=pieces.n_groups) / known
        square = np.bincount(pieces.group, pieces.time_ns * taken**2, minlength=pieces.n_groups) / known
        sigma = np.sqrt(np.maximum(square - mean**2, 0.0))
    return mean + level, sigma
