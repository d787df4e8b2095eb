"""What an analysis is: a name, the tables it reads, the table it returns, and one pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UnknownName
from stepscope.core.options import keyword_options

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    import polars as pl

    from stepscope.core.schema import Table
    from stepscope.core.trace import Trace


@dataclass(frozen=True, slots=True)
class Analysis:
    """A question that tables answer.

    `run` takes the frames of `inputs` in order (never empty: calling raises MissingTable first), then those of
    `optional` (perhaps empty), then keyword options. It returns a frame whose columns are all declared in `output`,
    in that order; a declared column may be absent when an option leaves it out. `needs_clock` is false of an analysis
    that can do without the start times of spans, which are then perhaps null.
    """

    name: str
    doc: str
    inputs: tuple[Table, ...]
    output: Table
    run: Callable[..., pl.DataFrame]
    optional: tuple[Table, ...] = ()
    needs_clock: bool = True

    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword options of `run`, by name: the command line and the docs are made from them."""
        return keyword_options(self.run)

    def __call__(self, trace: Trace, **options: Any) -> pl.DataFrame:
        """The result for one trace. Raises MissingTable, UnknownName (option)."""
        known = self.options()
        for name in options:
            if name not in known:
                raise UnknownName(f"option of {self.name}", name, known)
        frames = [trace.require(t.name, needed_by=self.name) for t in self.inputs]
        if self.needs_clock and "spans" in {t.name for t in (*self.inputs, *self.optional)}:
            trace.require_clock(needed_by=self.name)
        frames += [trace.table(t.name) for t in self.optional]
        return self.run(*frames, **options)
