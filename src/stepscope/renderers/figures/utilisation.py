"""How busy tensor cores, memory and multiprocessors were over the time of kernels laid end to end."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from stepscope.renderers.figures._strip import strip
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    import polars as pl

_MEASURES = {"tensor_ratio": "tensor cores", "dram_ratio": "memory bandwidth", "sm_ratio": "multiprocessors"}


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  a line leads nowhere
    """A line for each ratio, and below them the class of kernels that took most of each stretch."""
    return strip(frame, _MEASURES, x="from_ns", length="total_ns", x_title="time of kernels laid end to end")


FIGURE = Figure(
    "utilisation",
    "Utilisation over time",
    "tensor cores, memory and multiprocessors over time",
    draw,
    ("from_ns", "total_ns", "kernel_class", *_MEASURES),
    MappingProxyType({"by": "time"}),
)
