"""What each device, or each stream, did over time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.figures._record import Figure
from stepscope.figures._style import PALETTE, layout, literal, time_unit

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS: Mapping[str, tuple[str, str]] = {
    "computation_ns": ("computation", PALETTE[2]),
    "exposed_communication_ns": ("exposed communication", PALETTE[3]),
    "exposed_memcpy_ns": ("exposed memcpy", PALETTE[4]),
}
_MOST_DEVICES, _MOST_STREAMS = 16, 128
_LANE, _THIN_LANE = 110, 22
_NEEDS = ("rank", "device_id", "device", "ts_ns", "total_ns", "busy_ns", *_PARTS)


def draw(frame: pl.DataFrame) -> Any:
    """By device a lane of bars, which computation, exposed communication and copies fill as far as the device is busy.

    By stream (`by=stream-time`) a map of how busy each one is in each stretch.
    """
    lanes = _labelled(frame)
    unit, ns = time_unit(frame["ts_ns"], frame["total_ns"])
    return (_by_stream if "stream" in frame.columns else _by_device)(lanes, unit, ns)


def _labelled(frame: pl.DataFrame) -> pl.DataFrame:
    words = [pl.coalesce("device", pl.format("device {}", "device_id"), pl.lit("device"))]
    if frame["rank"].n_unique() > 1:
        words.insert(0, pl.format("rank {}", "rank").fill_null("no rank"))
    if "trace" in frame.columns:
        words.insert(0, pl.col("trace"))
    if "stream" in frame.columns:
        words.append(pl.format("stream {}", "stream").fill_null("no stream"))
    return frame.with_columns(lane=pl.concat_str(words, separator=" "))


def _by_device(lanes: pl.DataFrame, unit: str, ns: float) -> Any:
    from plotly.subplots import make_subplots

    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_DEVICES]
    n = max(len(shown), 1)
    titles = [literal(key[0]) for key, _ in shown]
    figure = make_subplots(rows=n, shared_xaxes=True, vertical_spacing=0.3 / n, subplot_titles=titles or None)
    parts = {name: look for name, look in _PARTS.items() if lanes[name].sum()}
    for at, (_, own) in enumerate(shown, 1):
        for name, (words, colour) in parts.items():
            figure.add_bar(
                x=(own["ts_ns"] / ns).to_list(), width=(own["total_ns"] / ns).to_list(), offset=0,
                y=_ratios(own, name), name=words, legendgroup=words, showlegend=at == 1, row=at, col=1,
                marker={"color": colour, "line": {"width": 0}}, hovertemplate="%{y:.1%}",
            )  # fmt: skip
        figure.update_yaxes(range=[0, 1], tickformat=".0%", nticks=3, row=at, col=1)
    figure.update_xaxes(title_text=f"time ({unit})", row=n, col=1)
    look = layout("Timeline of devices", subtitle=_more(groups, shown), height=200 + _LANE * n)
    figure.update_layout(**look, barmode="stack", bargap=0, hovermode="x unified")
    return figure


def _by_stream(lanes: pl.DataFrame, unit: str, ns: float) -> Any:
    import plotly.graph_objects as go

    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_STREAMS]
    ends = lanes["ts_ns"] + lanes["total_ns"]
    edges = (pl.concat([lanes["ts_ns"], ends]).unique().sort() / ns).to_list()
    figure = go.Figure(
        go.Heatmap(
            x=edges, y=[literal(key[0]) for key, _ in shown], z=[_ratios(own, "busy_ns") for _, own in shown],
            zmin=0, zmax=1, colorscale=[[0, "#F2F2F2"], [1, PALETTE[2]]],
            colorbar={"title": "busy", "tickformat": ".0%"},
            hovertemplate="%{y}<br>%{x} " + unit + "<br>busy %{z:.1%}<extra></extra>",
        )
    )  # fmt: skip
    look = layout("Timeline of streams", subtitle=_more(groups, shown), height=240 + _THIN_LANE * len(shown))
    figure.update_layout(**look, xaxis={"title": {"text": f"time ({unit})"}}, yaxis={"autorange": "reversed"})
    return figure


def _ratios(own: pl.DataFrame, name: str) -> list[float | None]:
    whole = pl.col("total_ns")
    return own.select(pl.when(whole > 0).then(pl.col(name) / whole)).to_series().to_list()


def _more(groups: Mapping[Any, pl.DataFrame], shown: list[Any]) -> str:
    return f"{len(groups) - len(shown)} more are not drawn" if len(groups) > len(shown) else ""


FIGURE = Figure(
    "timeline",
    "what each device, or each stream, did over time",
    draw,
    _NEEDS,
    MappingProxyType({"by": "time"}),
)
