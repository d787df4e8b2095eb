"""The roofline: operations a second over operations for each byte, a point per operator or kernel below the roofs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.units import count, duration, number, percent, rate, render
from stepscope.renderers.figures._style import COLOUR_OF_CLASS, GREY, NO_CLASS, axis, broken, layout, links, literal
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Iterator

_POINTS = 2_000
_SMALLEST, _LARGEST = 7.0, 46.0
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_NEEDS = (
    "name", "family", "device_ns", "flop_per_s", "bytes_per_s", "intensity", "bound", "roof_ratio", "precision",
    "calls", "flop", "bytes", "peak_flop_per_s", "peak_bytes_per_s", "accelerator", "reason",
)  # fmt: skip


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A scatter on logarithmic axes; the area of a point goes with its device time, roofs are lines per precision.

    Rows without operations or bytes cannot be placed; the note above says how much time they take. Of more than
    2,000 rows those with the most device time are drawn.
    """
    is_point = (pl.col("flop") > 0) & (pl.col("bytes") > 0) & (pl.col("flop_per_s") > 0)
    points = frame.filter(is_point).sort("device_ns", descending=True).head(_POINTS)
    if points.is_empty():
        return None
    reach = _reach(points)
    longest = max(points["device_ns"].to_list())
    families = points.partition_by("family", as_dict=True, maintain_order=True).items()
    data = [*_roofs(points, reach), *(_points_of(family, own, longest, link) for (family,), own in families)]
    axes = {
        "xaxis": axis("operations for each byte (FLOP/byte)", **_log_axis(*reach[0], "")),
        "yaxis": axis("operations a second", **_log_axis(*reach[1], "FLOP/s")),
    }
    return {"data": data, "layout": {**layout(note=_left_out(frame, points), height=520, legend="side"), **axes}}


def _reach(points: pl.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """Lowest and highest value of either axis: all points, and the corners of their roofs."""
    corners = points.drop_nulls(["peak_flop_per_s", "peak_bytes_per_s"])
    ridge = corners["peak_flop_per_s"] / corners["peak_bytes_per_s"]
    xs = [*points["intensity"].to_list(), *ridge.to_list()]
    ys = [*points["flop_per_s"].to_list(), *corners["peak_flop_per_s"].to_list()]
    return (min(xs) / 2, max(xs) * 3), (min(ys) / 2, max(ys) * 2)


def _roofs(points: pl.DataFrame, reach: tuple[tuple[float, float], tuple[float, float]]) -> Iterator[dict[str, Any]]:
    keys = ["accelerator", "precision", "peak_flop_per_s", "peak_bytes_per_s"]
    known = points.drop_nulls(keys).group_by(keys).agg(pl.col("device_ns").sum())
    low, high = reach[0]
    rows = known.sort("device_ns", "precision", descending=[True, False]).select(keys).rows()
    for i, (product, precision, peak, bandwidth) in enumerate(rows):
        ridge = peak / bandwidth
        name = f"{literal(product)} {literal(precision)}: {render(peak, 'FLOP/s')}, {rate(bandwidth)}"
        xs = [x for x in (low, ridge, high) if x <= high]
        yield {
            "type": "scatter",
            "x": xs,
            "y": [min(x * bandwidth, peak) for x in xs],
            "mode": "lines",
            "line": {"color": GREY, "width": 1.5, "dash": _DASHES[i % len(_DASHES)]},
            "name": name,
            "hovertemplate": "%{fullData.name}<extra></extra>",
        }


def _points_of(family: str | None, rows: pl.DataFrame, longest_ns: float, link: Link | None) -> dict[str, Any]:
    sizes = [_SMALLEST + (_LARGEST - _SMALLEST) * math.sqrt(ns / longest_ns) for ns in rows["device_ns"]]
    return {
        "type": "scatter",
        "x": rows["intensity"].to_list(),
        "y": rows["flop_per_s"].to_list(),
        "mode": "markers",
        "name": literal(family or "other"),
        "marker": {
            "size": sizes,
            "color": COLOUR_OF_CLASS.get(family or "", NO_CLASS),
            "opacity": 0.7,
            "line": {"width": 1, "color": "white"},
        },
        "text": [_hover_text(row) for row in rows.iter_rows(named=True)],
        "customdata": links(rows, link),
        "hovertemplate": "%{text}<extra></extra>",
    }


def _hover_text(row: dict[str, Any]) -> str:
    """The text of a point when the pointer is on it."""
    whose = [f"rank {row['rank']}"] if row.get("rank") is not None else []
    lines = [*whose, f"<b>{broken(row['name'] or 'no operator')}</b>"]
    lines += [broken(row["input_shapes"])] if row.get("input_shapes") else []
    bound = f"{row['bound']}-bound, {percent(row['roof_ratio'])} of its roof" if row["bound"] else row["reason"]
    lines += [literal(bound)] if bound else []
    lines.append(f"{render(row['flop_per_s'], 'FLOP/s')}, {rate(row['bytes_per_s'])}")
    lines.append(f"{number(row['intensity'])} FLOP/byte, {literal(row['precision'] or 'no precision')}")
    lines.append(f"{duration(row['device_ns'])} in {count(row['calls'])} calls")
    return "<br>".join(lines)


def _log_axis(low: float, high: float, unit: str) -> dict[str, Any]:
    """From low to high, a tick for each power of ten."""
    powers = [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    texts = [render(power, unit) if unit else number(power) for power in powers]
    return {"type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": powers, "ticktext": texts}


def _left_out(frame: pl.DataFrame, points: pl.DataFrame) -> str:
    """How much of the device time has a place on the figure, and why roofs are missing."""
    whole, drawn = int(frame["device_ns"].sum()), int(points["device_ns"].sum())
    share = [f"{percent(drawn / whole)} of device time"] if whole else []
    shown = ", ".join([f"{count(points.height)} of {count(frame.height)} rows", *share])
    missing = points.filter(pl.col("peak_flop_per_s").is_null() & pl.col("precision").is_not_null())["reason"]
    reason = missing.drop_nulls()
    return f"{shown}; {reason[0]}" if len(reason) else shown


FIGURE = Figure("roofline", "Roofline", "operators or kernels below the device's roofs", draw, _NEEDS)
