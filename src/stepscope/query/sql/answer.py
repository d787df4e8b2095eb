"""Runs a query on a locked connection: bounded in time and memory, without files, network or settings."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.core import units
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from duckdb import DuckDBPyConnection, DuckDBPyRelation

#: Types that go over as they are; whole numbers of 128 bits and decimals become those of 64, everything else text.
_PLAIN = regex(
    r"(BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|VARCHAR|DATE|TIMESTAMP(_S|_MS|_NS)?|BLOB)(\[\])*"
)
_FIXED = regex(r"BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|DATE|TIMESTAMP(_S|_MS|_NS)?")
_LESS_MEMORY = "ask for fewer rows, or allow more: stepscope sql --memory-limit SIZE"
_WHOLE, _DECIMAL = regex(r"U?HUGEINT|DECIMAL\(\d+,0\)"), regex(r"DECIMAL\(.*\)")
_NO_COLUMN = regex(r'Referenced column "(?P<a>[^"]+)"|does not have a column named "(?P<b>[^"]+)"')
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
}


class _Stream:
    """The relation as nothing but a stream: Polars keeps the types that it is given, which this one outlives."""

    def __init__(self, relation: DuckDBPyRelation) -> None:
        self._relation = relation

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._relation.__arrow_c_stream__(requested_schema)


def connected(folder: Path, memory_bytes: int | None) -> DuckDBPyConnection:
    """A database in memory that may read one folder and use `memory_bytes` (80 % of all memory if None)."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG)
    if memory_bytes is not None:
        connection.execute(f"SET memory_limit = '{memory_bytes}B'")
    connection.execute("SET temp_directory = ''")  # what does not fit is refused, not written to the disk
    connection.execute("SET allowed_directories = [?]", [str(folder)])
    return connection


def locked(connection: DuckDBPyConnection, statements: Iterable[str]) -> None:
    """Turn off external access, lock the settings, then run our own statements."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for statement in statements:
        connection.execute(statement)


def answer(
    connection: DuckDBPyConnection,
    text: str,
    *,
    timeout_s: float | None,
    columns: Iterable[str],
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> pl.DataFrame:
    """The rows of a query. `columns` are those of the tables in it, for hints in errors.

    `on_start` is given a function that stops the query, from another thread and at any time.
    Raises UnknownName (column), StepscopeError (whatever else DuckDB refuses, too slow, too much memory, stopped).
    """
    import duckdb

    try:
        with _stoppable(connection, timeout_s, on_start):
            relation = _plain(connection.sql(text).materialize())
            _check_size(connection, relation)
            return pl.DataFrame(_Stream(relation))
    except duckdb.OutOfMemoryException as error:
        raise StepscopeError(f"the query needs too much memory: {_first_line(error)}", _LESS_MEMORY) from None
    except duckdb.Error as error:
        raise _refused(error, list(dict.fromkeys(columns))) from None


@contextmanager
def _stoppable(
    connection: DuckDBPyConnection, timeout_s: float | None, on_start: Callable[[Callable[[], None]], None] | None
) -> Iterator[None]:
    """Queries inside are interrupted after a time, or by the function given to `on_start`."""
    import duckdb

    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        with suppress(duckdb.ConnectionException):  # it is over, and closed
            connection.interrupt()

    timer = None if timeout_s is None else threading.Timer(timeout_s, connection.interrupt)
    if on_start is not None:
        on_start(stop)
    try:
        if stopped.is_set():
            raise _stopped()
        if timer is not None:
            timer.start()
        yield
    except duckdb.InterruptException:
        if stopped.is_set():
            raise _stopped() from None
        if timer is None or timer.is_alive():
            raise KeyboardInterrupt from None
        what = f"no answer within {units.duration((timeout_s or 0) * 1e9)}"
        raise StepscopeError(what, "ask for fewer rows, or allow more: stepscope sql --timeout 10m") from None
    finally:
        if timer is not None:
            timer.cancel()


def _stopped() -> StepscopeError:
    return StepscopeError("the query was stopped", "ask again")


def _plain(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """The same rows in types that Polars has. By now DuckDB has made the column names unique."""
    import duckdb

    try:
        return _projected(relation, "BIGINT")
    except duckdb.ConversionException:  # a sum beyond 64 bits is no longer exact, which is better than none
        return _projected(relation, "DOUBLE")


def _check_size(connection: DuckDBPyConnection, relation: DuckDBPyRelation) -> None:
    """Raise StepscopeError if the rows would exceed the memory limit: DuckDB stores repeated values only once."""
    kinds = [str(kind) for kind in relation.types]
    texts = [f"sum(strlen(#{i}::VARCHAR))" for i, kind in enumerate(kinds, 1) if not _FIXED.fullmatch(kind)]
    (n_rows, *lengths), *_ = relation.aggregate(", ".join(["count(*)", *texts])).fetchall()
    n_bytes = n_rows * 8 * len(kinds) + sum(int(n or 0) for n in lengths)
    (limit,), *_ = connection.execute("SELECT current_setting('memory_limit')").fetchall()
    if n_bytes > units.parse_size(limit):
        raise StepscopeError(f"the query needs too much memory: its rows take {units.size(n_bytes)}", _LESS_MEMORY)


def _projected(relation: DuckDBPyRelation, whole: str) -> DuckDBPyRelation:
    columns = zip(relation.types, relation.columns, strict=True)
    casts = [f"{_cast(i, str(kind), whole)} AS {_quoted(name)}" for i, (kind, name) in enumerate(columns, 1)]
    return relation.project(", ".join(casts)).materialize()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cast(position: int, kind: str, whole: str) -> str:
    if _PLAIN.fullmatch(kind):
        return f"#{position}"
    if _WHOLE.fullmatch(kind):
        return f"#{position}::{whole}"
    return f"#{position}::{'DOUBLE' if _DECIMAL.fullmatch(kind) else 'VARCHAR'}"


def _refused(error: Any, columns: list[str]) -> StepscopeError:
    text = str(error)
    missing = _NO_COLUMN.search(text)
    if missing:
        return UnknownName("column", missing["a"] or missing["b"], columns)
    return StepscopeError(f"the query fails: {_first_line(error)}", "this message is DuckDB's; see duckdb.org/docs/sql")


def _first_line(error: Any) -> str:
    return str(error).split("\n", 1)[0].split(" Error: ", 1)[-1]
