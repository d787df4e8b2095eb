"""What an analysis is: one pure function that answers a question about a trace, a pair of traces, or all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from stepscope.core.errors import MissingTable
from stepscope.core.options import check_options, options_of
from stepscope.core.remedies import advised
from stepscope.core.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

    import polars as pl

    from stepscope.core.options import Option
    from stepscope.core.table import Table
    from stepscope.core.trace import Trace

Scope = Literal["trace", "pair", "ranks"]


class Analysis(msgspec.Struct, frozen=True):
    """A question that tables answer.

    `run` returns a frame whose columns are all declared in `output`, in that order; a declared column may be absent
    when an option leaves it out. What `run` takes before its keyword options depends on `scope`:

    - `"trace"`: the frames of `inputs` in order (never empty: calling raises MissingTable first), then those of
      `optional` (perhaps empty). `needs_clock` is false if the analysis works without start times of spans, which are
      then perhaps null.
    - `"pair"`: two traces, the base first.
    - `"ranks"`: a sequence of `stepscope.analyses.ranks.calls.RankCalls`. `rank_calls` makes one of each trace, one at
      a time, perhaps in many processes.
    """

    name: str
    doc: str
    inputs: tuple[Table, ...]
    output: Table
    run: Callable[..., pl.DataFrame]
    optional: tuple[Table, ...] = ()
    needs_clock: bool = True
    scope: Scope = "trace"

    def options(self) -> dict[str, Option]:
        """Keyword options of `run` by name."""
        return options_of(self.run)

    def __call__(self, *subjects: Any, **options: Any) -> pl.DataFrame:
        """The result for one trace, for a base and another trace, or for what was made of each rank.

        Raises MissingTable, UnknownName (option, or choice of one).
        """
        check_options(self.name, options, self.options())
        if self.scope == "ranks":
            return self.run(*subjects, **options)
        try:
            if self.scope == "trace":
                return self.run(*self._frames(*subjects), **options)
            for trace in subjects:
                trace.require_clock(needed_by=self.name)
            return self.run(*subjects, **options)
        except MissingTable as error:
            advised(error, subjects[0])
            raise

    def _frames(self, trace: Trace) -> list[pl.DataFrame]:
        frames = [trace.require(table.name, needed_by=self.name) for table in self.inputs]
        if self.needs_clock and "spans" in {table.name for table in (*self.inputs, *self.optional)}:
            trace.require_clock(needed_by=self.name)
        return [*frames, *(trace.table(table.name) for table in self.optional)]


def analysis_of(
    run: Callable[..., pl.DataFrame], output: Table, doc: str, *, scope: Scope = "trace", needs_clock: bool = True
) -> Analysis:
    """The analysis of the name of its output. If of a trace, it reads the tables that the parameters of `run` name.

    Those with a default are `optional`.
    """
    function = cast("FunctionType", run)  # its signature takes long to make, for each analysis that is imported
    names = function.__code__.co_varnames[: function.__code__.co_argcount] if scope == "trace" else ()
    n_inputs = len(names) - len(function.__defaults__ or ())
    inputs, optional = ([TABLES[name] for name in some] for some in (names[:n_inputs], names[n_inputs:]))
    return Analysis(output.name, doc, tuple(inputs), output, run, tuple(optional), needs_clock, scope)
