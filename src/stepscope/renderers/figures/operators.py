"""The operators that cost most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.renderers.figures._ranked import ranked
from stepscope.renderers.figures._style import known
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    import polars as pl


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A bar for each: device time of its own where a device was recorded, else host time of its own."""
    return ranked(frame, link, "device_self_ns" if known(frame, "device_self_ns") else "host_self_ns")


FIGURE = Figure("operators", "Operators, time of their own", "operators with most time of their own", draw, ("name",))
