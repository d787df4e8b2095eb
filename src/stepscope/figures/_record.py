"""What a figure is: the table that it draws, the options that give it the rows it needs, and one pure function."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture of a result table.

    `draw` takes the frame and returns a `plotly.graph_objects.Figure`. `options` are those with which the analysis of
    that name gives rows to draw, where its defaults give others; `needs` are columns that the frame must have.
    """

    name: str
    doc: str
    draw: Callable[[pl.DataFrame], Any]
    needs: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def fits(self, frame: pl.DataFrame) -> bool:
        """Whether the frame has the columns that are drawn."""
        return set(self.needs) <= set(frame.columns)

    def __call__(self, frame: pl.DataFrame) -> Any:
        """The figure. Raises MissingTable if the frame has not the columns that are drawn."""
        if not self.fits(frame):
            lacking = [name for name in self.needs if name not in frame.columns]
            words = " ".join(f"{key}={value}" for key, value in self.options.items())
            hint = f"ask for {self.name} with {words}" if words else ""
            raise MissingTable(f"columns {', '.join(lacking)}", needed_by=f"the figure of {self.name}", hint=hint)
        return self.draw(frame)
