"""The state of resources during the functions of a recording: μ, as the published tool computes it from samples.

Source: the description of the published tool's first stage; of its two tables of which counter goes with which type of
event, the one that its published files follow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_USE = ("process_gpu_usage", "gpu_usage", "gpu_sm_util", "gpu_sm_occupancy")
_LINKS = ("gpu_link_transmit", "gpu_link_receive")
_ATTACHED = {
    "gpu_compute": (*_USE, "gpu_mem_used", "gpu_frequency", "gpu_sm_frequency", "gpu_mem_frequency", *_LINKS),
    "gpu_comm": _USE,
    "gpu_memcpy_h2d": ("gpu_pcie_transmit",),
    "gpu_memcpy_d2h": ("gpu_pcie_transmit",),
    "gpu_memcpy_d2d": _LINKS,
    "oncpu": ("cpu_frequency", "host_cpu_usage", "process_cpu_usage"),
    "runq": ("host_cpu_usage", "process_cpu_usage"),
    "disk_read_and_write": ("disk_usage",),
}
#: The instance of samples that belong to no process and no GPU.
_SHARED = -1
_MIN_SAMPLES = 3
_CORES = (8, 16, 24, 32, 48, 64, 96, 128)
_KEYS = ("cycle", "pid", "device", "name")


def instanced(counters: pl.DataFrame) -> pl.DataFrame:
    """Samples with `instance`: the process or GPU that they belong to, −1 for all others; sorted by time."""
    gpu = pl.col("device").cast(pl.String).str.extract(r"^gpu(\d+)$").cast(pl.Int64)
    metric = pl.col("metric").cast(pl.String)
    instance = pl.when(metric.str.starts_with("process_")).then("pid").when(metric.str.starts_with("gpu_")).then(gpu)
    return counters.drop_nulls("value").select(
        "ts_ns", "value", metric=metric, instance=instance.otherwise(_SHARED).fill_null(_SHARED).cast(pl.Int64)
    )  # fmt: skip


def cores_of(samples: pl.DataFrame) -> int:
    """The host's cores, guessed from the most that its processes used; 1 if that is unknown."""
    used = samples.filter(pl.col("metric") == "process_cpu_usage").group_by("instance").agg(pl.col("value").max())
    if used.is_empty():
        return 1
    total = sum(math.ceil(value / 100) for value in used["value"].to_list())
    return min(_CORES, key=lambda cores: abs(cores - total))


def metrics(events: pl.DataFrame, samples: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """One row per cycle, process, device, function and metric: recorded_mu, recorded_sigma, sampled.

    `events` are those of `merged_runs` and `samples` those of `instanced`. For each cycle `windows` has the times low
    and high between which samples count. With three samples during an event, μ is their mean and its spread their
    standard deviation. With fewer, the metric is a line through the cycle's samples: μ is the mean of its values at
    both ends of the event, and the spread is half their difference. Functions whose metrics have no sample in the cycle
    have no row.
    """
    inside = samples.join(windows, how="cross").filter(pl.col("ts_ns").is_between("low", "high"))
    inside = inside.sort("cycle", "metric", "instance", "ts_ns", maintain_order=True)
    groups = inside.group_by("cycle", "metric", "instance", maintain_order=True).agg(n=pl.len().cast(pl.Int64))
    groups = groups.with_columns(first=pl.col("n").cum_sum() - pl.col("n")).with_row_index("group")
    pairs = _paired(events, groups)
    mu, sigma, is_real = _during(pairs, inside, groups)
    weight = pl.col("weight")
    pairs = pairs.with_columns(mu=mu, sigma=sigma, is_real=is_real).with_columns(
        # Events without length count alike.
        weight=pl.when(weight.sum().over(*_KEYS, "metric") > 0).then(weight).otherwise(1)
    )
    averages = pairs.group_by(*_KEYS, "metric").agg(
        mu=(pl.col("mu") * weight).sum() / weight.sum(),
        sigma=((pl.col("sigma") ** 2 * weight).sum() / weight.sum()).sqrt(),
    )
    real = pairs.group_by(_KEYS).agg(n_real=pl.col("is_real").sum(), n=pl.len())
    sampled = (
        pl.when(pl.col("n_real") == pl.col("n")).then(pl.lit("all"))
        .when(pl.col("n_real") == 0).then(pl.lit("none"))
        .otherwise(pl.lit("some"))
    )  # fmt: skip
    scale = _scale(pl.col("metric"), cores_of(samples))
    return averages.join(real, on=_KEYS, nulls_equal=True).select(
        *_KEYS, "metric", recorded_mu=pl.col("mu") * scale, recorded_sigma=pl.col("sigma") * scale, sampled=sampled
    )


def _paired(events: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Each event with each of its metrics that has samples: those of its process or GPU, else those of the machine."""
    attached = [(kind, metric) for kind, names in _ATTACHED.items() for metric in names]
    kinds = pl.DataFrame(attached, schema=["type", "metric"], orient="row")
    gpu = pl.col("device").str.extract(r"^gpu(\d+)$").cast(pl.Int64)
    wanted = pl.when(pl.col("metric").str.starts_with("process_")).then("pid").otherwise(gpu).fill_null(_SHARED)
    pairs = events.join(kinds, on="type", maintain_order="left").with_columns(wanted=wanted)
    own = groups.select("cycle", "metric", "group", wanted="instance")
    shared = groups.filter(pl.col("instance") == _SHARED).select("cycle", "metric", shared="group")
    pairs = pairs.join(own, on=["cycle", "metric", "wanted"], how="left", maintain_order="left")
    pairs = pairs.join(shared, on=["cycle", "metric"], how="left", maintain_order="left")
    return pairs.with_columns(pl.coalesce("group", "shared").alias("group")).drop_nulls("group")


def _during(pairs: pl.DataFrame, samples: pl.DataFrame, groups: pl.DataFrame) -> tuple[pl.Series, ...]:
    """μ and its spread for each pair, and whether it has samples of its own. `samples` are sorted by group and time."""
    group = pairs["group"].to_numpy().astype(np.int64)
    times, values = samples["ts_ns"].to_numpy(), samples["value"].to_numpy()
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    if not group.size:
        return pl.Series([], dtype=pl.Float64), pl.Series([], dtype=pl.Float64), pl.Series([], dtype=pl.Boolean)
    # All groups on one axis, one after the other.
    low = min(times.min(), start.min())
    width = int(max(times.max(), end.max()) - low) + 1
    axis = np.repeat(np.arange(groups.height), groups["n"].to_numpy()) * width + (times - low)
    first = groups["first"].to_numpy()[group]
    last = first + groups["n"].to_numpy()[group] - 1
    places = [group * width + (points - low) for points in (start, end)]
    begin, stop = np.searchsorted(axis, places[0]), np.searchsorted(axis, places[1], side="right")
    n = np.maximum(stop - begin, 1)
    sums, squares = (np.concatenate([[0.0], np.cumsum(column)]) for column in (values, values**2))
    mean = (sums[stop] - sums[begin]) / n
    spread = np.sqrt(np.maximum((squares[stop] - squares[begin]) / n - mean**2, 0))
    at_start, at_end = (_on_line(axis, values, place, first, last) for place in places)
    is_real = stop - begin >= _MIN_SAMPLES
    mu = np.where(is_real, mean, (at_start + at_end) / 2)
    sigma = np.where(is_real, spread, np.abs(at_end - at_start) / 2)
    return pl.Series(mu), pl.Series(sigma), pl.Series(is_real)


def _on_line(axis: Ints, values: Floats, place: Ints, first: Ints, last: Ints) -> Floats:
    """The value at each place on the line through the samples first … last; beyond them the nearest."""
    right = np.clip(np.searchsorted(axis, place), first, last)
    left = np.clip(right - 1, first, last)
    gap = axis[right] - axis[left]
    part = np.clip((place - axis[left]) / np.where(gap > 0, gap, 1), 0.0, 1.0)
    return np.where(gap > 0, values[left] + (values[right] - values[left]) * part, values[right])


def _scale(metric: pl.Expr, cores: int) -> pl.Expr:
    """The factor that turns a sample into 100 μ."""
    divided = metric.str.contains("usage|rate|util|occupancy")
    return pl.when(metric == "process_cpu_usage").then(1 / cores).when(divided).then(1.0).otherwise(100.0)
