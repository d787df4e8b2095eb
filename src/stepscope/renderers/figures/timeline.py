"""What each device, or each stream, did over time."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.renderers.figures._lanes import lane, lane_axes
from stepscope.renderers.figures._style import CLEAR, COLOURS, axis, layout, links, literal, scaled, time_unit
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS = {
    "computation_ns": "computation",
    "exposed_communication_ns": "exposed communication",
    "exposed_memcpy_ns": "exposed memcpy",
}
_MOST_DEVICES, _MOST_STREAMS = 16, 128
_LANE, _THIN_LANE = 110, 22
_NEEDS = ("rank", "device_id", "device", "ts_ns", "total_ns", "busy_ns", *_PARTS)


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """By device a lane of bars, which computation, exposed communication and copies fill as far as the device is busy.

    By stream (`by=stream-time`) a map of how busy each one is in each stretch.
    """
    lanes = _labelled(frame)
    unit, ns = time_unit(frame["ts_ns"], frame["total_ns"])
    return _by_stream(lanes, unit, ns) if "stream" in frame.columns else _by_device(lanes, unit, ns, link)


def _labelled(frame: pl.DataFrame) -> pl.DataFrame:
    words = [pl.coalesce("device", pl.format("device {}", "device_id"), pl.lit("device"))]
    if frame["rank"].n_unique() > 1:
        words.insert(0, pl.format("rank {}", "rank").fill_null("no rank"))
    if "trace" in frame.columns:
        words.insert(0, pl.col("trace"))
    if "stream" in frame.columns:
        words.append(pl.format("stream {}", "stream").fill_null("no stream"))
    return frame.with_columns(lane=pl.concat_str(words, separator=" "))


def _by_device(lanes: pl.DataFrame, unit: str, ns: float, link: Link | None) -> Drawn | None:
    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_DEVICES]
    parts = {name: words for name, words in _PARTS.items() if lanes[name].sum()}
    if not parts:
        return None
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "x": scaled(own["ts_ns"], ns), "width": scaled(own["total_ns"], ns), "offset": 0,
            "y": _ratios(own, name), "name": words, "legendgroup": words, "showlegend": at == 0, "xaxis": "x",
            "yaxis": lane(at), "marker": {"color": COLOURS[words], "line": {"width": 0}}, "hovertemplate": "%{y:.1%}",
            "customdata": links(own, link),
        }
        for at, (_, own) in enumerate(shown) for name, words in parts.items()
    ]  # fmt: skip
    axes = lane_axes(
        [key[0] for key, _ in shown], f"time ({unit})", apart=0.3 / len(shown), range=[0, 1], tickformat=".0%", nticks=3
    )
    look = layout(note=_more(groups, shown), height=120 + _LANE * len(shown), barmode="stack", bargap=0,
                  hovermode="x unified")  # fmt: skip
    look["margin"]["t"] += 14
    look["legend"]["y"] = 1 + 22 / (_LANE * len(shown))
    return {"data": data, "layout": {**look, **axes}}


def _by_stream(lanes: pl.DataFrame, unit: str, ns: float) -> Drawn:
    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_STREAMS]
    ends = lanes["ts_ns"] + lanes["total_ns"]
    edges = scaled(pl.concat([lanes["ts_ns"], ends]).unique().sort(), ns)
    data = {
        "type": "heatmap", "x": edges, "y": [literal(key[0]) for key, _ in shown],
        "z": [_ratios(own, "busy_ns") for _, own in shown], "zmin": 0, "zmax": 1,
        "colorscale": [[0, CLEAR], [1, COLOURS["computation"]]],
        "colorbar": {"title": {"text": "busy"}, "tickformat": ".0%"},
        "hovertemplate": "%{y}<br>%{x} " + unit + "<br>busy %{z:.1%}<extra></extra>",
    }  # fmt: skip
    look = layout(note=_more(groups, shown), height=140 + _THIN_LANE * len(shown), legend="")
    axes = {"xaxis": axis(f"time ({unit})"), "yaxis": axis(autorange="reversed")}
    return {"data": [data], "layout": {**look, **axes}}


def _ratios(own: pl.DataFrame, name: str) -> list[float | None]:
    whole = pl.col("total_ns")
    return own.select(pl.when(whole > 0).then(pl.col(name) / whole)).to_series().to_list()


def _more(groups: Mapping[Any, pl.DataFrame], shown: list[Any]) -> str:
    return f"{len(groups) - len(shown)} more are not drawn" if len(groups) > len(shown) else ""


FIGURE = Figure(
    "timeline",
    "Devices over time",
    "what each device, or each stream, did over time",
    draw,
    _NEEDS,
    MappingProxyType({"by": "time"}),
)
