"""Collectives of a job: ranks against time with waits and transfers apart, who is late, sizes against bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.core.step_parts import COMMUNICATION, IDLE
from stepscope.core.units import count, duration, rate, size
from stepscope.renderers.figures._style import (
    COLOURS,
    LONGER,
    PALETTE,
    SHORTER,
    axis,
    first_of,
    known,
    layout,
    links,
    literal,
    scaled,
    time_unit,
)
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BARS, _MOST_POINTS, _MOST_RANKS, _MOST_STEPS = 3_000, 2_000, 512, 2_000
#: The width of the picture in the smallest times that it tells apart.
_RESOLUTION = 2_000
_WAIT, _TRANSFER = ("waits for other ranks", COLOURS[IDLE]), ("transfers", COLOURS[COMMUNICATION])
_MS = 1e6
_EVEN = "rgba(128, 128, 128, 0.15)"


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """By call ranks against time, by step who is late, by rank waits and transfers, by exchange size and bandwidth."""
    columns = frame.columns
    if "ts_ns" in columns:
        return _over_time(frame, link)
    if "late_ns" in columns:
        return _lateness(frame, link)
    if "came_last" in columns:
        return _by_rank(frame, link)
    return _bandwidth(frame) if "bus_bytes_per_s" in columns else None


def _over_time(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """A lane for each rank. Each call waits until the last rank arrives; the transfer is the rest."""
    calls = frame.drop_nulls(["transfer_ns", "wait_ns"])
    if calls.is_empty():
        return None
    ranks = calls["rank"].unique().sort().to_list()
    calls = calls.filter(pl.col("rank").is_in(ranks[:_MOST_RANKS]))
    unit, ns = time_unit(calls["start_ns"], calls["total_ns"])
    met = pl.col("end_ns") - pl.col("transfer_ns").clip(upper_bound=pl.col("total_ns"))
    waits = calls.filter(pl.col("wait_ns") > 0).with_columns(until_ns=met)
    transfers = calls.with_columns(until_ns="end_ns").with_columns(start_ns=met)
    note = first_of(min(len(ranks), _MOST_RANKS), len(ranks), "ranks")
    drawn = [(one, _runs(part, _MOST_BARS)) for one, part in ((_WAIT, waits), (_TRANSFER, transfers)) if part.height]
    data = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": [f"rank {rank}" for rank in part["rank"]],
            "base": scaled(part["start_ns"], ns), "x": scaled(part["until_ns"] - part["start_ns"], ns),
            "marker": {"color": colour}, "text": [_call_text(row, name) for row in part.iter_rows(named=True)],
            "textposition": "none", "hovertemplate": "%{text}<extra></extra>", "customdata": links(part, link),
        }
        for (name, colour), part in drawn
    ]  # fmt: skip
    look = layout(note=note, height=max(130 + 22 * min(len(ranks), _MOST_RANKS), 200), barmode="overlay", bargap=0.25)
    return {"data": data, "layout": {**look, "xaxis": axis(unit), "yaxis": _rank_axis(ranks)}}


def _rank_axis(ranks: Sequence[int]) -> dict[str, Any]:
    names = [f"rank {rank}" for rank in ranks[:_MOST_RANKS]]
    return axis(type="category", categoryorder="array", categoryarray=names[::-1])


def _runs(calls: pl.DataFrame, most: int) -> pl.DataFrame:
    """The calls, or of many those with less between them than can be drawn as one; `n` says how many one is of."""
    ordered = calls.sort("rank", "start_ns").with_columns(n=pl.lit(1, pl.Int64))
    if calls.height <= most:
        return ordered
    finest = calls.select(pl.col("until_ns").max() - pl.col("start_ns").min()).item() // _RESOLUTION
    before = pl.col("until_ns").cum_max().shift(1).over("rank")
    begins = (pl.col("start_ns") > before + finest).fill_null(value=True)
    runs = ordered.with_columns(run=begins.cum_sum())
    longest = pl.col("kind", "step", "exchange").sort_by("total_ns").last()
    return runs.group_by("run", maintain_order=True).agg(
        pl.col("rank", "ts_ns", "start_ns").first(), pl.col("until_ns").max(), longest, n=pl.len(),
        total_ns=pl.col("ts_ns").last() + pl.col("total_ns").last() - pl.col("ts_ns").first(),
    )  # fmt: skip


def _call_text(row: dict[str, Any], what: str) -> str:
    called = f"{row['kind']} {row['exchange']}" if row["n"] == 1 else f"{count(row['n'])} collectives"
    step = "" if row["step"] is None else f", step {row['step']}"
    return literal(f"rank {row['rank']}, {called}{step}: {what} {duration(row['until_ns'] - row['start_ns'])}")


def _lateness(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Ranks against steps: how late each came. Of a single step a bar for each rank."""
    shown = frame.drop_nulls("late_ns")
    if shown.is_empty():
        return None
    steps, ranks = (shown[name].unique().sort().to_list()[:most] for name, most in
                    (("step", _MOST_STEPS), ("rank", _MOST_RANKS)))  # fmt: skip
    if len(steps) == 1:
        label = [f"rank {rank}" for rank in shown["rank"]]
        bars = {
            "type": "bar", "orientation": "h", "y": label, "x": scaled(shown["late_ns"], _MS),
            "text": [duration(late) for late in shown["late_ns"]], "customdata": links(shown, link),
            "marker": {"color": [LONGER if late > 0 else SHORTER for late in shown["late_ns"]]},
            "hovertemplate": "%{y}: %{text} late<extra></extra>",
        }  # fmt: skip
        look = layout(height=max(110 + 22 * len(ranks), 180), legend="")
        xaxis = axis("ms late")
        late_ms = shown["late_ns"].to_numpy() / _MS
        if late_ms.min() < 0:  # the label of a short bar stands left of it
            room = 0.12 * float(np.abs(late_ms).max())
            xaxis["range"] = [float(late_ms.min()) - room, float(late_ms.max(initial=0.0)) + room]
        return {"data": [bars], "layout": {**look, "xaxis": xaxis, "yaxis": _rank_axis(ranks)}}
    late = np.full((len(ranks), len(steps)), np.nan)
    column, line = {step: i for i, step in enumerate(steps)}, {rank: i for i, rank in enumerate(ranks)}
    targets: list[list[str | None]] = [[None] * len(steps) for _ in ranks]
    for row in shown.filter(pl.col("step").is_in(steps) & pl.col("rank").is_in(ranks)).iter_rows(named=True):
        late[line[row["rank"]], column[row["step"]]] = row["late_ns"] / _MS
        targets[line[row["rank"]]][column[row["step"]]] = None if link is None else link(row)
    far = float(np.nanmax(np.abs(late))) or 1.0
    cells = {
        "type": "heatmap", "x": [str(step) for step in steps], "y": [f"rank {rank}" for rank in ranks],
        "z": [[None if np.isnan(v) else round(float(v), 6) for v in values] for values in late],
        "customdata": targets, "zmin": -far, "zmax": far, "xgap": 1, "ygap": 1,
        "colorscale": [[0, SHORTER], [0.5, _EVEN], [1, LONGER]], "showscale": False,
        "hovertemplate": "%{y}, step %{x}: %{z} ms late<extra></extra>",
    }  # fmt: skip
    note = f"late is pink, early is blue; the strongest colour is {duration(far * _MS)}"
    look = layout(note=note, height=max(120 + 22 * len(ranks), 200), legend="")
    return {"data": [cells], "layout": {**look, "xaxis": axis("step", type="category"), "yaxis": _rank_axis(ranks)}}


def _by_rank(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """The time of each rank in collectives: waits and transfers."""
    shown = frame.head(_MOST_RANKS)
    if not known(shown, "wait_ns"):
        return None
    ranks = [f"rank {rank}" for rank in shown["rank"]]
    data = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": ranks, "x": scaled(shown[column], _MS),
            "marker": {"color": colour}, "text": [duration(v) for v in shown[column]], "textposition": "none",
            "customdata": links(shown, link), "hovertemplate": "%{y}: %{fullData.name} %{text}<extra></extra>",
        }
        for (name, colour), column in ((_WAIT, "wait_ns"), (_TRANSFER, "transfer_ns"))
    ]  # fmt: skip
    look = layout(height=max(130 + 22 * len(ranks), 200), barmode="stack", note=first_of(len(ranks), frame.height))
    return {"data": data, "layout": {**look, "xaxis": axis("ms"), "yaxis": _rank_axis(shown["rank"].to_list())}}


def _bandwidth(frame: pl.DataFrame) -> Drawn | None:
    """A point for each collective, its size against its bus bandwidth; both axes are logarithmic."""
    points = frame.filter((pl.col("size_bytes") > 0) & (pl.col("bus_bytes_per_s") > 0))
    if points.is_empty():
        return None
    shown = points.sort("size_bytes", descending=True).head(_MOST_POINTS) if points.height > _MOST_POINTS else points
    groups = shown.partition_by("kind", "group_size", as_dict=True, maintain_order=True).items()
    data = [
        {
            "type": "scatter", "mode": "markers", "name": literal(f"{kind}, {n} ranks"),
            "x": own["size_bytes"].to_list(), "y": own["bus_bytes_per_s"].to_list(),
            "marker": {"size": 8, "opacity": 0.6, "color": PALETTE[at % len(PALETTE)]},
            "text": [literal(_point_text(row)) for row in own.iter_rows(named=True)],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for at, ((kind, n), own) in enumerate(groups)
    ]  # fmt: skip
    look = layout(note=first_of(shown.height, points.height, "by size"), height=340, legend="side")
    axes = {
        "xaxis": axis("size", type="log", **_ticks(shown["size_bytes"], 1_024, size)),
        "yaxis": axis("bus bandwidth of the transfer", type="log", **_ticks(shown["bus_bytes_per_s"], 10, rate)),
    }
    return {"data": data, "layout": {**look, **axes}}


def _ticks(values: pl.Series, base: int, shown: Any) -> dict[str, Any]:
    """Powers of the base, of 1,024 also quarters, around the values."""
    part = 32 if base == 1_024 else base
    low, high = (float(one(np.log(values.to_numpy()) / np.log(part))) for one in (np.min, np.max))
    powers = [float(part) ** k for k in range(int(np.floor(low)), int(np.ceil(high)) + 1)]
    return {"tickvals": powers, "ticktext": [shown(power) for power in powers],
            "range": [np.log10(part) * (low - 0.25), np.log10(part) * (high + 0.25)]}  # fmt: skip


def _point_text(row: dict[str, Any]) -> str:
    step = "" if row["step"] is None else f", step {row['step']}"
    whole = f"{row['kind']} {row['exchange']}{step}: {size(row['size_bytes'])} in {duration(row['transfer_ns'])}"
    return f"{whole}, {rate(row['bus_bytes_per_s'])}; ranks waited {duration(row['wait_ns'])} in all"


FIGURE = Figure(
    "collectives",
    "Collectives matched across ranks",
    "ranks against time, who is late, and sizes against bandwidth",
    draw,
    ("transfer_ns", "wait_ns"),
)
