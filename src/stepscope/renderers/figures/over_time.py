"""What happened over time: devices and streams, how well they were used, and memory.

Where several devices, ranks or traces are drawn, each has a lane, and the lanes are above each other on one time axis.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.schema import DEVICE_OR_NUMBER
from stepscope.core.step_parts import COMPUTATION, DEVICE_COLUMNS, IDLE
from stepscope.core.units import size
from stepscope.renderers.figures._style import (
    CLEAR,
    COLOUR_OF_CLASS,
    COLOURS,
    GREY,
    NO_CLASS,
    PALETTE,
    axis,
    clipped,
    known,
    layout,
    links,
    literal,
    parts_of,
    scaled,
    time_unit,
)
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BY_TIME = MappingProxyType({"by": "time"})
_BUSY_PARTS = {column: part for part, column in DEVICE_COLUMNS.items() if part != IDLE}
_MOST_LANES, _MOST_STREAMS = 16, 128
_DEVICE_HEIGHT, _STREAM_HEIGHT, _RATIO_HEIGHT = 110, 22, 230
_DEVICE_RATIOS = {
    "busy_ratio": "busy",
    "est_sm_efficiency_ratio": "est. SM efficiency",
    "est_occupancy_ratio": "est. occupancy",
    "tensor_core_ratio": "tensor cores",
}
_KERNEL_RATIOS = {"tensor_ratio": "tensor cores", "dram_ratio": "memory bandwidth", "sm_ratio": "multiprocessors"}
_MOST_POINTS = 2_000
_MS, _MIB = 1e6, 1 << 20
_MEMORY = (("allocated_bytes", "allocated", "solid"), ("reserved_bytes", "reserved", "dot"))


def lane(at: int) -> str:
    """The name of a lane's vertical axis in marks; lane 0 is on top."""
    return "y" if at == 0 else f"y{at + 1}"


def lane_axes(titles: Sequence[str], x_title: str, *, apart: float, **more: Any) -> dict[str, Any]:
    """The axes of a lane for each title, as entries of a layout; empty titles are not drawn.

    `apart` is the part of the whole height between two lanes; `more` goes to all vertical axes.
    """
    tall = (1 - apart * (len(titles) - 1)) / len(titles)
    axes: dict[str, Any] = {"xaxis": axis(x_title, anchor=lane(len(titles) - 1)), "annotations": []}
    for at, title in enumerate(titles):
        top = 1 - at * (tall + apart)
        axes[lane(at).replace("y", "yaxis")] = axis(domain=[max(top - tall, 0.0), top], **more)
        if title:
            axes["annotations"].append({
                "text": literal(title), "showarrow": False, "font": {"size": 12}, "xref": "paper", "yref": "paper",
                "x": 0, "xanchor": "left", "y": top, "yanchor": "bottom",
            })  # fmt: skip
    return axes


def _not_drawn(n_all: int, n_drawn: int) -> str:
    return f"{n_all - n_drawn} more are not drawn" if n_all > n_drawn else ""


def draw_timeline(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """By device a lane of bars, which computation, exposed communication and copies fill as far as the device is busy.

    By stream (`by=stream-time`) a map of how busy each one is in each window of time.
    """
    lanes = _labelled(frame)
    unit, ns = time_unit(frame["ts_ns"], frame["total_ns"])
    return _by_stream(lanes, unit, ns) if "stream" in frame.columns else _by_device(lanes, unit, ns, link)


def _labelled(frame: pl.DataFrame) -> pl.DataFrame:
    label = [DEVICE_OR_NUMBER]
    if frame["rank"].n_unique() > 1:
        label.insert(0, pl.format("rank {}", "rank").fill_null("no rank"))
    if "trace" in frame.columns:
        label.insert(0, pl.col("trace"))
    if "stream" in frame.columns:
        label.append(pl.format("stream {}", "stream").fill_null("no stream"))
    return frame.with_columns(lane=pl.concat_str(label, separator=" "))


def _by_device(lanes: pl.DataFrame, unit: str, ns: float, link: Link | None) -> Drawn | None:
    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_LANES]
    parts = {name: label for name, label in _BUSY_PARTS.items() if lanes[name].sum()}
    if not parts:
        return None
    data: list[dict[str, Any]] = [
        {
            "type": "bar", "x": scaled(own["ts_ns"], ns), "width": scaled(own["total_ns"], ns), "offset": 0,
            "y": _ratios(own, name), "name": label, "legendgroup": label, "showlegend": at == 0, "xaxis": "x",
            "yaxis": lane(at), "marker": {"color": COLOURS[label], "line": {"width": 0}}, "hovertemplate": "%{y:.1%}",
            "customdata": links(own, link),
        }
        for at, (_, own) in enumerate(shown) for name, label in parts.items()
    ]  # fmt: skip
    axes = lane_axes(
        [key[0] for key, _ in shown], f"time ({unit})", apart=0.3 / len(shown), range=[0, 1], tickformat=".0%", nticks=3
    )
    look = layout(note=_not_drawn(len(groups), len(shown)), height=120 + _DEVICE_HEIGHT * len(shown), barmode="stack",
                  bargap=0, hovermode="x unified")  # fmt: skip
    look["margin"]["t"] += 14
    look["legend"]["y"] = 1 + 22 / (_DEVICE_HEIGHT * len(shown))
    return {"data": data, "layout": {**look, **axes}}


def _by_stream(lanes: pl.DataFrame, unit: str, ns: float) -> Drawn:
    groups = lanes.partition_by("lane", as_dict=True, maintain_order=True)
    shown = list(groups.items())[:_MOST_STREAMS]
    ends = lanes["ts_ns"] + lanes["total_ns"]
    edges = scaled(pl.concat([lanes["ts_ns"], ends]).unique().sort(), ns)
    data = {
        "type": "heatmap", "x": edges, "y": [literal(key[0]) for key, _ in shown],
        "z": [_ratios(own, "busy_ns") for _, own in shown], "zmin": 0, "zmax": 1,
        "colorscale": [[0, CLEAR], [1, COLOURS[COMPUTATION]]],
        "colorbar": {"title": {"text": "busy"}, "tickformat": ".0%"},
        "hovertemplate": "%{y}<br>%{x} " + unit + "<br>busy %{z:.1%}<extra></extra>",
    }  # fmt: skip
    height = 140 + _STREAM_HEIGHT * len(shown)
    look = layout(note=_not_drawn(len(groups), len(shown)), height=height, legend="")
    axes = {"xaxis": axis(f"time ({unit})"), "yaxis": axis(autorange="reversed")}
    return {"data": [data], "layout": {**look, **axes}}


def _ratios(own: pl.DataFrame, name: str) -> list[float | None]:
    whole = pl.col("total_ns")
    return own.select(pl.when(whole > 0).then(pl.col(name) / whole)).to_series().to_list()


def draw_device_utilisation(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  lines have no links
    """A lane per device, a line for each ratio."""
    rank = [pl.format("rank {} ", "rank")] if frame["rank"].n_unique() > 1 else []
    lanes = frame.with_columns(trace=pl.concat_str(*rank, DEVICE_OR_NUMBER)).drop("rank")
    return ratio_lanes(lanes, _DEVICE_RATIOS, x="ts_ns", length="window_ns", x_title="time")


def draw_utilisation(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  lines have no links
    """A line for each ratio, and below them the class of kernels that took most of each window."""
    return ratio_lanes(frame, _KERNEL_RATIOS, x="from_ns", length="total_ns", x_title="time of kernels laid end to end")


def ratio_lanes(frame: pl.DataFrame, measures: Mapping[str, str], *, x: str, length: str, x_title: str) -> Drawn | None:
    """A lane per rank or trace: a line for each measure (column to label), from 0 to 1, steps as long as `length`.

    `x` and `length` are columns in ns. A column `kernel_class` is drawn as a coloured strip below the lines.
    """
    parts = parts_of(frame)
    unit, ns = time_unit(frame[x], frame[length])
    shown = parts[:_MOST_LANES]
    drawn = [(name, label) for name, label in measures.items() if frame[name].null_count() < frame.height]
    data: list[dict[str, Any]] = []
    for at, (_, part) in enumerate(shown):
        starts = scaled(part[x], ns)
        edges = [*starts, *scaled((part[x] + part[length]).tail(1), ns)]
        for i, (name, label) in enumerate(drawn):
            values = part[name].to_list()
            data.append({
                "type": "scatter", "x": edges, "y": [*values, *values[-1:]], "name": label, "legendgroup": label,
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
    note = _not_drawn(len(parts), len(shown))
    height = 60 + _RATIO_HEIGHT * len(shown) + (60 if not several else 0)
    look = layout(note=note, height=height, legend="side", barmode="overlay", hovermode="x unified")
    look["margin"]["t"] += 16 if several else 0
    return {"data": data, "layout": {**look, **axes}}


def _classes(
    part: pl.DataFrame, *, x: list[float | None], width: list[float | None], at: int, before: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A strip below zero, coloured by the class that took most of each window."""
    classes = part["kernel_class"].cast(pl.String).to_list()
    in_legend = {trace["legendgroup"] for trace in before}
    data = []
    for name in dict.fromkeys(classes):
        rows = [i for i, kernel_class in enumerate(classes) if kernel_class == name]
        label = literal(name or "other")
        data.append({
            "type": "bar", "x": [x[i] for i in rows], "width": [width[i] for i in rows], "offset": 0, "base": -0.07,
            "y": [0.05] * len(rows), "name": label, "legendgroup": f"class {label}",
            "showlegend": f"class {label}" not in in_legend, "xaxis": "x", "yaxis": lane(at),
            "marker": {"color": COLOUR_OF_CLASS.get(name or "", NO_CLASS), "line": {"width": 0}},
            "hovertemplate": "most of it: %{fullData.name}<extra></extra>",
        })  # fmt: skip
    return data


def draw_memory(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Lines per device of what tensors hold and of what the allocator holds. Long recordings show their peaks."""
    if not known(frame, "ts_ns", "allocated_bytes"):
        return None
    data: list[dict[str, Any]] = []
    for at, (label, part) in enumerate(_devices(frame)):
        for column, holder, dash in _MEMORY:
            if not known(part, column) or not part[column].max():
                continue
            thin = _peaks(part, column)
            data.append({
                "type": "scatter", "mode": "lines", "name": clipped(f"{label} {holder}".strip(), 60),
                "line": {"dash": dash, "shape": "hv", "width": 1.5, "color": PALETTE[at % len(PALETTE)]},
                "x": scaled(thin["ts_ns"], _MS), "y": scaled(thin[column], _MIB),
                "text": [size(v) for v in thin[column]], "customdata": links(thin, link),
                "hovertemplate": "%{x:.3f} ms: %{text}<extra>%{fullData.name}</extra>",
            })  # fmt: skip
    axes = {"xaxis": axis("ms from the start of the recording"), "yaxis": axis("MiB", rangemode="tozero")}
    return {"data": data, "layout": {**layout(), **axes}} if data else None


def _devices(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    keys = [c for c in ("rank", "trace", "device") if c in frame.columns]
    if not keys:
        yield "", frame
        return
    for key, part in frame.partition_by(keys, as_dict=True, maintain_order=True).items():
        label = [f"rank {v}" if k == "rank" else str(v) for k, v in zip(keys, key, strict=True) if v is not None]
        yield " ".join(label), part


def _peaks(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Some 2,000 rows at most: of each run of rows the one with the highest value."""
    every = max(frame.height // _MOST_POINTS, 1)
    if every == 1:
        return frame
    bins = pl.int_range(pl.len()) // every
    return frame.group_by(bins.alias("bin"), maintain_order=True).agg(pl.all().get(pl.col(column).arg_max()))


def draw_history(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A point for each run of a history, a line for the level of each stretch of runs, and a mark at each change."""
    if not known(frame, "run", "step_ns", "level_ns"):
        return None
    unit, ns = time_unit(frame["step_ns"] * 0, frame["step_ns"])
    runs = frame["run"].to_list()
    hover = [
        "<br>".join(literal(v) for v in row if v is not None)
        for row in frame.select("recorded", "label", "commit", "reason").iter_rows()
    ]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": "level", "x": runs, "y": scaled(frame["level_ns"], ns),
            "line": {"shape": "hvh", "width": 2, "color": GREY}, "hoverinfo": "skip",
        },
        {
            "type": "scatter", "mode": "markers", "name": "step", "x": runs, "y": scaled(frame["step_ns"], ns),
            "marker": {"size": 6, "color": COLOURS[COMPUTATION]}, "text": hover, "customdata": links(frame, link),
            "hovertemplate": "run %{x}: %{y} " + unit + "<br>%{text}<extra></extra>",
        },
    ]  # fmt: skip
    changed = frame.filter(pl.col("change").is_not_null())
    for at, (kind, part) in enumerate(changed.partition_by("change", as_dict=True, maintain_order=True).items()):
        data.append({
            "type": "scatter", "mode": "markers", "name": literal(kind[0]), "x": part["run"].to_list(),
            "y": scaled(part["step_ns"], ns), "hoverinfo": "skip",
            "marker": {"size": 13, "symbol": "circle-open", "line": {"width": 2}, "color": PALETTE[1 + at]},
        })  # fmt: skip
    axes = {"xaxis": axis("run"), "yaxis": axis(f"step ({unit})", rangemode="tozero")}
    return {"data": data, "layout": {**layout(height=360), **axes}}


HISTORY = Figure(
    "history",
    "Step of each run",
    "the step of each run of a history, with the changes of its level",
    draw_history,
    ("run", "recorded", "label", "commit", "step_ns", "level_ns", "change", "reason"),
)
TIMELINE = Figure(
    "timeline",
    "Devices over time",
    "what each device, or each stream, did over time",
    draw_timeline,
    ("rank", "device_id", "device", "ts_ns", "total_ns", "busy_ns", *_BUSY_PARTS),
    _BY_TIME,
)
DEVICE_UTILISATION = Figure(
    "device-utilisation",
    "Device utilisation over time",
    "busy, est. SM efficiency, est. occupancy and tensor cores over time",
    draw_device_utilisation,
    ("rank", "device_id", "device", "ts_ns", "window_ns", *_DEVICE_RATIOS),
    _BY_TIME,
)
UTILISATION = Figure(
    "utilisation",
    "Utilisation over time",
    "tensor cores, memory and multiprocessors over time",
    draw_utilisation,
    ("from_ns", "total_ns", "kernel_class", *_KERNEL_RATIOS),
    _BY_TIME,
)
MEMORY = Figure(
    "memory",
    "Memory over time",
    "what tensors and the allocator hold over time",
    draw_memory,
    ("ts_ns", "allocated_bytes"),
    _BY_TIME,
)
