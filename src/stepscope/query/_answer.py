"""A query run on a locked connection: bounded in time and memory, without files, network or settings; its answer."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope import units
from stepscope.errors import StepscopeError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from duckdb import DuckDBPyConnection, DuckDBPyRelation

__all__ = ["answer", "connected", "locked"]

#: Types that go over as they are; whole numbers of 128 bits and decimals become those of 64, everything else text.
_PLAIN = re.compile(
    r"(BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|VARCHAR|DATE|TIMESTAMP(_S|_MS|_NS)?|BLOB)(\[\])*"
)
_WHOLE, _DECIMAL = re.compile(r"U?HUGEINT|DECIMAL\(\d+,0\)"), re.compile(r"DECIMAL\(.*\)")
_NO_COLUMN = re.compile(r'Referenced column "(?P<a>[^"]+)"|does not have a column named "(?P<b>[^"]+)"')
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
    """A database in memory, which sees the files of one folder and may use so much memory (80 % of it all if None)."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_CONFIG)
    if memory_bytes is not None:
        connection.execute(f"SET memory_limit = '{memory_bytes}B'")
    connection.execute("SET temp_directory = ''")  # what does not fit is refused, not written to the disk
    connection.execute("SET allowed_directories = [?]", [str(folder)])
    return connection


def locked(connection: DuckDBPyConnection, statements: Iterable[str]) -> None:
    """Run our own statements, then take the keys away."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    for statement in statements:
        connection.execute(statement)


def answer(
    connection: DuckDBPyConnection, text: str, *, timeout_s: float | None, columns: Iterable[str]
) -> pl.DataFrame:
    """The rows that a query gives. `columns` are those of the tables that it names, for the hint.

    Raises UnknownName (column), StepscopeError (whatever else DuckDB refuses, too slow, too much memory).
    """
    import duckdb

    timer = None if timeout_s is None else threading.Timer(timeout_s, connection.interrupt)
    try:
        if timer is not None:
            timer.start()
        relation = connection.sql(text).materialize()
        return pl.DataFrame(_Stream(_plain(relation)))
    except duckdb.InterruptException:
        if timer is None or timer.is_alive():
            raise KeyboardInterrupt from None
        what = f"no answer within {units.duration((timeout_s or 0) * 1e9)}"
        raise StepscopeError(what, "allow more with --timeout, or ask for fewer rows") from None
    except duckdb.OutOfMemoryException as error:
        hint = "allow more with --memory-limit, or ask for fewer rows"
        raise StepscopeError(f"the query needs too much memory: {_first_line(error)}", hint) from None
    except duckdb.Error as error:
        raise _refused(error, list(dict.fromkeys(columns))) from None
    finally:
        if timer is not None:
            timer.cancel()


def _plain(relation: DuckDBPyRelation) -> DuckDBPyRelation:
    """The same rows in types that Polars has. DuckDB has given each column a name of its own by now."""
    import duckdb

    try:
        return _projected(relation, "BIGINT")
    except duckdb.ConversionException:  # a sum beyond 64 bits is no longer exact, which is better than none
        return _projected(relation, "DOUBLE")


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
    return StepscopeError(f"the query fails: {_first_line(error)}", "the words are DuckDB's: see duckdb.org/docs/sql")


def _first_line(error: Any) -> str:
    return str(error).split("\n", 1)[0].split(" Error: ", 1)[-1]
