"""What all figures share: colours, axes, layout, units, and escaped names, so that Plotly draws them as they are.

Figures suit light and dark pages: backgrounds are clear, lines are grey, and text takes the colour of the page.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from stepscope.core.names import KERNEL_CLASSES, shorten_column
from stepscope.core.report import printable
from stepscope.core.step_parts import COMMUNICATION, COMPUTATION, IDLE, LOADING, MEMCPY, OPERATORS, OTHER
from stepscope.core.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from stepscope.renderers.figures.figure import Drawn, Link

#: Parts of a step in all figures: neighbours differ in both hue and lightness.
COLOURS = {
    COMPUTATION: "#3a86c8", COMMUNICATION: "#c2569b", MEMCPY: "#d1603d", IDLE: "#9aa3ad",
    LOADING: "#e0a030", "synchronisation": "#5f6b7a", "launch and runtime calls": "#8c6d46",
    OPERATORS: "#2a9d8f", OTHER: "#7a6cc0", "python and other": "#7a6cc0", "other": "#7a6cc0",
    "exposed": "#c2569b", "hidden": "#7fb6dd",
}  # fmt: skip
#: Changes: longer, shorter.
LONGER, SHORTER = "#c2569b", "#3a86c8"
#: For everything without a colour of its own: Okabe and Ito's colours, then lighter ones.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#7F7F7F",
    "#8C564B", "#636EFA", "#9467BD", "#17BECF", "#AEC7E8", "#FFBB78", "#98DF8A", "#FF9896", "#C5B0D5", "#C7C7C7",
)  # fmt: skip
COLOUR_OF_CLASS: Mapping[str, str] = dict(zip(KERNEL_CLASSES, PALETTE, strict=True))
NO_CLASS = "#C7C7C7"
#: Lines that are visible on white and on black.
GREY, FAINT = "#888888", "rgba(128, 128, 128, 0.25)"
CLEAR = "rgba(0, 0, 0, 0)"
_LINE = 90
_LONGEST = 400
_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_ABOVE = {"": 14, "top": 44, "side": 14}
_TITLE, _NOTE = 46, 28


def first_of(n_shown: int, n_all: int, what: str = "") -> str:
    """The note of a figure that draws only the first rows; empty if it draws all."""
    return f"the first {count(n_shown)} of {count(n_all)} {what}".rstrip() if n_all > n_shown else ""


def literal(text: object) -> str:
    """The text as Plotly draws it letter by letter: its own markup is a part of HTML, quotes mean nothing in it."""
    return printable(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def clipped(text: str, room: int) -> str:
    """The beginning of a text in at most `room` letters, literal."""
    return literal(text if len(text) <= room else text[: room - 1] + "…")


def broken(text: str) -> str:
    """A long name in lines, without its end if it is very long."""
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "<br>".join(literal(line) for line in textwrap.wrap(text, _LINE)) or "–"


def wrapped(text: str, width: int, most: int = 3) -> str:
    """A text in literal lines of some `width` letters, at most so many of them."""
    lines = textwrap.wrap(text, width, max_lines=most, placeholder=" …")
    return "<br>".join(map(literal, lines)) or "–"


def shown_names(names: Sequence[str], room: int) -> list[str]:
    """The names in at most `room` letters each, different ones different, literal.

    >>> shown_names(["void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, int>(int)"], 60)
    ['vectorized_elementwise_kernel&lt;4, MulFunctor&lt;float&gt;, int&gt;']
    """
    return [literal(name) for name in shorten_column(names, room)]


def time_unit(starts: pl.Series, lengths: pl.Series) -> tuple[str, float]:
    """The unit of an axis up to the last end of these time ranges (ns), and that unit's length in ns."""
    ends = (starts + lengths).drop_nulls().to_numpy()
    most_ns = float(ends.max()) if ends.size else 0.0
    return next(((unit, ns) for unit, ns in _UNITS if most_ns >= 2 * ns), _UNITS[-1])


def scaled(values: pl.Series, by: float) -> list[float | None]:
    """The values in a larger unit; what is unknown stays so."""
    return [None if v is None else round(v / by, 6) for v in values]


def known(frame: pl.DataFrame, *columns: str) -> bool:
    """Whether each of the columns is there and holds something."""
    return all(c in frame.columns and frame[c].null_count() < frame.height for c in columns)


def links(frame: pl.DataFrame, link: Link | None) -> list[str | None]:
    """The address of each row, for `customdata`."""
    return [None if link is None else link(row) for row in frame.iter_rows(named=True)]


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with its title, a literal text."""
    return {
        "title": {"text": literal(title)},
        "automargin": True,
        "gridcolor": FAINT,
        "zerolinecolor": FAINT,
        "linecolor": FAINT,
        **more,
    }


def layout(*, note: str = "", height: int = 300, legend: str = "top", **more: Any) -> dict[str, Any]:
    """Layout of a figure. `note` is a literal line above it; the legend is at its top, its side, or nowhere ('')."""
    above = _ABOVE[legend] + (_NOTE if note else 0)
    made: dict[str, Any] = {
        "height": height + (_NOTE if note else 0),
        "margin": {"l": 60, "r": 20, "t": above, "b": 45},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": bool(legend),
        "legend": {"traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        **more,
    }
    if legend == "top":
        made["legend"] |= {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
    if note:
        made["title"] = _line_above(literal(note))
    return made


def titled(drawn: Drawn, title: str) -> Drawn:
    """A copy of a figure with a title, for places where nothing around it says what it shows."""
    inside = drawn["layout"]
    note = inside.get("title", {}).get("text", "")
    margin = {**inside["margin"], "t": inside["margin"]["t"] + _TITLE}
    text = f"<b>{literal(title)}</b>" + (f"<br><sup>{note}</sup>" if note else "")
    height = inside["height"] + _TITLE
    return {**drawn, "layout": {**inside, "title": _line_above(text), "margin": margin, "height": height}}


def _line_above(text: str) -> dict[str, Any]:
    return {"text": text, "font": {"size": 13}, "x": 0, "xref": "container", "xanchor": "left", "yref": "container",
            "y": 1, "yanchor": "top", "pad": {"t": 8, "l": 12}}  # fmt: skip


def parts_of(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each rank, or of each trace, with its name; without either, all rows with an empty name."""
    lead = next((name for name in ("trace", "rank") if name in frame.columns and frame[name].n_unique() > 1), None)
    if lead is None:
        return [("", frame)]
    groups = frame.partition_by(lead, as_dict=True, maintain_order=True)
    return [(f"rank {key[0]}" if lead == "rank" else str(key[0]), part) for key, part in groups.items()]
