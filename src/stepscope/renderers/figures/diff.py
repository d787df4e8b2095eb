"""What changed most between two runs."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.core.units import duration
from stepscope.renderers.figures._ranked import literal_name
from stepscope.renderers.figures._style import LONGER, SHORTER, axis, cut, known, layout, links, scaled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

_MOST_BARS = 15
_MS = 1e6


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Bars of what changed most, by operator or part: longer to the right, shorter to the left."""
    key = next((c for c in ("name", "part") if known(frame, c)), None)
    if key is None or not known(frame, "delta_ns"):
        return None
    changed = frame.filter(pl.col("delta_ns").abs() > 0).sort(pl.col("delta_ns").abs(), descending=True)
    if changed.is_empty():
        return None
    top = changed.head(_MOST_BARS).reverse()
    names = ["unknown" if name is None else str(name) for name in top[key]]
    data = [{
        "type": "bar", "orientation": "h", "x": scaled(top["delta_ns"], _MS), "y": list(range(top.height)),
        "text": [duration(v) for v in top["delta_ns"]], "hovertext": [cut(n, 160) for n in names],
        "hovertemplate": "%{hovertext}<br>%{text}<extra></extra>", "customdata": links(top, link),
        "marker": {"color": [LONGER if v > 0 else SHORTER for v in top["delta_ns"]]},
    }]  # fmt: skip
    ticks: dict[str, Any] = {"tickvals": list(range(top.height)), "ticktext": [literal_name(n) for n in names]}
    note = f"the first {top.height} of {changed.height} changes" if changed.height > top.height else ""
    look = layout(note=note, height=60 + 24 * top.height, legend="")
    return {"data": data, "layout": {**look, "xaxis": axis("change per step, ms"), "yaxis": axis(**ticks)}}


FIGURE = Figure("diff", "What changed most", "what changed most between two runs", draw, ("delta_ns",))
