"""The kernels that cost most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.renderers.figures._ranked import ranked
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    import polars as pl


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A bar for each: its summed time."""
    return ranked(frame, link, "total_ns")


FIGURE = Figure("kernels", "Kernels, summed time", "kernels with most time", draw, ("name", "total_ns"))
