"""Ratios over time as lines, with a strip of what ran below them: shared by the figures of utilisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.renderers.figures._lanes import lane, lane_axes
from stepscope.renderers.figures._style import (
    COLOUR_OF_CLASS,
    NO_CLASS,
    PALETTE,
    layout,
    literal,
    parts_of,
    scaled,
    time_unit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.renderers.figures.figure import Drawn

_MOST_PARTS = 16
_LANE = 230


def strip(frame: pl.DataFrame, measures: Mapping[str, str], *, x: str, length: str, x_title: str) -> Drawn | None:
    """A lane per rank or trace: a line for each measure (column to words), from 0 to 1, steps as long as `length`.

    `x` and `length` are columns in ns. A column `kernel_class` is drawn as coloured strip below the lines.
    """
    parts = parts_of(frame)
    unit, ns = time_unit(frame[x], frame[length])
    shown = parts[:_MOST_PARTS]
    drawn = [(name, words) for name, words in measures.items() if frame[name].null_count() < frame.height]
    data: list[dict[str, Any]] = []
    for at, (_, part) in enumerate(shown):
        starts = scaled(part[x], ns)
        edges = [*starts, *scaled((part[x] + part[length]).tail(1), ns)]
        for i, (name, words) in enumerate(drawn):
            values = part[name].to_list()
            data.append({
                "type": "scatter", "x": edges, "y": [*values, *values[-1:]], "name": words, "legendgroup": words,
                "showlegend": at == 0, "xaxis": "x", "yaxis": lane(at), "mode": "lines",
                "line": {"shape": "hv", "color": PALETTE[i], "width": 1.5}, "hovertemplate": "%{y:.1%}",
            })  # fmt: skip
        if "kernel_class" in part.columns:
            data += _classes(part, x=starts, width=scaled(part[length], ns), at=at, before=data)
    if not data:
        return None
    several = len(shown) > 1
    axes = lane_axes(
        [name if several else "" for name, _ in shown], f"{x_title} ({unit})", apart=0.25 / len(shown),
        range=[-0.08, 1.02], tickformat=".0%",
    )  # fmt: skip
    note = f"{len(parts) - len(shown)} more are not drawn" if len(parts) > len(shown) else ""
    height = 60 + _LANE * len(shown) + (60 if not several else 0)
    look = layout(note=note, height=height, legend="side", barmode="overlay", hovermode="x unified")
    look["margin"]["t"] += 16 if several else 0
    return {"data": data, "layout": {**look, **axes}}


def _classes(
    part: pl.DataFrame, *, x: list[float | None], width: list[float | None], at: int, before: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A strip below zero, coloured by the class that took most of each stretch."""
    classes = part["kernel_class"].cast(pl.String).to_list()
    known = {trace["legendgroup"] for trace in before}
    data = []
    for name in dict.fromkeys(classes):
        rows = [i for i, other in enumerate(classes) if other == name]
        label = literal(name or "other")
        data.append({
            "type": "bar", "x": [x[i] for i in rows], "width": [width[i] for i in rows], "offset": 0, "base": -0.07,
            "y": [0.05] * len(rows), "name": label, "legendgroup": f"class {label}",
            "showlegend": f"class {label}" not in known, "xaxis": "x", "yaxis": lane(at),
            "marker": {"color": COLOUR_OF_CLASS.get(name or "", NO_CLASS), "line": {"width": 0}},
            "hovertemplate": "most of it: %{fullData.name}<extra></extra>",
        })  # fmt: skip
    return data
