"""Every figure by the name of the table that it draws. Plotly is imported when one is drawn.

A figure is a pure function of a result table: `find("roofline")(frame)` gives a `plotly.graph_objects.Figure`. Names
in it are escaped. To add one: a file here with `FIGURE`, a line in `_MODULES`, a test, a docs line.
"""

from __future__ import annotations

import importlib

from stepscope.errors import UnknownName
from stepscope.figures._record import Figure

__all__ = ["Figure", "find", "names"]

_MODULES = {
    "roofline": "stepscope.figures.roofline",
    "utilisation": "stepscope.figures.utilisation",
    "timeline": "stepscope.figures.timeline",
    "device-utilisation": "stepscope.figures.device_utilisation",
}


def names() -> list[str]:
    """Names of the tables that can be drawn."""
    return list(_MODULES)


def find(name: str) -> Figure:
    """The figure that draws the table of that name. Raises UnknownName."""
    if name not in _MODULES:
        raise UnknownName("figure", name, names())
    found = importlib.import_module(_MODULES[name]).FIGURE
    if not isinstance(found, Figure):
        msg = f"{name}: the module gives {type(found).__name__}, not a Figure"
        raise TypeError(msg)
    return found
