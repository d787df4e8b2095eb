"""Wholes and their parts as stacked bars: steps, collectives, and the bars of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import step_parts
from stepscope.core.step_parts import DEVICE_COLUMNS, HOST_COLUMNS
from stepscope.core.units import duration, percent
from stepscope.renderers.figures._style import COLOURS, PALETTE, axis, clipped, first_of, known, layout, links, scaled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_STEPS = 400
_MOST_COLLECTIVES = 15
_MS = 1e6


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Drawn:
    """Stacked shares, one row each: (label, [(part, ratio)]), the first on top."""
    parts = list(dict.fromkeys(name for _, pairs in rows for name, _ in pairs))
    labels = [clipped(label, 60) for label, _ in rows][::-1]
    shares = [dict(pairs) for _, pairs in rows][::-1]
    data = [
        {
            "type": "bar", "orientation": "h", "name": clipped(part, 60), "y": labels,
            "x": [share.get(part) for share in shares], "marker": {"color": colour_of(part, at)},
            "text": [percent(share.get(part)) for share in shares],
            "hovertemplate": "%{y}: %{fullData.name} %{text}<extra></extra>",
        }
        for at, part in enumerate(parts)
    ]  # fmt: skip
    look = layout(height=140 + 40 * len(rows), barmode="stack")
    return {"data": data, "layout": {**look, "xaxis": axis("share", tickformat=".0%"), "yaxis": axis()}}


def colour_of(part: str, at: int) -> str:
    """The colour of a part of a step, or if it has none the palette's colour number `at`."""
    return COLOURS.get(part) or PALETTE[at % len(PALETTE)]


def draw_steps(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """The parts of each step on the device, or on the host where no device was recorded."""
    parts = DEVICE_COLUMNS if known(frame, DEVICE_COLUMNS[step_parts.IDLE]) else HOST_COLUMNS
    exposed = DEVICE_COLUMNS[step_parts.COMMUNICATION]
    if parts is HOST_COLUMNS and known(frame, exposed):
        first = step_parts.OPERATORS
        parts = {first: HOST_COLUMNS[first], step_parts.COMMUNICATION: exposed, **HOST_COLUMNS}
    if not known(frame, *parts.values()):
        return None
    shown = frame.head(_MOST_STEPS)
    several = "rank" in shown.columns and shown["rank"].n_unique() > 1
    labels = [f"{row['step']} r{row['rank']}" if several else str(row["step"]) for row in shown.iter_rows(named=True)]
    targets = links(shown, link)
    data = [
        {
            "type": "bar", "name": name, "x": labels, "y": scaled(shown[column], _MS), "customdata": targets,
            "marker": {"color": COLOURS[name]}, "text": [duration(v) for v in shown[column]], "textposition": "none",
            "hovertemplate": f"step %{{x}}: {name} %{{text}}<extra></extra>",
        }
        for name, column in parts.items() if shown[column].sum()
    ]  # fmt: skip
    note = first_of(shown.height, frame.height)
    # Without larger gaps the bars of a few steps would be very wide.
    look = layout(note=note, barmode="stack", bargap=max(0.2, 1 - 0.1 * shown.height))
    return {"data": data, "layout": {**look, "xaxis": axis("step", type="category"), "yaxis": axis("ms")}}


def draw_communication(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """For each collective, the time that computation hides and the time that it does not."""
    if not known(frame, "collective", "hidden_ns", "exposed_ns"):
        return None
    name = pl.col("collective").cast(pl.String).fill_null("unknown")
    sums = frame.group_by(name, maintain_order=True).agg(pl.col("hidden_ns", "exposed_ns").sum())
    sums = sums.sort("exposed_ns", "hidden_ns", descending=True)
    shown = sums.head(_MOST_COLLECTIVES)
    names, targets = _unique([clipped(name, 60) for name in shown["collective"]]), links(shown, link)
    data = [
        {
            "type": "bar", "name": part, "x": names, "y": scaled(shown[f"{part}_ns"], _MS),
            "text": [duration(v) for v in shown[f"{part}_ns"]], "textposition": "none", "customdata": targets,
            "marker": {"color": COLOURS[part]}, "hovertemplate": f"%{{x}}: {part} %{{text}}<extra></extra>",
        }
        for part in ("exposed", "hidden")
    ]  # fmt: skip
    note = first_of(shown.height, sums.height)
    look = layout(note=note, barmode="stack")
    return {"data": data, "layout": {**look, "xaxis": axis(type="category"), "yaxis": axis("ms")}}


def _unique(labels: Sequence[str]) -> list[str]:
    """The labels, with invisible blanks after those that occurred before: each gets a bar of its own."""
    earlier: dict[str, int] = {}
    result = []
    for label in labels:
        earlier[label] = earlier.get(label, -1) + 1
        result.append(label + "\u200b" * earlier[label])
    return result


STEPS = Figure("steps", "Steps and their parts", "what each step was made of", draw_steps, ("step",))
COMMUNICATION = Figure(
    "communication",
    "Communication, hidden by computation or not",
    "what computation hides of each collective",
    draw_communication,
    ("collective", "hidden_ns", "exposed_ns"),
)
