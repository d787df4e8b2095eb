"""What a comparison is: a name, the table it returns, and one pure function of two traces."""

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
class Comparison:
    """A question that two traces answer: `run` takes the base, the other and keyword options.

    It returns a frame whose columns are all declared in `output`, in that order; a declared column may be absent when
    an option leaves it out.
    """

    name: str
    doc: str
    output: Table
    run: Callable[..., pl.DataFrame]

    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword options of `run`, by name: the command line and the docs are made from them."""
        return keyword_options(self.run)

    def __call__(self, base: Trace, other: Trace, **options: Any) -> pl.DataFrame:
        """The result for two traces. Raises MissingTable, UnknownName (option)."""
        known = self.options()
        for name in options:
            if name not in known:
                raise UnknownName(f"option of {self.name}", name, known)
        for trace in (base, other):
            trace.require_clock(needed_by=self.name)
        return self.run(base, other, **options)
