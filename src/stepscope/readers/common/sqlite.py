"""Columns of an SQLite file as arrays, in bulk: what readers of databases share.

Rows reach Python one by one, and each value of a row costs as much as decoding it. Several small numbers are therefore
read as one: SQLite shifts them together, NumPy takes them apart. A row in which a number does not fit its bits, or is
null, is read again on its own, so that nothing is lost where a value is unusual. Rows of a big table are read by
several processes.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import contextmanager
from itertools import chain, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import numpy as np
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.machine import cores_for_threads
from stepscope.readers.common.columns import ABSENT, nullable
from stepscope.readers.common.forked import MOST_PROCESSES, UnfinishedError, can_fork, deadline_of, forget, forked, put
from stepscope.readers.common.source import CHUNK, IssueLog, give_back, no_collection, packing_of

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source

    Rows = NDArray[np.int64]

#: Bits of a column that shares its number with none.
WIDE = 64
_ROWS = 5_000
#: A process more pays from so many rows on.
_LEAST_ROWS = 100_000
#: So many rows are copied at a time of what a process left, which starts after so many bytes.
_PIECE, _BEFORE = 100_000, 8
#: Names of a row's number, unless a column has that name.
_ROW_NUMBERS = {"rowid", "oid", "_rowid_"}
_IDS = 30_000
_MOST_BITS = 62  # a packed number is never negative, and -1 says that a row is to be read again
_HEADER = 100
#: A view may describe any amount of rows and work: a query gives no more rows than the file has bytes, and all take no
#: more instructions of SQLite's machine than these, of which reading a table takes some 20 for each value.
_MOST_INSTRUCTIONS, _MOST_PER_BYTE, _CHECK_EVERY = 20_000_000, 200, 100_000
_LEAST_LENGTH = 1 << 22


class Database:
    """An open file: its tables with their columns, and those columns as arrays. Names of tables are as in the file."""

    def __init__(self, path: str, connection: sqlite3.Connection, issues: IssueLog, most_rows: int) -> None:
        self._path, self._db, self._issues, self._most_rows = path, connection, issues, most_rows
        tables = self.rows("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._names = {str(name) for (name,) in tables}
        self._columns: dict[str, tuple[str, ...]] = {}

    def __contains__(self, table: str) -> bool:
        """Whether there is a table (or a view) of that name."""
        return table in self._names

    @property
    def tables(self) -> list[str]:
        """All tables and views."""
        return sorted(self._names)

    def columns_of(self, table: str) -> tuple[str, ...]:
        """Names of the columns of a table; none if it is not there."""
        if table not in self._columns:
            info = self.rows(f"PRAGMA table_info({_quoted(table)})") if table in self else []
            self._columns[table] = tuple(row[1] for row in info)
        return self._columns[table]

    def rows(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query: for small tables."""
        rows = self._db.execute(sql, arguments).fetchmany(self._most_rows + 1)
        self._check(len(rows))
        return rows

    def _check(self, n_rows: int) -> None:
        """Raise sqlite3.DataError if a query gives more rows than the file can hold."""
        if n_rows > self._most_rows:
            raise sqlite3.DataError("it describes more rows than it has bytes")

    def texts(self, table: str, ids: Iterable[int]) -> dict[int, str]:
        """The texts of some ids of a table (id, value). Ids that it does not hold are left out."""
        wanted = sorted(set(ids))
        texts: dict[int, str] = {}
        for at in range(0, len(wanted) if table in self else 0, _IDS):
            some = ",".join(map(str, wanted[at : at + _IDS]))
            which = f"id IN ({some}) AND typeof(id) = 'integer' AND value IS NOT NULL"
            texts.update(self.rows(f"SELECT id, CAST(value AS TEXT) FROM {_quoted(table)} WHERE {which}"))  # noqa: S608
        return texts

    def column(self, table: str, expression: str, where: str = "1") -> list[Any]:
        """One column as a list, in the order of the table: for texts and for numbers with fractions."""
        sql = f"SELECT {expression} FROM {_quoted(table)} WHERE {where}"  # noqa: S608
        return [value for (value,) in self.rows(sql)]

    def frame(self, table: str, columns: Mapping[str, str], texts: Sequence[str] = ()) -> pl.DataFrame:
        """Some columns of a table under new names: whole numbers, except `texts`. Empty if there is no such table."""
        schema = {new: pl.String() if new in texts else pl.Int64() for new in columns}
        have = {new: old for new, old in columns.items() if old in self.columns_of(table)}
        if not have:
            return pl.DataFrame(schema=schema)
        numbers = self.columns(table, {old: WIDE for new, old in have.items() if new not in texts})
        series = [
            pl.Series(new, self.column(table, _quoted(old)), pl.String, strict=False)
            if new in texts
            else nullable(numbers[old], pl.Int64()).rename(new)
            for new, old in have.items()
        ]
        frame = pl.DataFrame(series)
        return frame.with_columns(pl.lit(None, schema[new]).alias(new) for new in columns if new not in have).select(
            *columns
        )

    def columns(self, table: str, bits: Mapping[str, int], where: str = "1") -> Columns:
        """Columns of whole numbers by name, in the order of the table: ABSENT where null, or where there is no such.

        `bits` says how many each column's values usually fit into, or WIDE. `where` is a condition in SQL.
        """
        have = {name: n for name, n in bits.items() if name in self.columns_of(table)}
        n_rows = int(self.rows(f"SELECT count(*) FROM {_quoted(table)} WHERE {where}")[0][0])  # noqa: S608
        self._check(n_rows)
        result = Columns({name: np.full(n_rows, ABSENT, np.int64) for name in bits if name not in have})
        groups = _groups(have)
        packed = self._integers(table, [_expression(group) for group in groups], where, n_rows)
        for group, values in zip(groups, packed, strict=True):
            if len(group) == 1:
                result[group[0][0]] = values
            else:
                result.add(_Packed(values, group, *self._odd(table, group, values, where)))
        return result

    def _odd(self, table: str, group: list[tuple[str, int]], packed: Rows, where: str) -> tuple[Rows, dict[str, Rows]]:
        """Rows with a number that did not fit, and all numbers of those rows."""
        odd = np.flatnonzero(packed < 0)
        if not odd.size:
            return odd, {}
        again = [_expression([(name, WIDE)]) for name, _ in group]
        values = self._integers(table, again, f"({where}) AND NOT ifnull({_fits(group)}, 0)", odd.size)
        return odd, {name: column for (name, _), column in zip(group, values, strict=True)}

    def _integers(self, table: str, expressions: list[str], where: str, n_rows: int) -> list[Rows]:
        try:
            return self._whole(table, expressions, where, n_rows)
        except (TypeError, ValueError, OverflowError):
            pass
        other = " + ".join(f"(typeof({e}) NOT IN ('integer', 'real') AND NOT {_digits(e)})" for e in expressions)
        n_other = self.rows(f"SELECT sum({other}) FROM {_quoted(table)} WHERE {where}")[0][0]  # noqa: S608
        what = f"values of the table {table} that are not numbers were left out"
        self._issues.add("not_numbers", "warning", int(n_other or 0), what)
        return self._whole(table, [_only_numbers(e) for e in expressions], where, n_rows)

    def _whole(self, table: str, expressions: list[str], where: str, n_rows: int) -> list[Rows]:
        columns = [np.empty(n_rows, np.int64) for _ in expressions]
        if not expressions or not n_rows:
            return columns
        sql = f"SELECT {', '.join(expressions)} FROM {_quoted(table)} WHERE ({where})"  # noqa: S608
        parts = self._parts(table, n_rows)
        try:
            if len(parts) > 1 and self._in_parts([f"{sql} AND {part}" for part in parts], columns):
                return columns
        except (UnfinishedError, OSError):
            pass
        _fill(columns, 0, _blocks(self._db, sql, len(columns)))
        return columns

    def _parts(self, table: str, n_rows: int) -> list[str]:
        """Conditions for parts of about the same size of a table, in its order; one if the table cannot be cut."""
        n = min(cores_for_threads(), MOST_PROCESSES, n_rows // _LEAST_ROWS)
        if n < 2 or not can_fork() or {name.lower() for name in self.columns_of(table)} & _ROW_NUMBERS:
            return ["1"]
        # Views have no numbers of rows, nor have some tables. An index might give its rows in its own order.
        what = self.rows("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,))
        is_plain = len(what) == 1 and what[0][0] == "table" and "WITHOUT" not in str(what[0][1]).upper()
        if not is_plain or self.rows(f"PRAGMA index_list({_quoted(table)})"):
            return ["1"]
        low, high = self.rows(f"SELECT min(rowid), max(rowid) FROM {_quoted(table)}")[0]  # noqa: S608
        ends = [low + (high - low) * i // n for i in range(1, n)]
        conditions = [f"rowid > {begin} AND rowid <= {end}" for begin, end in pairwise(ends)]
        return [f"rowid <= {ends[0]}", *conditions, f"rowid > {ends[-1]}"]

    def _in_parts(self, queries: list[str], columns: list[Rows]) -> bool:
        """Fill the columns with the rows of all queries, each run by a process. False if there are more or fewer rows.

        Raises UnfinishedError, OSError.
        """
        n_bytes, n_values = self._most_rows, len(columns)

        def work_of(sql: str) -> Callable[[int], None]:
            def work(handle: int) -> None:
                put(handle, bytes(_BEFORE))  # memory of no length cannot be mapped
                for block in _blocks(_connected(self._path, n_bytes)[0], sql, n_values):
                    put(handle, block.data.cast("B"))

            return work

        began = time.monotonic()
        with forked([work_of(sql) for sql in queries[1:]]) as results:
            at = _fill(columns, 0, _blocks(self._db, queries[0], n_values))
            deadline = deadline_of(time.monotonic() - began)
            for result in results:
                at = _fill(columns, at, _pieces(result(deadline), n_values))
        return at == columns[0].size


def _blocks(connection: sqlite3.Connection, sql: str, n_values: int) -> Iterator[Rows]:
    """What a query gives, a few rows at a time: rows × values."""
    cursor = connection.execute(sql)
    while rows := cursor.fetchmany(_ROWS):
        yield np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * n_values).reshape(-1, n_values)


def _pieces(left: mmap.mmap, n_values: int) -> Iterator[Rows]:
    """What a process left of its rows, a few at a time. The memory of each piece is given up with the next."""
    rows = np.frombuffer(left, np.int64, offset=_BEFORE).reshape(-1, n_values)
    for at in range(0, len(rows), _PIECE):
        piece = rows[at : at + _PIECE]
        yield piece
        forget(left, _BEFORE + at * n_values * 8, _BEFORE + at * n_values * 8 + piece.nbytes)


def _fill(columns: list[Rows], at: int, blocks: Iterable[Rows]) -> int:
    """Put blocks of rows × values into columns from row `at` on. Gives the row after them, also beyond the last."""
    for block in blocks:
        for i, column in enumerate(columns if at + len(block) <= columns[0].size else ()):
            column[at : at + len(block)] = block[:, i]
        at += len(block)
    return at


class Columns(dict[str, "Rows"]):
    """Columns by name, each unpacked from its shared numbers only on request."""

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        super().__init__(columns)
        self._packed: dict[str, _Packed] = {}

    def add(self, packed: _Packed) -> None:
        """Columns that share their numbers."""
        self._packed |= dict.fromkeys((name for name, _ in packed.group), packed)

    def __missing__(self, name: str) -> Rows:
        return self._packed[name].column(name)

    def filtered(self, rows: NDArray[np.bool_]) -> Columns:
        """All columns with some of their rows."""
        return Columns({name: self[name][rows] for name in (*self, *self._packed)})

    def take(self, name: str) -> Rows | None:
        """Remove and return the column; None if there is no such column."""
        if name in self:
            return self.pop(name)
        packed = self._packed.pop(name, None)
        return None if packed is None else packed.column(name)


class _Packed(msgspec.Struct, frozen=True):
    """Several columns packed into one of numbers, and the rows that did not fit."""

    values: Rows
    group: list[tuple[str, int]]
    odd: Rows
    odd_values: dict[str, Rows]

    def column(self, name: str) -> Rows:
        """One of the columns."""
        at = [known for known, _ in self.group].index(name)
        shift = sum(n_bits for _, n_bits in self.group[at + 1 :])
        values = self.values >> shift
        values &= (1 << self.group[at][1]) - 1
        if self.odd.size:
            values[self.odd] = self.odd_values[name]
        return values


def _groups(bits: Mapping[str, int]) -> list[list[tuple[str, int]]]:
    """Groups of columns that share a number, each column with its bits, in the order given."""
    groups: list[list[tuple[str, int]]] = []
    room = 0
    for name, n_bits in bits.items():
        if n_bits > room:
            groups.append([])
            room = _MOST_BITS if n_bits <= _MOST_BITS else 0
        groups[-1].append((name, n_bits))
        room -= n_bits
    return groups


def _expression(group: list[tuple[str, int]]) -> str:
    if len(group) == 1:
        return f"ifnull({_quoted(group[0][0])}, {ABSENT})"
    shifted, shift = [], 0
    for name, n_bits in reversed(group):
        shifted.append(f"{_quoted(name)} << {shift}" if shift else _quoted(name))
        shift += n_bits
    return f"CASE WHEN {_fits(group)} THEN {' | '.join(f'({part})' for part in shifted)} ELSE -1 END"


def _digits(expression: str) -> str:
    """A condition in SQL: a text of at most 18 digits."""
    only_digits = f"{expression} NOT GLOB '*[^0-9]*' AND length({expression}) BETWEEN 1 AND 18"
    return f"(typeof({expression}) = 'text' AND {only_digits})"


def _only_numbers(expression: str) -> str:
    """The expression as a whole number that fits; ABSENT for what is none."""
    is_small = f"(typeof({expression}) = 'real' AND abs({expression}) < 9e18)"
    return (
        f"CASE WHEN typeof({expression}) = 'integer' THEN {expression} "
        f"WHEN {is_small} OR {_digits(expression)} THEN CAST({expression} AS INTEGER) ELSE {ABSENT} END"
    )


def _fits(group: list[tuple[str, int]]) -> str:
    return " AND ".join(f"{_quoted(name)} BETWEEN 0 AND {(1 << n_bits) - 1}" for name, n_bits in group)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read_database(
    source: Source,
    tables: Iterable[str],
    build: Callable[[Database, Source, IssueLog], Trace],
    unknown: tuple[str, str],
) -> Trace:
    """What `build` makes of a database that has at least one of the tables.

    Raises CorruptInput (damaged database), StepscopeError, and UnknownFormat, which says with `unknown` what the
    database is not, and what to do.
    """
    issues = IssueLog()
    with opened(source, issues) as db:
        if not any(table in db for table in tables):
            what, hint = unknown
            raise UnknownFormat(f"{source.label} is {what}: it holds {', '.join(db.tables[:5]) or 'nothing'}", hint)
        trace = build(db, source, issues)
    give_back()
    return trace


@contextmanager
def opened(source: Source, issues: IssueLog) -> Iterator[Database]:
    """The database in a source, read-only; a packed one is unpacked into a temporary file first.

    Values that are not what their column should hold are counted in `issues`.

    Raises CorruptInput for damage, also for damage that appears only while reading; StepscopeError.
    """
    with _on_disk(source) as path:
        _check_length(path, source)
        n_bytes = Path(path).stat().st_size
        try:
            connection, work = _connected(path, n_bytes)
        except sqlite3.Error as error:
            raise StepscopeError(f"cannot read {source.label}: {error}", "check its owner and mode") from None
        try:
            with no_collection():
                yield Database(path, connection, issues, n_bytes)
        except sqlite3.Error as error:
            is_too_much = next(work) < 0
            raise _damaged(
                "it describes more work than its size explains" if is_too_much else str(error), source
            ) from None
        except UnicodeDecodeError:  # SQLite's own message quotes a damaged schema
            raise _damaged("the schema of the database is damaged", source) from None
        finally:
            connection.close()
        if source.progress is not None:
            source.progress(source.n_bytes)


def _connected(path: str, n_bytes: int) -> tuple[sqlite3.Connection, Iterator[int]]:
    """The database, read-only, and a count down of the work that it may do. Raises sqlite3.Error."""
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
    # Some recorders cut texts in the middle of a letter.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection, _limit(connection, n_bytes)


def _limit(connection: sqlite3.Connection, n_bytes: int) -> Iterator[int]:
    """Bound what views of the file can do. Gives a count down, which is negative once they did too much."""
    work = count((_MOST_INSTRUCTIONS + _MOST_PER_BYTE * n_bytes) // _CHECK_EVERY, -1)
    connection.set_progress_handler(lambda: next(work) < 0, _CHECK_EVERY)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(n_bytes, _LEAST_LENGTH), 10**9))
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(_allowed)
    return work


def _allowed(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    """Refuses functions that may work for long on a single value, which nothing bounds."""
    is_endless = action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in ("printf", "format")
    return sqlite3.SQLITE_DENY if is_endless else sqlite3.SQLITE_OK


@contextmanager
def _on_disk(source: Source) -> Iterator[str]:
    with files.opened(source.path) as file, files.reaching(source.path):
        packing = packing_of(file.read(8))
    if packing is None and not files.is_url(source.path):
        source.n_bytes = files.size_of(source.path)
        yield str(Path(source.path).absolute())
        return
    with tempfile.NamedTemporaryFile(suffix=".sqlite", buffering=CHUNK) as copy:
        for chunk in source.chunks():
            copy.write(chunk)
        copy.flush()
        if source.damage:
            raise CorruptInput(source.damage, "copy the file again", path=source.label, offset=source.n_bytes)
        yield copy.name


def _check_length(path: str, source: Source) -> None:
    """A truncated file can still be opened; it may fail later, or not at all. So its length is checked."""
    with Path(path).open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER:
        raise _damaged("the database ends within its header", source)
    page = int.from_bytes(header[16:18], "big")
    page = 1 << 16 if page == 1 else page
    n_pages = int.from_bytes(header[28:32], "big")
    has_page_count = header[24:28] == header[92:96]  # else an old library wrote the file and left the number as it was
    size = Path(path).stat().st_size
    if has_page_count and size < page * n_pages:
        raise _damaged(f"the database ends after {size:,} of {page * n_pages:,} bytes", source, offset=size)


def _damaged(what: str, source: Source, offset: int | None = None) -> CorruptInput:
    return CorruptInput(what, "copy the file again, or export it again", path=source.label, offset=offset)
