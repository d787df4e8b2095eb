"""Traces of a few kernels: a timeline, or what was counted of launches."""

from __future__ import annotations

import polars as pl

from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, SPANS, TRACKS
from stepscope.core.trace import Meta, Trace


def trace(launches, *, metrics=(), device=None, path="a.sqlite", **columns):
    """Launches are (name, duration, grid_x, block_x), with None for what is not known.

    Metrics are (launch, metric, unit, value); `columns` are further ones of `kernels`, a value for each launch.
    """
    n = len(launches)
    spans = pl.DataFrame({
        "span_id": range(n), "track_id": [0] * n, "ts_ns": [100 * i for i in range(n)],
        "dur_ns": [launch[1] for launch in launches], "name": [launch[0] for launch in launches],
        "category": ["kernel"] * n,
    })  # fmt: skip
    sizes = {}
    for i, what in ((2, "grid"), (3, "block")):
        known = [launch[i] for launch in launches]
        sizes |= {f"{what}_x": known, **{f"{what}_{a}": [None if k is None else 1 for k in known] for a in "yz"}}
    kernels = pl.DataFrame({"span_id": list(range(n)), **sizes, **columns})
    tables = {
        "spans": SPANS.conform(spans),
        "tracks": TRACKS.conform(pl.DataFrame({"track_id": [0], "device_id": [0], "kind": ["stream"]})),
        "kernels": KERNELS.conform(kernels),
        "devices": DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "name": [device]})),
    }
    if metrics:
        schema = {"span_id": pl.UInt32, "metric": pl.String, "unit": pl.String, "value": pl.Float64}
        tables["kernel_metrics"] = KERNEL_METRICS.conform(pl.DataFrame(list(metrics), schema=schema, orient="row"))
    return Trace(Meta(path, "test"), tables)
