"""What each function took of each cycle, and how each resource was used meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.processes import of_each
from stepscope.analyses.common.sampled import Resource, pieces_of, resources_of, spread_of
from stepscope.analyses.cycles.cycles import find_cycles, host_bounds
from stepscope.analyses.cycles.functions import Functions, functions_of, own_of
from stepscope.analyses.resources.counters import CORE
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.intervals import Bools, Ints
from stepscope.core.names import map_names, shorten
from stepscope.core.result_tables import ATTRIBUTION, SAMPLED
from stepscope.core.schema import COUNTERS, DEVICES, STEPS

#: What a resource adds to the row of a function.
_VALUES = ATTRIBUTION.empty().select("resource", "metric", "unit", "mu", "sigma", "sampled")

_NIC = r"^(net|nic|rdma|ib)_"
_DISK = r"^disk_"
#: Functions that may wait for a disk.
_STORAGE = ("io", "dataloader")


def attribution(
    spans: pl.DataFrame,
    tracks: pl.DataFrame,
    steps: pl.DataFrame = STEPS.empty(),
    devices: pl.DataFrame = DEVICES.empty(),
    counters: pl.DataFrame = COUNTERS.empty(),
    *,
    anchor: str = "auto",
) -> pl.DataFrame:
    """One row per cycle, function, and metric that matters for it, sorted by cycle and then by time.

    `beta_ratio` is the summed time of the function's events over the cycle's; it is equal in all rows of the function.
    Host work counts for the cycle in which it begins, device work for the cycle that queued it. `mu` is the mean of the
    metric over the time of the events, `sigma` its standard deviation over that time. A sample holds for the time
    around it, at most one sampling period, also across the borders of cycles; elsewhere there is no value. A function
    without samples has one row, without a metric.

    Functions on a GPU get the metrics of that GPU; communication also gets those of the network. Functions on the host
    get those of the host, of their process and of the processors (their mean); I/O and data loading also get those of
    disks. `resource` says whose metric it is. `anchor` is as in `cycles`.

    Units: those of the metric; ns; ratios 0..1.
    Source: beta and mu as in LatencyPrism, which samples within the cycle only, pools the GPUs, takes the mean of the
    interpolated ends of an event, and leaves the differences between events out of sigma.
    Raises MissingTable, StepscopeError (there are no cycles).
    """
    tables = {"spans": spans, "tracks": tracks, "steps": steps}
    parts = []
    for pid, mine, cycles in of_each(
        tables, lambda mine: find_cycles(mine["spans"], tracks, mine["steps"], devices, anchor).frame
    ):
        own = own_of(mine["spans"], tracks, devices)
        functions = functions_of(mine["spans"], own, *host_bounds(cycles))
        parts.append(attribution_of(functions, mine["spans"], cycles, counters, pid))
    return pl.concat(parts)


def attribution_of(
    functions: Functions, spans: pl.DataFrame, cycles: pl.DataFrame, counters: pl.DataFrame, pid: int | None
) -> pl.DataFrame:
    """The table ATTRIBUTION of these functions and cycles, in the same order."""
    frame = functions.frame
    starts = spans["ts_ns"].to_numpy()[functions.events]
    ends = np.maximum(starts + spans["dur_ns"].to_numpy()[functions.events], starts + 1)
    talks = talks_to_ranks(frame["name"]).fill_null(value=False).to_numpy()
    parts = []
    has_metric = np.zeros(frame.height, np.bool_)
    for together in resources_of(_near(counters, cycles)):
        chosen = [(resource, _bears_on(resource, frame, talks, pid)) for resource in _merged(together)]
        every = np.logical_or.reduce([mask for _, mask in chosen])
        if not every.any():
            continue
        of_event = every[functions.group]
        pieces = pieces_of(together[0].held, starts[of_event], ends[of_event], functions.group[of_event], frame.height)
        sampled = np.where(pieces.sampled == 0, 2, np.where(pieces.sampled == pieces.events, 0, 1))
        for resource, mask in chosen:
            mu, sigma = spread_of(pieces, resource.values)
            rows = np.flatnonzero(mask & ~np.isnan(mu))
            has_metric[rows] = True
            parts.append(_values(resource, rows, mu, sigma, sampled))
    without = np.flatnonzero(~has_metric)
    values = pl.concat([_VALUES, *parts, pl.DataFrame({"at": without})], how="diagonal")
    return _rows(frame, cycles, values, pid)


def _near(counters: pl.DataFrame, cycles: pl.DataFrame) -> pl.DataFrame:
    """Samples within the cycles and a second around; those of processors as their mean, under one name."""
    ends = cycles["ts_ns"] + cycles["dur_ns"]
    low, high = int(cycles["ts_ns"].to_numpy().min()), int(ends.to_numpy().max())
    near = counters.filter(pl.col("ts_ns").is_between(low - 10**9, high + 10**9))
    near = near.with_columns(pl.col("device").cast(pl.String).str.replace(CORE, "cpu"))
    keys = ["device", "metric", "unit", "ts_ns"]
    return near.group_by(keys).agg(pl.col("value").mean())


def _merged(together: Sequence[Resource]) -> list[Resource]:
    """Without the processors' means of metrics that the host has itself."""
    of_host = {resource.metric for resource in together if resource.device == "host"}
    return [resource for resource in together if resource.device != "cpu" or resource.metric not in of_host]


def _bears_on(resource: Resource, frame: pl.DataFrame, talks: Bools, pid: int | None) -> Bools:
    """Which functions the resource may matter for."""
    device, metric = frame["device"].cast(pl.String), pl.Series([resource.metric])
    on_host = (device == "host").to_numpy()
    if resource.device.startswith("gpu"):
        mask: Bools = (device == resource.device).to_numpy()
    elif metric.str.contains(_NIC)[0]:
        mask = talks
    elif metric.str.contains(_DISK)[0]:
        mask = on_host & frame["category"].is_in(_STORAGE).to_numpy()
    elif resource.device == f"pid:{pid}":
        mask = ~on_host if resource.metric.startswith("process_gpu") else on_host
    else:
        mask = on_host if resource.device in {"host", "cpu"} else np.zeros(frame.height, np.bool_)
    return mask


def _values(
    resource: Resource, rows: Ints, mu: NDArray[np.float64], sigma: NDArray[np.float64], sampled: Ints
) -> pl.DataFrame:
    texts = {"resource": resource.device, "metric": resource.metric, "unit": resource.unit}
    frame = pl.DataFrame({"at": rows, "mu": mu[rows], "sigma": sigma[rows]})
    labels = pl.Series(SAMPLED, dtype=pl.Enum(SAMPLED)).gather(sampled[rows])
    return frame.with_columns(sampled=labels, **{name: pl.lit(text, pl.Categorical()) for name, text in texts.items()})


def _rows(frame: pl.DataFrame, cycles: pl.DataFrame, values: pl.DataFrame, pid: int | None) -> pl.DataFrame:
    row = frame["row"]
    whole = frame.with_columns(
        cycle=cycles["cycle"].gather(row),
        beta_ratio=pl.col("total_ns") / cycles["dur_ns"].gather(row),
        short_name=map_names(frame["name"], shorten, pl.String()).cast(pl.Categorical),
    ).with_row_index("at")
    whole = whole.sort("row", -pl.col("total_ns"), "device", pl.col("name").cast(pl.String)).with_row_index("place")
    rows = values.with_columns(pl.col("at").cast(pl.UInt32)).join(whole, on="at", how="left")
    rows = rows.sort("place", pl.col("metric").cast(pl.String), pl.col("resource").cast(pl.String))
    host = cycles["host"][0] if cycles.height else None
    return ATTRIBUTION.conform(rows.with_columns(pid=pl.lit(pid, pl.Int64), host=pl.lit(host, pl.String)))


ANALYSIS = analysis_of(
    attribution, ATTRIBUTION, "What each function took of each cycle, and how each resource was used meanwhile."
)
