"""SQL over the tables of traces and the results of analyses, of all ranks at once, by DuckDB."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import store
from stepscope.core.errors import UnknownName
from stepscope.core.schema import TABLES
from stepscope.query.sql.answer import answer, connected, locked
from stepscope.query.sql.guard import names_in
from stepscope.query.sql.views import known_names, resolve, tables, views_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from stepscope.core.errors import StepscopeError
    from stepscope.core.trace import Run, Trace
    from stepscope.query.sql.views import View

__all__ = ["TIMEOUT_S", "known_names", "run", "tables"]

#: The default time limit of a query.
TIMEOUT_S = 300.0


def run(
    source: Trace | Run,
    text: str,
    *,
    timeout_s: float | None = TIMEOUT_S,
    memory_bytes: int | None = None,
    on_missing: Callable[[str, StepscopeError], None],
    prepare: Callable[[], None] | None = None,
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> pl.DataFrame:
    """What a SELECT gives over the traces.

    Tables are called as in `stepscope show`, with _ for -: analyses, tables of the trace (`trace.steps` where both
    have the name), and `traces`, a row for each. Each has the columns `rank` and `trace`. The query sees nothing else:
    no files, no network, no settings. `information_schema.tables` and `.columns` list what it may name.

    `prepare` is called once the query is understood, before traces are read;
    `on_start` when it begins to run, with a function that stops it, from another thread.

    Units: those of the columns. Raises UnknownName (table, column), MissingTable (no trace has it), StepscopeError
    (anything but a SELECT, too slow, too much memory). Traces that are left out are reported to `on_missing`.
    """
    with _folder() as folder:
        connection = connected(folder, memory_bytes)
        try:
            wanted = resolve(names_in(text, connection))
            if prepare is not None:
                prepare()
            locked(connection, views_of(source, wanted, folder, on_missing))
            columns = [name for view in wanted for name in _columns(view.question)]
            try:
                named = ["rank", "trace", *columns]
                return answer(connection, text, timeout_s=timeout_s, columns=named, on_start=on_start)
            except UnknownName as error:
                raise _explained(error, wanted) from None
        finally:
            connection.close()


def _explained(error: UnknownName, wanted: Sequence[View]) -> UnknownName:
    """Say what lists all columns, and where an analysis has the name of a table of the trace, which has the column."""
    named = {f"{view.schema}.{view.name}" if view.schema else view.name for view in wanted}
    if len(named) == 1:
        error.hint = f"{error.hint}; DESCRIBE {min(named)} lists all"
    for view in wanted:
        if view.raw is None and view.name in TABLES and error.name in TABLES[view.name].dtypes:
            error.hint = f"{view.name} is the analysis here; the table trace.{view.name} has {error.name}. {error.hint}"
    return error


def _columns(question: object) -> list[str]:
    output = getattr(question, "output", None)
    return [] if output is None else [column.name for column in output.columns]


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the files of one query: on the disk of the cache, where kept tables can be linked."""
    with ExitStack() as stack:
        where = store.cache_folder()
        try:
            folder = None if where is None else stack.enter_context(store.scratch_folder(where.folder))
        except OSError:  # the cache may not be written to
            folder = None
        yield folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepscope-")))
