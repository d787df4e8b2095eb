"""How each resource fared in each cycle: the samples of a recording as a time-weighted mean per cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.cycle_membership import HOST
from stepscope.analyses.common.sample_hold import means, series_of
from stepscope.analyses.common.sampled import pieces_of, resources_of, spread_of
from stepscope.comparison.model import COUNTERS_SEEN, OWN_PROCESS, RESOURCES

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.analyses.cycles.functions import Functions

_SECOND = 1_000_000_000
_KIB = 1024
#: Functions of each accelerator during which its resources are looked at: those that take most time.
_MOST = 8


def seen_counters(
    counters: pl.DataFrame, pid: int | None, siblings: Collection[int], low_ns: int, high_ns: int
) -> pl.DataFrame:
    """The samples from low to high and a second around, in order of time, with the process' own under `process`.

    `counters` is a trace's table; samples of `siblings`, processes observed by themselves, are left out, and those
    without a number. kB (of 1024) become bytes.
    """
    device = pl.col("device").cast(pl.String)
    near = counters.filter(
        pl.col("ts_ns").is_between(low_ns - _SECOND, high_ns + _SECOND) & pl.col("value").is_finite()
    ).filter(~device.is_in([f"pid:{sibling}" for sibling in siblings if sibling != pid]) | device.is_null())
    own = pl.when(device == f"pid:{pid}").then(pl.lit(OWN_PROCESS)).otherwise(device)
    in_kib = pl.col("unit").cast(pl.String) == "kB"
    found = near.with_columns(
        device=own,
        value=pl.when(in_kib).then(pl.col("value") * _KIB).otherwise("value"),
        unit=pl.when(in_kib).then(pl.lit("bytes")).otherwise(pl.col("unit").cast(pl.String)),
    )
    return COUNTERS_SEEN.conform(found).sort("ts_ns", maintain_order=True)


def by_cycle(counters: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """RESOURCES of whole cycles, from what `seen_counters` returns. Where nothing is known there is no row."""
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    parts = []
    for device, metric, unit, held, values in series_of(counters):
        mu, count = means(held, values, lows, highs)
        known = np.flatnonzero(~np.isnan(mu))
        frame = pl.DataFrame({"cycle": cycles["cycle"].gather(known), "mu": mu[known], "n_samples": count[known]})
        named = {"device": device, "metric": metric, "unit": unit}
        parts.append(RESOURCES.conform(frame.with_columns(pl.lit(v, pl.String).alias(k) for k, v in named.items())))
    return pl.concat([RESOURCES.empty(), *parts])


def by_function(
    counters: pl.DataFrame, functions: Functions, cycles: pl.Series, spans: pl.DataFrame, whole: pl.DataFrame
) -> pl.DataFrame:
    """RESOURCES of accelerators during the functions that take most of their time: what their work met with.

    `cycles` are the numbers of the cycles, `whole` is what `by_cycle` returns: it has the numbers of samples.
    """
    frame = functions.frame.with_columns(cycle=cycles.gather(functions.frame["row"])).with_columns(
        pl.col("device", "name").cast(pl.String), group=pl.int_range(pl.len())
    )
    longest = frame.group_by("device", "name").agg(pl.col("total_ns").sum()).sort(-pl.col("total_ns"), "device", "name")
    longest = longest.filter(pl.col("device") != HOST).group_by("device", maintain_order=True).head(_MOST)
    frame = frame.join(longest.select("device", "name"), on=["device", "name"], how="semi")
    starts = spans["ts_ns"].to_numpy()[functions.events]
    ends = starts + spans["dur_ns"].to_numpy()[functions.events]
    parts = [RESOURCES.empty()]
    for together in resources_of(counters.filter(pl.col("device").cast(pl.String).is_in(frame["device"].implode()))):
        chosen = np.zeros(functions.frame.height, np.bool_)
        chosen[frame["group"].to_numpy()] = True
        mine = chosen[functions.group]
        pieces = pieces_of(together[0].held, starts[mine], ends[mine], functions.group[mine], functions.frame.height)
        for one in together:
            mu, _ = spread_of(pieces, one.values)
            rows = frame.filter(pl.col("device") == one.device).with_columns(
                mu=pl.Series(mu).gather(pl.Series(frame.filter(pl.col("device") == one.device)["group"])),
                metric=pl.lit(one.metric),
                unit=pl.lit(one.unit, pl.String),
            )
            parts.append(RESOURCES.conform(rows.filter(pl.col("mu").is_not_nan())))
    keys = ["cycle", "device", "metric"]
    counted = whole.select(*keys, "n_samples")
    found = pl.concat(parts).drop("n_samples").join(counted, on=keys, how="left", maintain_order="left")
    return RESOURCES.conform(found.with_columns(pl.col("n_samples").fill_null(0)))
