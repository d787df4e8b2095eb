"""Names with most of something, as bars: shared by the figures of operators and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.units import duration, percent
from stepscope.renderers.figures._style import COLOURS, axis, cut, known, layout, links, scaled, shown_name

if TYPE_CHECKING:
    from stepscope.renderers.figures.figure import Drawn, Link

_MOST_BARS = 15
_MS = 1e6
_ROOM = 48


def ranked(frame: pl.DataFrame, link: Link | None, column: str) -> Drawn | None:
    """Horizontal bars: the names with most time in a column of ns, the largest on top, summed over rows."""
    if not known(frame, "name", column):
        return None
    key = pl.col("name").cast(pl.String).fill_null("unknown")
    sums = frame.group_by(key, maintain_order=True).agg(pl.col(column).sum()).sort(column, descending=True)
    some = sums.filter(pl.col(column) > 0)
    if some.is_empty():
        return None
    top = some.head(_MOST_BARS).reverse()
    whole = frame[column].sum()
    names = top["name"].to_list()
    data = [{
        "type": "bar", "orientation": "h", "x": scaled(top[column], _MS), "y": list(range(top.height)),
        "text": [f"{duration(v)} ({percent(v / whole)})" for v in top[column]], "textposition": "auto",
        "customdata": links(top, link), "hovertext": [cut(name, 160) for name in names],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>", "marker": {"color": COLOURS["computation"]},
    }]  # fmt: skip
    # By number, not by name: names that are cut alike are still bars of their own.
    ticks: dict[str, Any] = {"tickvals": list(range(top.height)), "ticktext": [literal_name(name) for name in names]}
    note = f"the first {top.height} of {some.height}" if some.height > top.height else ""
    look = layout(note=note, height=60 + 24 * top.height, legend="")
    return {"data": data, "layout": {**look, "xaxis": axis("ms"), "yaxis": axis(**ticks)}}


def literal_name(name: str) -> str:
    """What stands beside a bar."""
    return cut(shown_name(name, _ROOM), _ROOM)
