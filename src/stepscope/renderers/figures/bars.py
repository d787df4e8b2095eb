"""The bars of a report: wholes and their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.units import percent
from stepscope.renderers.figures._style import COLOURS, PALETTE, axis, cut, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.renderers.figures.figure import Drawn


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> Drawn:
    """Stacked shares, a row each: (label, [(part, ratio)]), the first on top."""
    parts = list(dict.fromkeys(name for _, pairs in rows for name, _ in pairs))
    labels = [cut(label, 60) for label, _ in rows][::-1]
    shares = [dict(pairs) for _, pairs in rows][::-1]
    data = [
        {
            "type": "bar", "orientation": "h", "name": cut(part, 60), "y": labels,
            "x": [share.get(part) for share in shares], "marker": {"color": colour_of(part, at)},
            "text": [percent(share.get(part)) for share in shares],
            "hovertemplate": "%{y}: %{fullData.name} %{text}<extra></extra>",
        }
        for at, part in enumerate(parts)
    ]  # fmt: skip
    look = layout(height=140 + 40 * len(rows), barmode="stack")
    return {"data": data, "layout": {**look, "xaxis": axis("share", tickformat=".0%"), "yaxis": axis()}}


def colour_of(part: str, at: int) -> str:
    """The colour of a part of a step; of one that has none, that of its place."""
    return COLOURS.get(part) or PALETTE[at % len(PALETTE)]
