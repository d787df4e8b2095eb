"""Which parts of a step explain the difference of two runs, from the base's step to the other's."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core.units import duration, percent
from stepscope.renderers.figures._style import GREY, LONGER, SHORTER, axis, clipped, known, layout, time_unit, wrapped
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_PARTS = 12
#: Changes of a part below this share of the step are put together.
_LEAST_SHARE = 0.001
_REST = "all else"
_NEEDS = ("part", "base_ns", "other_ns", "delta_ns")


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:  # noqa: ARG001  a part of a mean step has no place in a trace
    """A waterfall: a bar for the base's step, one for each change, one for the other's step.

    Where `low_ns` and `high_ns` bound a change, a line at its bar shows by how much it may be off. Parts that changed
    by less than 0.1 % of the step are one bar. If all changes are small, the axis does not begin at 0.
    """
    if not known(frame, *_NEEDS):
        return None
    base, other = float(frame["base_ns"].sum()), float(frame["other_ns"].sum())
    unit, ns = time_unit(pl.Series([0.0]), pl.Series([max(base, other)]))
    rows = _rows(frame, _LEAST_SHARE * max(base, other))
    deltas = [row["delta_ns"] for row in rows]
    levels = list(accumulate(deltas, initial=base))
    low, high = _reach([*levels, other], rows)
    names = ["base", *(wrapped(row["part"], 13) for row in rows), "other"]
    bar: dict[str, Any] = {
        "type": "bar", "x": list(range(len(names))), "y": [size / ns for size in (base, *deltas, other)],
        "base": [start / ns for start in (0.0, *levels[:-1], 0.0)], "width": 0.7,
        "marker": {"color": [GREY, *(LONGER if delta > 0 else SHORTER for delta in deltas), GREY]},
        "hovertext": [f"base: {duration(base)} a step", *map(_hover_text, rows), f"other: {duration(other)} a step"],
        "hovertemplate": "%{hovertext}<extra></extra>", "error_y": _bounds(rows, ns),
    }  # fmt: skip
    joints = {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": {"color": GREY, "width": 1, "dash": "dot"},
        "x": [x for at in range(len(levels)) for x in (at + 0.35, at + 0.65, None)],
        "y": [y for level in levels for y in (level / ns, level / ns, None)],
    }  # fmt: skip
    ends = [(0.0, base), *pairwise(levels), (0.0, other)]
    aboves = [0.0, *(off[1] for off in map(_off, rows)), 0.0]
    # Not the bars' own: there the lines at their ends would cross the letters.
    labels = {
        "type": "scatter", "mode": "text", "hoverinfo": "skip", "cliponaxis": False, "textposition": "top center",
        "x": list(range(len(names))),
        "y": [max(pair[0], pair[1] + above) / ns for pair, above in zip(ends, aboves, strict=True)],
        "text": [duration(base), *map(_plus, deltas), duration(other)],
    }  # fmt: skip
    remarks = [_plus(other - base) + (f" ({_sign(other - base)}{percent(abs(other - base) / base)})" if base else "")]
    remarks += [f"the axis begins at {duration(low)}"] if low else []
    axes = {
        "xaxis": axis(tickvals=list(range(len(names))), ticktext=names, showgrid=False, zeroline=False, tickangle=0),
        "yaxis": axis(f"step ({unit})", range=[low / ns, high / ns]),
    }
    return {"data": [bar, joints, labels], "layout": {**layout(note="; ".join(remarks), height=380, legend=""), **axes}}


def _rows(frame: pl.DataFrame, least: float) -> list[dict[str, Any]]:
    """The parts that changed, in their order; what changed little, or was not among the most, as one."""
    far = pl.col("delta_ns").abs()
    ranked = frame.with_columns(
        shown=(far > least) & (far.rank("ordinal", descending=True) <= _MOST_PARTS),
        part=pl.col("part").cast(pl.String).fill_null("unknown"),
    )
    rows = ranked.filter("shown").drop("shown").to_dicts()
    rest = ranked.filter(~pl.col("shown"))
    if abs(float(rest["delta_ns"].sum())) > least / 10:
        sums = {name: float(rest[name].sum()) for name in ("base_ns", "other_ns", "delta_ns")}
        rows.append({"part": _REST, **sums})
    return rows


def _bounds(rows: Sequence[dict[str, Any]], ns: float) -> dict[str, Any]:
    """How much larger or smaller each change may be. The ends of the waterfall have no such line."""
    bounds = [(0.0, 0.0), *map(_off, rows), (0.0, 0.0)]
    below, above = ([off / ns for off in side] for side in zip(*bounds, strict=True))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "color": GREY, "thickness": 1.2,
            "width": 4, "visible": any(above) or any(below)}  # fmt: skip


def _off(row: dict[str, Any]) -> tuple[float, float]:
    """How far the bounds of a change are below and above it; 0 where they are not known."""
    low, high = row.get("low_ns"), row.get("high_ns")
    if low is None or high is None:
        return 0.0, 0.0
    return max(row["delta_ns"] - low, 0.0), max(high - row["delta_ns"], 0.0)


def _reach(levels: Sequence[float], rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """From where to where the axis goes: near the levels if all changes are much smaller than them, else from 0."""
    off = max((max(_off(row)) for row in rows), default=0.0)
    least, most = min(levels) - off, max(levels) + off
    room = max(most - least, 0.02 * most)
    low = least - 0.6 * room
    return (low, most + 0.15 * room) if low >= 0.5 * most else (0.0, 1.1 * most)


def _hover_text(row: dict[str, Any]) -> str:
    text = f"{clipped(str(row['part']), 160)}: {duration(row['base_ns'])} → {duration(row['other_ns'])}"
    text += f"<br>change {_plus(row['delta_ns'])}"
    if row.get("low_ns") is not None and row.get("high_ns") is not None:
        text += f" (95 %: {_plus(row['low_ns'])} to {_plus(row['high_ns'])})"
    return text


def _plus(ns: float) -> str:
    return f"{_sign(ns)}{duration(abs(ns))}"


def _sign(value: float) -> str:
    return "+" if value >= 0 else "−"


FIGURE = Figure("parts", "From the base to the other", "where the difference of two runs went", draw, _NEEDS)
