"""What computation hides of communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.units import duration
from stepscope.renderers.figures._style import COLOURS, axis, cut, known, layout, links, scaled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_BARS = 15
_MS = 1e6


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Stacked bars: of each collective what computation hides and what it does not."""
    if not known(frame, "collective", "hidden_ns", "exposed_ns"):
        return None
    name = pl.col("collective").cast(pl.String).fill_null("unknown")
    sums = frame.group_by(name, maintain_order=True).agg(pl.col("hidden_ns", "exposed_ns").sum())
    sums = sums.sort("exposed_ns", "hidden_ns", descending=True)
    shown = sums.head(_MOST_BARS)
    names, targets = _apart([cut(name, 60) for name in shown["collective"]]), links(shown, link)
    data = [
        {
            "type": "bar", "name": part, "x": names, "y": scaled(shown[f"{part}_ns"], _MS),
            "text": [duration(v) for v in shown[f"{part}_ns"]], "textposition": "none", "customdata": targets,
            "marker": {"color": COLOURS[part]}, "hovertemplate": f"%{{x}}: {part} %{{text}}<extra></extra>",
        }
        for part in ("exposed", "hidden")
    ]  # fmt: skip
    note = f"the first {shown.height} of {sums.height}" if sums.height > shown.height else ""
    look = layout(note=note, barmode="stack")
    return {"data": data, "layout": {**look, "xaxis": axis(type="category"), "yaxis": axis("ms")}}


def _apart(labels: Sequence[str]) -> list[str]:
    """Labels that were cut alike, told apart by blanks that nobody sees: each is a bar of its own."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, -1) + 1
        found.append(label + "\u200b" * seen[label])
    return found


FIGURE = Figure(
    "communication",
    "Communication, hidden by computation or not",
    "what computation hides of each collective",
    draw,
    ("collective", "hidden_ns", "exposed_ns"),
)
