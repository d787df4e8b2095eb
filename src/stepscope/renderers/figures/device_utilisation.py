"""How well kernels used each device over time, as far as their launches tell."""

from __future__ import annotations

from types import MappingProxyType

import polars as pl

from stepscope.renderers.figures._strip import strip
from stepscope.renderers.figures.figure import Drawn, Figure, Link

_MEASURES = {
    "busy_ratio": "busy",
    "est_sm_efficiency_ratio": "est. SM efficiency",
    "est_occupancy_ratio": "est. occupancy",
    "tensor_core_ratio": "tensor cores",
}


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  a line leads nowhere
    """A lane per device, a line for each ratio."""
    label = pl.coalesce("device", pl.format("device {}", "device_id"), pl.lit("device"))
    whose = [pl.format("rank {} ", "rank")] if frame["rank"].n_unique() > 1 else []
    lanes = frame.with_columns(trace=pl.concat_str(*whose, label)).drop("rank")
    return strip(lanes, _MEASURES, x="ts_ns", length="window_ns", x_title="time")


FIGURE = Figure(
    "device-utilisation",
    "Device utilisation over time",
    "busy, est. SM efficiency, est. occupancy and tensor cores over time",
    draw,
    ("rank", "device_id", "device", "ts_ns", "window_ns", *_MEASURES),
    MappingProxyType({"by": "time"}),
)
