"""Names with most of something, as horizontal bars: kernels and operators by their time, and what changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.step_parts import COMPUTATION
from stepscope.core.units import duration, percent
from stepscope.renderers.figures._style import (
    COLOURS,
    LONGER,
    SHORTER,
    axis,
    clipped,
    first_of,
    known,
    layout,
    links,
    scaled,
    shown_names,
)
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BARS = 15
_MS = 1e6
_ROOM = 48


def draw_kernels(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A bar for each kernel: its summed time."""
    return ranked(frame, link, "total_ns")


def draw_operators(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A bar for each operator: its own device time where a device was recorded, else its own host time."""
    return ranked(frame, link, "device_self_ns" if known(frame, "device_self_ns") else "host_self_ns")


def ranked(frame: pl.DataFrame, link: Link | None, column: str) -> Drawn | None:
    """A bar for each name with most time in a column of ns, summed over rows, the largest on top."""
    if not known(frame, "name", column):
        return None
    key = pl.col("name").cast(pl.String).fill_null("unknown")
    sums = frame.group_by(key, maintain_order=True).agg(pl.col(column).sum()).sort(column, descending=True)
    some = sums.filter(pl.col(column) > 0)
    if some.is_empty():
        return None
    top = some.head(_MOST_BARS).reverse()
    whole = frame[column].sum()
    texts = [f"{duration(v)} ({percent(v / whole)})" for v in top[column]]
    note = first_of(top.height, some.height)
    return _bars(
        top, top["name"].to_list(), column, link, note=note, title="ms", text=texts, textposition="auto",
        marker={"color": COLOURS[COMPUTATION]},
    )  # fmt: skip


def draw_diff(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A bar for each operator or part that changed most: longer to the right, shorter to the left."""
    key = next((c for c in ("name", "part") if known(frame, c)), None)
    if key is None or not known(frame, "delta_ns"):
        return None
    changed = frame.filter(pl.col("delta_ns").abs() > 0).sort(pl.col("delta_ns").abs(), descending=True)
    if changed.is_empty():
        return None
    top = changed.head(_MOST_BARS).reverse()
    names = ["unknown" if name is None else str(name) for name in top[key]]
    note = first_of(top.height, changed.height, "changes")
    texts = [duration(v) for v in top["delta_ns"]]
    colours = [LONGER if v > 0 else SHORTER for v in top["delta_ns"]]
    return _bars(top, names, "delta_ns", link, note=note, title="change per step, ms", text=texts,
                 marker={"color": colours})  # fmt: skip


def _bars(
    rows: pl.DataFrame, names: Sequence[str], column: str, link: Link | None, *, note: str, title: str, **bars: Any
) -> Drawn:
    """A bar for each row, the first row at the bottom."""
    # Placed by number, not by name: names that may be equal once shortened get bars of their own.
    places = list(range(rows.height))
    data = [{
        "type": "bar", "orientation": "h", "x": scaled(rows[column], _MS), "y": places, "customdata": links(rows, link),
        "hovertext": [clipped(name, 160) for name in names], "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>",
        **bars,
    }]  # fmt: skip
    texts = shown_names(names, _ROOM)
    look = layout(note=note, height=60 + 24 * rows.height, legend="")
    return {"data": data, "layout": {**look, "xaxis": axis(title), "yaxis": axis(tickvals=places, ticktext=texts)}}


KERNELS = Figure("kernels", "Kernels, summed time", "kernels with most time", draw_kernels, ("name", "total_ns"))
OPERATORS = Figure(
    "operators", "Operators, time of their own", "operators with most time of their own", draw_operators, ("name",)
)
DIFF = Figure("diff", "What changed most", "what changed most between two runs", draw_diff, ("delta_ns",))
