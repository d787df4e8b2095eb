"""What all figures share: colours, the unit of a time axis, names in words that Plotly draws and does not obey."""

from __future__ import annotations

import html
import textwrap
from typing import TYPE_CHECKING, Any

from stepscope.names import KERNEL_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

#: Colours that stay apart for most colour-blind readers: Okabe and Ito's, and lighter ones after them.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#7F7F7F",
    "#8C564B", "#444444", "#9467BD", "#17BECF", "#AEC7E8", "#FFBB78", "#98DF8A", "#FF9896", "#C5B0D5", "#C7C7C7",
)  # fmt: skip
COLOUR_OF_CLASS: Mapping[str, str] = dict(zip(KERNEL_CLASSES, PALETTE, strict=True))
NO_CLASS = "#C7C7C7"
_LINE = 90
_LONGEST = 400
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def literal(text: object) -> str:
    """The text as Plotly draws it letter by letter: its own markup is a part of HTML."""
    return html.escape(str(text), quote=True)


def broken(text: str) -> str:
    """A long name in lines, its end cut off if it is very long."""
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "<br>".join(literal(line) for line in textwrap.wrap(text, _LINE)) or "–"


def time_unit(starts: pl.Series, lengths: pl.Series) -> tuple[str, float]:
    """Unit of an axis that reaches to the last end of these stretches (ns), and its length in ns."""
    ends = (starts + lengths).drop_nulls().to_numpy()
    most_ns = float(ends.max()) if ends.size else 0.0
    return next(((unit, ns) for unit, ns in _UNITS if most_ns >= 2 * ns), _UNITS[-1])


def layout(title: str, *, subtitle: str = "", height: int = 560, **more: Any) -> dict[str, Any]:
    """Layout of a figure: white, a legend at the side, title and subtitle to the left. Both are literal texts."""
    below = f"<br><sup>{literal(subtitle)}</sup>" if subtitle else ""
    return {
        "template": "plotly_white",
        "title": {"text": literal(title) + below, "x": 0.01, "xanchor": "left"},
        "height": height,
        "margin": {"l": 70, "r": 30, "t": 80, "b": 60},
        "hoverlabel": {"align": "left", "namelength": -1},
        "legend": {"traceorder": "normal"},
        **more,
    }


def parts_of(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each rank, or of each trace, with what to call it; all of them, without a name, where neither is."""
    lead = next((name for name in ("trace", "rank") if name in frame.columns and frame[name].n_unique() > 1), None)
    if lead is None:
        return [("", frame)]
    groups = frame.partition_by(lead, as_dict=True, maintain_order=True)
    return [(f"rank {key[0]}" if lead == "rank" else str(key[0]), part) for key, part in groups.items()]
