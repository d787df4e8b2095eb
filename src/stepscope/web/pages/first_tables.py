"""The tables that the first page needs of each file, worked out where the file is read, perhaps in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.collectives import HOST_LIBRARIES
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.query import tables
from stepscope.query.map_files import results_of
from stepscope.web.pages.table_query import Question, answered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from stepscope.core.trace import Meta, Trace
    from stepscope.web.session import Session

    Options = tuple[tuple[str, Any], ...]
    Result = tuple[int | None, pl.DataFrame | StepscopeError]

#: Spans of the host in which it waits, used where no device was recorded.
WAITS = (
    "category = 'dataloader' OR (category IN ('operator', 'user_range') AND ("
    + " OR ".join(f"name LIKE '{library}:%'" for library in (*HOST_LIBRARIES, "ccl"))
    + "))"
)
LONGEST_GAP: Options = (("by", "gap"), ("longest", 1))
_TABLES: tuple[tuple[str, Options], ...] = (
    ("steps", ()), ("kernels", (("by", "op"),)), ("idle", LONGEST_GAP),
    ("memory", ()), ("memory", (("by", "operator"),)),
)  # fmt: skip


class FileTables(msgspec.Struct, frozen=True):
    """What the first page needs of one file: its rank, whether its operators have call stacks, tables by question."""

    meta: Meta
    rank: int | None
    with_stacks: bool
    results: Mapping[tuple[str, Options, str], Result]


def first_tables(trace: Trace) -> FileTables:
    """Those of a trace. A table that it lacks is the error that says so."""
    results = {(name, options, ""): _result(trace, name, options) for name, options in _TABLES}
    if isinstance(results["idle", LONGEST_GAP, ""][1], MissingTable):
        rank, spans = _result(trace, "spans", ())
        known = spans if isinstance(spans, StepscopeError) else tables.filtered(spans, WAITS)
        results["spans", (), WAITS] = (rank, known)
    return FileTables(trace.meta, trace.rank, has_stacks(trace), results)


def _result(trace: Trace, name: str, options: Options) -> Result:
    return next(results_of(trace, tables.find(name), dict(options), None))


def has_stacks(trace: Trace) -> bool:
    """Whether operators of the trace have call stacks."""
    stacks = trace.ops["stack_id"]
    return stacks.null_count() < len(stacks)


class Frames(msgspec.Struct, frozen=True):
    """Answers questions about some inputs: from the tables that are known by path, else by reading."""

    session: Session
    inputs: tuple[int, ...]
    known: Mapping[str, FileTables]

    def __call__(
        self, name: str, *, where: str = "", inputs: tuple[int, ...] | None = None, **options: Any
    ) -> pl.DataFrame:
        """The rows of a table. Raises StepscopeError."""
        question = Question(name, inputs or self.inputs, tuple(options.items()), where=where)
        key = (name, question.options, where)
        if len(question.inputs) == 1:
            of_file = self.known.get(self.session.path(question.inputs[0]))
            if of_file is not None and key in of_file.results:
                frame = of_file.results[key][1]
                if isinstance(frame, StepscopeError):
                    raise frame
                return frame

        def each(function: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
            files = [self.known.get(path) for path in paths]
            return [
                function(path) if one is None or key not in one.results else one.results[key]
                for path, one in zip(paths, files, strict=True)
            ]

        return answered(self.session, question, each=each if self.known else None).frame

    def with_stacks(self) -> bool:
        """Whether operators of the first of the inputs have call stacks. Raises StepscopeError."""
        first = self.known.get(self.session.path(self.inputs[0]))
        return has_stacks(self.session.trace(self.inputs[0])) if first is None else first.with_stacks
