"""Lanes above each other on one axis of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.renderers.figures._style import axis, literal

if TYPE_CHECKING:
    from collections.abc import Sequence


def lane(at: int) -> str:
    """What marks call the vertical axis of a lane; 0 is the one on top."""
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
