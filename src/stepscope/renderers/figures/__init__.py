"""Every figure by the name of the table that it draws, for pages, files and notebooks alike.

A figure is a pure function of a result table and gives Plotly's own form as plain values, quickly and without Plotly:
`drawn("steps", frame)`. Names in it are escaped. To add one: a `Figure`, a line in `FIGURES`, a test; every page and
file that shows the table then shows it. Other packages offer theirs in the entry-point group `stepscope.figures`.
"""

from __future__ import annotations

import base64
import importlib.util
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.core.registry import Registry
from stepscope.renderers.figures._style import COLOURS, PALETTE, titled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "COLOURS",
    "FIGURES",
    "PALETTE",
    "Drawn",
    "Figure",
    "Link",
    "drawn",
    "find",
    "names",
    "plotly_path",
    "plotly_script",
    "titled",
]

FIGURES = Registry(
    "figure",
    Figure,
    "FIGURE",
    "stepscope.figures",
    {
        "steps": "stepscope.renderers.figures.stacked:STEPS",
        "operators": "stepscope.renderers.figures.ranked:OPERATORS",
        "kernels": "stepscope.renderers.figures.ranked:KERNELS",
        "communication": "stepscope.renderers.figures.stacked:COMMUNICATION",
        "collectives": "stepscope.renderers.figures.collectives",
        "memory": "stepscope.renderers.figures.over_time:MEMORY",
        "timeline": "stepscope.renderers.figures.over_time:TIMELINE",
        "device-utilisation": "stepscope.renderers.figures.over_time:DEVICE_UTILISATION",
        "roofline": "stepscope.renderers.figures.roofline",
        "utilisation": "stepscope.renderers.figures.over_time:UTILISATION",
        "python-stacks": "stepscope.renderers.figures.python_stacks",
        "call-stacks": "stepscope.renderers.figures.python_stacks:CALL_STACKS",
        "diff": "stepscope.renderers.figures.ranked:DIFF",
        "parts": "stepscope.renderers.figures.parts",
        "hang-matrix": "stepscope.renderers.figures.hang_matrix",
        "history": "stepscope.renderers.figures.over_time:HISTORY",
    },
)


def names() -> list[str]:
    """Names of the tables that can be drawn."""
    return FIGURES.names()


def find(name: str) -> Figure:
    """The figure that draws the table of that name. Raises UnknownName."""
    return FIGURES.find(name)


def drawn(name: str, frame: pl.DataFrame, link: Link | None = None) -> Drawn | None:
    """The figure of the table of that name; None where none goes with it, its columns are missing, or nothing is known.

    It has no title: pages have a heading of their own. `titled` gives it one.
    """
    if frame.is_empty() or name not in FIGURES:
        return None
    figure = find(name)
    return figure(frame, link) if figure.fits(frame) else None


def plotly_path() -> Path:
    """Plotly's script, which its Python package ships. Raises StepscopeError if the package is not complete."""
    spec = importlib.util.find_spec("plotly")
    where = None if spec is None or spec.origin is None else Path(spec.origin).parent / "package_data" / "plotly.min.js"
    if where is None or not where.is_file():
        raise StepscopeError("plotly's script is not installed", "pip install --force-reinstall plotly")
    return where


@cache
def plotly_script() -> tuple[str, str]:
    """Plotly's script, and the same packed for a page that carries it: zlib's format in base64, less than half as long.

    Raises StepscopeError if the package is not complete.
    """
    text = plotly_path().read_text("utf-8")
    return text, base64.b64encode(zlib.compress(text.encode(), 7)).decode()
