"""Ratios over time as lines, with a strip of what ran below them: shared by the figures of utilisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.figures._style import COLOUR_OF_CLASS, NO_CLASS, PALETTE, layout, literal, parts_of, time_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_PARTS = 16
_LANE = 230


def strip(frame: pl.DataFrame, measures: Mapping[str, str], *, title: str, x: str, length: str, x_title: str) -> Any:
    """A lane per rank or trace: a line for each measure (column to words), from 0 to 1, steps as long as `length`.

    `x` and `length` are columns in ns. A column `kernel_class` is drawn as coloured strip below the lines.
    """
    from plotly.subplots import make_subplots

    parts = parts_of(frame)
    unit, ns = time_unit(frame[x], frame[length])
    shown = parts[:_MOST_PARTS]
    titles = [literal(name) for name, _ in shown] if len(shown) > 1 else None
    figure = make_subplots(
        rows=len(shown), shared_xaxes=True, vertical_spacing=0.25 / len(shown), subplot_titles=titles
    )
    drawn = [(name, words) for name, words in measures.items() if frame[name].null_count() < frame.height]
    for at, (_, part) in enumerate(shown, 1):
        edges = [*(part[x] / ns).to_list(), *(((part[x] + part[length]) / ns).tail(1)).to_list()]
        for i, (name, words) in enumerate(drawn):
            values = part[name].to_list()
            figure.add_scatter(
                x=edges, y=[*values, *values[-1:]], name=words, legendgroup=words, showlegend=at == 1, row=at, col=1,
                mode="lines", line={"shape": "hv", "color": PALETTE[i], "width": 1.5}, hovertemplate="%{y:.1%}",
            )  # fmt: skip
        if "kernel_class" in part.columns:
            _classes(figure, part, x=(part[x] / ns).to_list(), width=(part[length] / ns).to_list(), row=at)
        figure.update_yaxes(range=[-0.08, 1.02], tickformat=".0%", row=at, col=1)
    figure.update_xaxes(title_text=f"{literal(x_title)} ({unit})", row=len(shown), col=1)
    left_out = f"{len(parts) - len(shown)} more are not drawn" if len(parts) > len(shown) else ""
    height = 180 + _LANE * max(len(shown), 1) + (100 if len(shown) == 1 else 0)
    figure.update_layout(**layout(title, subtitle=left_out, height=height, barmode="overlay", hovermode="x unified"))
    return figure


def _classes(figure: Any, part: pl.DataFrame, *, x: list[float], width: list[float], row: int) -> None:
    """A strip below zero, coloured by the class that took most of each stretch."""
    classes = part["kernel_class"].cast(pl.String).to_list()
    known = {trace.legendgroup for trace in figure.data}
    for name in dict.fromkeys(classes):
        rows = [i for i, other in enumerate(classes) if other == name]
        label = literal(name or "other")
        figure.add_bar(
            x=[x[i] for i in rows], width=[width[i] for i in rows], offset=0, base=-0.07, y=[0.05] * len(rows),
            name=label, legendgroup=f"class {label}", showlegend=f"class {label}" not in known, row=row, col=1,
            marker={"color": COLOUR_OF_CLASS.get(name or "", NO_CLASS), "line": {"width": 0}},
            hovertemplate="most of it: " + label + "<extra></extra>",
        )  # fmt: skip
