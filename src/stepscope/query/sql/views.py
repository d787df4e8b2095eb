"""The tables that a query names, of all traces, as Parquet files in one folder, and the views over them.

A table that a store holds is linked, not read; what an analysis gives is computed, and written. One trace at a time is
in memory.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.core import files
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.remedies import advised
from stepscope.core.schema import ISSUES, TABLES
from stepscope.core.table import Column, StoredTables, Table
from stepscope.core.trace import Run, Trace
from stepscope.query import tables as views

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from stepscope.analyses import Analysis
    from stepscope.query.sql.guard import Names

    OnMissing = Callable[[str, StepscopeError], None]

TRACES = "traces"
_SCHEMA = views.RAW.rstrip(".")
#: DuckDB's own lists of tables and of their columns.
_CATALOGUE, _LISTS = "information_schema", ("tables", "columns")
_FILES = Table(
    TRACES,
    "a file of the job",
    (
        views.RANK,
        views.TRACE,
        Column("path", pl.String(), "its path"),
        Column("format", pl.String(), "the reader that read it"),
        Column("world_size", pl.Int32(), "processes of the job"),
        Column("host", pl.String(), "the machine on which it was recorded"),
        Column("framework", pl.String(), "the framework, as in PyTorch"),
        Column("framework_version", pl.String(), "the framework's version, as in 2.9.0"),
        Column("origin_unix_ns", pl.Int64(), "Unix time of the trace's origin", "ns"),
        Column("n_events", pl.Int64(), "events that were read"),
        Column("size_bytes", pl.Int64(), "size of the file, unpacked", "bytes"),
    ),
)
_TRACE_FACTS = tuple(column.name for column in _FILES.columns[2:])


class View(msgspec.Struct, frozen=True):
    """A table under the name that the query uses, and the SQL for its rows once the traces are read."""

    schema: str
    name: str
    question: Analysis | None  # None: the list of traces itself
    optional: bool = False  # the query may mean a part of itself

    @property
    def is_list(self) -> bool:
        """Whether it is a list of all tables or columns, which DuckDB makes."""
        return self.schema.lower() == _CATALOGUE

    @property
    def raw(self) -> str | None:
        """The trace's own table behind the view, if there is one."""
        name = self.question.output.name if self.question is not None else ""
        return name if name in TABLES and self.question == views.find(views.RAW + name) else None


def known_names() -> list[str]:
    """The tables that a query may name."""
    names = [name for name, kind in views.names() if kind != "comparison"]
    return [TRACES, *(name.replace("-", "_") for name in names)]


def tables() -> list[tuple[str, str, Table]]:
    """Those tables, each with its kind and its schema, which may lack the columns rank and trace."""
    named = [(name, kind) for name, kind in views.names() if kind != "comparison"]
    return [
        (TRACES, TRACES, _FILES),
        *((name.replace("-", "_"), kind, views.find(name).output) for name, kind in named),
    ]


def resolve(names: Names) -> list[View]:
    """The views for the names of a query, which are those of `stepscope show` with _ for -. Raises UnknownName.

    `information_schema.tables` and `.columns` are views too, which list all of them.
    """
    resolved = []
    for schema, name in names.tables:
        known = _known(schema, name)
        shadowed = not schema and name.lower() in names.shadowed
        if known is None and not shadowed:
            raise UnknownName(
                "table", f"{schema}.{name}" if schema else name, known_names(), listed_by="stepscope tables"
            )
        if known is not None:
            resolved.append(View(schema, name, known[0], shadowed))
    return resolved


def _known(schema: str, name: str) -> tuple[Analysis | None] | None:
    """The analysis of that name in a tuple, (None,) for the list of traces; None if the name is unknown."""
    name = name.lower()
    if schema.lower() == _SCHEMA:
        return (views.find(views.RAW + name),) if name in TABLES else None
    if schema.lower() == _CATALOGUE:
        return (None,) if name in _LISTS else None
    if schema.lower() not in ("", "main"):
        return None
    if name == TRACES:
        return (None,)
    by_name = {known.replace("-", "_"): known for known, kind in views.names() if kind != "comparison"}
    known = by_name.get(name.replace("-", "_"))
    return None if known is None else (views.find(known),)


@dataclass(slots=True)
class _Gathered:
    """The parts of one view: files of a raw table, each with its trace, or frames of an analysis."""

    files: list[tuple[str, int | None, str]] = field(default_factory=list)
    frames: list[pl.DataFrame] = field(default_factory=list)
    missing: list[tuple[str, StepscopeError]] = field(default_factory=list)


def views_of(source: Trace | Run, wanted: Sequence[View], folder: Path, on_missing: OnMissing) -> Iterator[str]:
    """The statements that make the views, with their files in `folder`.

    Traces that cannot be read, or lack what an analysis needs, are reported to `on_missing`. If there are no others it
    raises the first error.
    """
    lists_all = any(view.is_list for view in wanted)
    wanted = [view for view in wanted if not view.is_list]
    gathered = _gathered(source, wanted, folder, on_missing) if wanted or not lists_all else []
    yield f"CREATE SCHEMA {_SCHEMA}"
    if lists_all:
        yield from _empty_views(folder, {((view.schema or "main").lower(), view.name.lower()) for view in wanted})
    for i, (view, into) in enumerate(zip(wanted, gathered, strict=True)):
        if view.question is not None and not into.files and not into.frames:
            if view.optional:
                continue
            raise into.missing[0][1]
        if view.raw is None:  # that a rank lacks rows of a table is no more than that
            for label, error in into.missing:
                on_missing(label, error)
        body = _body(view, into, folder / f"{i}.parquet")
        yield f"CREATE VIEW {_name(view.schema or 'main')}.{_name(view.name)} AS {body}"


def _empty_views(folder: Path, but: Collection[tuple[str, str]]) -> Iterator[str]:
    """Views without rows of all tables, for DuckDB to list; none for those that a query reads itself."""
    for name, _, table in tables():
        schema, _, name_there = name.rpartition(".")
        where = (schema or "main", name_there)
        if where in but:
            continue
        target = folder / f"{'-'.join(where)}.parquet"
        own = {"rank": views.RANK.dtype, "trace": views.TRACE.dtype}
        pl.DataFrame(schema=own | dict(table.dtypes)).write_parquet(target)
        yield f"CREATE VIEW {_name(where[0])}.{_name(where[1])} AS {_rows_of(target)}"


def _gathered(source: Trace | Run, wanted: Sequence[View], folder: Path, on_missing: OnMissing) -> list[_Gathered]:
    """The parts of each view, from one pass over the traces."""
    gathered = [_Gathered() for _ in wanted]
    facts: list[dict[str, object]] = []
    broken: list[tuple[str, StepscopeError]] = []
    for label, trace in _traces(source):
        if isinstance(trace, StepscopeError):
            broken.append((label, trace))
            continue
        known = {name: getattr(trace.meta, name) for name in _TRACE_FACTS}
        facts.append({"rank": trace.rank, "trace": label, **known})
        for i, (view, into) in enumerate(zip(wanted, gathered, strict=True)):
            _gather(view, trace, label, into, folder / f"{i}-{len(facts)}.parquet")
    if not facts:
        raise broken[0][1] if broken else StepscopeError("no traces given")
    for label, error in broken:
        on_missing(label, error)
    for view, into in zip(wanted, gathered, strict=True):
        if view.question is None:
            into.frames.append(_listed(facts))
        elif view.question.scope != "trace":  # one that takes all traces together
            into.frames.append(views.collect(source, view.question, on_missing=on_missing)[0])
    return gathered


def _body(view: View, into: _Gathered, target: Path) -> str:
    """The SELECT that defines a view."""
    if into.frames:
        pl.concat(into.frames, how="diagonal_relaxed").write_parquet(target)
        return _rows_of(target)
    return _joined(into.files, own_rank="rank" in TABLES[str(view.raw)].dtypes)


def _rows_of(file: Path) -> str:
    return f"SELECT * FROM read_parquet({_text(str(file))})"  # noqa: S608  our own file


def _traces(source: Trace | Run) -> Iterator[tuple[str, Trace | StepscopeError]]:
    if isinstance(source, Trace):
        yield files.labels_of([source.meta.path])[0], source
        return
    for label, path in zip(files.labels_of(source.paths), source.paths, strict=True):
        try:
            trace = source.open_trace(path)
        except StepscopeError as error:
            yield label, error.with_traceback(None)
            continue
        yield label, trace


def _gather(view: View, trace: Trace, label: str, into: _Gathered, target: Path) -> None:
    if view.raw is not None:
        try:
            _place(trace, view.raw, target)
        except MissingTable as error:
            into.missing.append((label, advised(error, trace).with_traceback(None)))
            return
        into.files.append((str(target), trace.rank, label))
    elif view.question is not None and view.question.scope == "trace":
        try:
            frame, _ = views.collect(trace, view.question, on_missing=lambda *_: None)
        except MissingTable as error:
            into.missing.append((label, error.with_traceback(None)))
            return
        own = pl.col("rank") if "rank" in frame.columns else pl.lit(trace.rank, pl.Int32()).alias("rank")
        into.frames.append(frame.select(own, pl.lit(label).alias("trace"), pl.exclude("rank", "trace")))


def _place(trace: Trace, name: str, target: Path) -> None:
    """Put a table of the trace into the folder as a file: by a link if it is a file already. Raises MissingTable."""
    stored = trace.tables.file(name) if isinstance(trace.tables, StoredTables) else None
    if not trace.heights().get(name) and name != ISSUES.name:  # no issues is good news, not a lack of data
        trace.require(name)
    if stored is None or files.is_url(stored):
        trace.table(name).write_parquet(target, compression="lz4")
        return
    try:
        os.link(stored, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(stored, target)


def _listed(facts: Sequence[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(facts, schema=dict(_FILES.dtypes))


def _joined(stored: Sequence[tuple[str, int | None, str]], *, own_rank: bool) -> str:
    """SQL for the rows of all files, each with the rank and name of its trace."""
    rows = ", ".join(
        f"({i}::UBIGINT, {'NULL' if rank is None else rank}::INTEGER, {_text(label)})"
        for i, (_, rank, label) in enumerate(stored)
    )
    paths = ", ".join(_text(path) for path, _, _ in stored)
    rank, rest = ("coalesce(t.rank, o.rank) AS rank", "t.* EXCLUDE (rank)") if own_rank else ("o.rank", "t.*")
    return (
        f"SELECT {rank}, o.trace, {rest} FROM read_parquet([{paths}]) AS t"  # noqa: S608  our own files
        f" JOIN (VALUES {rows}) AS o(file_number, rank, trace) ON t.file_index = o.file_number"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'
