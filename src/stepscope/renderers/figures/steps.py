"""What each step was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.units import count, duration
from stepscope.renderers.figures._style import COLOURS, axis, known, layout, links, scaled
from stepscope.renderers.figures.figure import Drawn, Figure, Link

if TYPE_CHECKING:
    import polars as pl

_MOST_STEPS = 400
_MS = 1e6
_DEVICE_PARTS = {"computation": "computation_ns", "exposed communication": "exposed_communication_ns",
                 "exposed memcpy": "exposed_memcpy_ns", "idle": "idle_ns"}  # fmt: skip
_HOST_PARTS = {"operators": "operator_ns", "data loading": "dataloader_ns", "Python and other": "other_host_ns"}
_TALK = "exposed communication"


def draw(frame: pl.DataFrame, link: Link | None) -> Drawn | None:
    """Stacked bars: the parts of each step on the device, or on the host where no device was recorded."""
    parts = _DEVICE_PARTS if known(frame, "idle_ns") else _HOST_PARTS
    if parts is _HOST_PARTS and known(frame, _DEVICE_PARTS[_TALK]):
        parts = {"operators": "operator_ns", _TALK: _DEVICE_PARTS[_TALK], **_HOST_PARTS}
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
    note = f"the first {count(shown.height)} of {count(frame.height)}" if frame.height > shown.height else ""
    # Few steps are narrow columns, not walls.
    look = layout(note=note, barmode="stack", bargap=max(0.2, 1 - 0.1 * shown.height))
    return {"data": data, "layout": {**look, "xaxis": axis("step", type="category"), "yaxis": axis("ms")}}


FIGURE = Figure("steps", "Steps and their parts", "what each step was made of", draw, ("step",))
