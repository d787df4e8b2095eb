"""What an analysis of ranks is: a name, the table it returns, and one pure function of what each rank recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.analyses.ranks.calls import CALLS
from stepscope.core.errors import UnknownName
from stepscope.core.options import keyword_options

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Sequence

    import polars as pl

    from stepscope.analyses.ranks.calls import RankCalls
    from stepscope.core.schema import Table


@dataclass(frozen=True, slots=True)
class RankAnalysis:
    """A question that all ranks of a job answer together.

    The work has two parts. `stepscope.analyses.ranks.calls.rank_calls` makes a small table of each trace, one at a
    time, perhaps in many processes. `run` takes these, then keyword options, and returns a frame whose columns are
    all declared in `output`, in that order; a declared column may be absent when an option leaves it out.
    """

    name: str
    doc: str
    output: Table
    run: Callable[..., pl.DataFrame]

    @property
    def needs(self) -> Table:
        """The table that is made of each trace."""
        return CALLS

    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword options of `run`, by name: the command line and the docs are made from them."""
        return keyword_options(self.run)

    def __call__(self, parts: Sequence[RankCalls], **options: Any) -> pl.DataFrame:
        """The result for the ranks. Raises MissingTable, UnknownName (option)."""
        known = self.options()
        for name in options:
            if name not in known:
                raise UnknownName(f"option of {self.name}", name, known)
        return self.run(parts, **options)
