"""What a figure is: the table that it draws, the options that give it the rows it needs, and one pure function.

A figure is a Plotly figure as plain values, as in JSON: {"data": […], "layout": {…}}. Drawing does not import Plotly.
Each mark may have an address (`link`), which a page opens when the mark is clicked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.errors import MissingTable

if TYPE_CHECKING:
    import polars as pl

#: A figure as JSON holds it.
Drawn = dict[str, Any]
#: The address of a row's details.
Link = Callable[[Mapping[str, Any]], str | None]


class Figure(msgspec.Struct, frozen=True):
    """A picture of a result table.

    `draw` takes the frame and a function that makes addresses of its rows, and returns the figure, or None if nothing
    in the rows is known. `title` is shown above it if the page has no title for it. `options` are needed for the rows
    that are drawn, if the table's defaults give other rows. `needs` are columns that the frame must have.
    """

    name: str
    title: str
    doc: str
    draw: Callable[[pl.DataFrame, Link | None], Drawn | None]
    needs: tuple[str, ...]
    options: Mapping[str, object] = msgspec.field(default_factory=lambda: MappingProxyType({}))

    def fits(self, frame: pl.DataFrame) -> bool:
        """Whether the frame has the columns that are drawn."""
        return set(self.needs) <= set(frame.columns)

    def __call__(self, frame: pl.DataFrame, link: Link | None = None) -> Drawn | None:
        """The figure, None if there is nothing to draw. Raises MissingTable (columns)."""
        if not self.fits(frame):
            lacking = [name for name in self.needs if name not in frame.columns]
            options = " ".join(f"{key}={value}" for key, value in self.options.items())
            hint = f"ask for {self.name} with {options}" if options else ""
            raise MissingTable(f"columns {', '.join(lacking)}", needed_by=f"the figure of {self.name}", hint=hint)
        return self.draw(frame, link)
