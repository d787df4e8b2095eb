"""Resources that were sampled: what each was between its samples, and its mean during events.

A sample covers more than its own instant. A rate, or a share of time, covers the interval since the sample before it. A
level (a clock, a temperature, bytes in use) is the best estimate up to half way to its neighbours. More than one
sampling period from its samples, a resource is unknown: neither 0 nor its last value.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.core.intervals import Ints

Floats = NDArray[np.float64]

#: What makes a resource one: whose it is, and what was sampled.
SERIES = ("device", "metric")
#: A sample within a tenth of the usual distance from the one before belongs to the same reading, of another disk, say.
_SAME_READING = 0.1


class Stretches(msgspec.Struct, frozen=True):
    """The stretches of time that samples cover: disjoint, in order, one for each sample."""

    starts: Ints
    ends: Ints
    times: Ints  # of the samples


def stretches(times: Ints, *, backward: bool) -> Stretches:
    """The stretch that each of these (one or more) samples covers; `times` ascend and are distinct.

    `backward`: a sample covers the interval before it, as rates do, two sampling periods at most. Otherwise it stands
    up to half way to its neighbours, one period at most. The last one stands a period longer, the first of a level a
    period before. The sampling period is the median distance between samples. A single sample has none: it stands
    for its own instant, a stretch of 1 ns. Units: ns.
    """
    gaps = np.diff(times)
    period = int(np.median(gaps)) if gaps.size else 0
    if backward:
        # A late sample still covers all the time since the last one, within reason.
        starts = times - np.concatenate(([period], np.minimum(gaps, 2 * period)))
        ends = times.copy()
    else:
        half = np.minimum(gaps // 2, period)
        starts = times - np.concatenate(([period], half))
        ends = times + np.concatenate((half, [0]))
    ends[-1] += max(period, 1)
    return Stretches(starts, ends, times)


def means(held: Stretches, values: Floats, lows: Ints, highs: Ints) -> tuple[Floats, Ints]:
    """Time-weighted mean in each window [low, high), NaN where nothing is known, and the samples taken in it."""
    level = float(np.median(values))  # taken off, so that small differences of large values keep their digits
    lengths = (held.ends - held.starts).astype(np.float64)
    knots = np.stack((held.starts, held.ends), axis=1).ravel().astype(np.float64)

    def within(steps: Floats) -> Floats:
        after = np.cumsum(steps)
        curve = np.stack((after - steps, after), axis=1).ravel()
        sums: Floats = np.interp(highs, knots, curve) - np.interp(lows, knots, curve)
        return sums

    known = within(lengths)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = within(lengths * (values - level)) / known + level
    count = np.searchsorted(held.times, highs) - np.searchsorted(held.times, lows)
    return np.where(known > 0, mean, np.nan), count


def covers_the_past(units: pl.Series) -> pl.Series:
    """Whether samples in each unit cover the interval before them: rates, and percent of time busy."""
    return units.cast(pl.String).str.contains(r"/s$|^%$").fill_null(value=False)


def series_of(counters: pl.DataFrame) -> list[tuple[str, str, str | None, Stretches, Floats]]:
    """Each resource with its device, metric, unit, stretches and values, sorted by the first two.

    `counters` has the columns device, metric, unit, ts_ns, value. Samples without a device are of nobody in particular
    and left out, as are those without a number. Several samples of one reading (of disks that stand under one name,
    say) count as one, their mean.
    """
    if counters.is_empty():
        return []
    sound = counters.filter(
        pl.col("device").is_not_null(), pl.col("metric").is_not_null(), pl.col("value").is_finite()
    ).select(pl.col("device", "metric", "unit").cast(pl.String), "ts_ns", "value")
    series = []
    for (device, metric), mine in sound.sort(*SERIES, "ts_ns").partition_by(SERIES, as_dict=True).items():
        times, values = _readings(mine["ts_ns"].to_numpy(), mine["value"].to_numpy())
        unit = mine["unit"][0]
        backward = bool(covers_the_past(mine["unit"].head(1))[0])
        series.append((str(device), str(metric), unit, stretches(times, backward=backward), values))
    return series


def _readings(times: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Samples so close together that they are of one reading as one: their mean, at the time of the first."""
    gaps = np.diff(times)
    if gaps.size == 0:
        return times, values
    begins = np.concatenate(([True], gaps > _SAME_READING * float(np.quantile(gaps, 0.9))))
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, times.size))
    return times[first], np.add.reduceat(values, first) / sizes


class Resource(msgspec.Struct, frozen=True):
    """A sampled metric of a device, with its value over time."""

    device: str
    metric: str
    unit: str | None
    held: Stretches
    values: Floats


class Pieces(msgspec.Struct, frozen=True):
    """Time that the events of each group spent in each stretch: one row per group and stretch, sorted by group."""

    group: Ints
    stretch: Ints
    time_ns: Floats
    n_groups: int
    #: Events of each group, and how many of them had a sample taken while they ran.
    events: Ints
    sampled: Ints


def resources_of(counters: pl.DataFrame) -> list[list[Resource]]:
    """The sampled resources, grouped by the times of their samples."""
    resources: dict[tuple[bytes, bytes], list[Resource]] = {}
    for device, metric, unit, held, values in series_of(counters):
        together = resources.setdefault((held.times.tobytes(), held.starts.tobytes()), [])
        together.append(Resource(device, metric, unit, held, values))
    return list(resources.values())


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
