"""A trace as a folder: one Parquet file for each of its tables, and meta.json with the rest, which is written last.

    {"stepscope": "trace", "version": 2, "schema": "<fingerprint>", "written_by": "0.1.0",
     "meta": {<fields of trace.Meta>},
     "tables": {"spans": {"n_rows": int, "size_bytes": int, "crc32": int}, …},
     "results": {"cycles": {…}, …}}

A folder without meta.json is not a trace. A file whose length or CRC-32 differs from that in meta.json is not read.
Another program may have written the folder: what cannot be in a trace is refused when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from zlib import crc32

import msgspec
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, UnsupportedVersion, WouldOverwrite
from stepscope.core.result_tables import RESULTS
from stepscope.core.schema import TABLES
from stepscope.core.soundness import FACTS, flaw_of, in_order
from stepscope.core.table import StoredTables
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.core.version import program_version
from stepscope.store.column_files import LEAST_ROWS, mapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.core.table import Table

META = "meta.json"
#: Increase it whenever the meaning of the files changes. The schema's fingerprint shows changes of tables.
VERSION = 2
_KNOWN: Mapping[str, Table] = {**TABLES, **RESULTS}
#: A table may take this much memory, or 200 times the size of its file if that is more. Tables take up to 50 times.
_LEAST_LIMIT, _MOST_RATIO, _VALUE_BYTES = 1 << 26, 200, 8
_LONGEST = 40
_CHUNK = 1 << 20


def _whole(least: int, most: int) -> Any:
    """The type of a whole number."""
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


_COUNT, _TIME = _whole(0, 2**63 - 1), _whole(-(2**63), 2**63 - 1)
_RANGES: Mapping[str, Any] = {
    **{fact: _whole(*limits) | None for fact, limits in FACTS.items()},
    "n_events": _COUNT, "size_bytes": _COUNT, "origin_recorded_ns": _TIME,
}  # fmt: skip
_FACTS = msgspec.defstruct("_FACTS", list({**get_type_hints(Meta), **_RANGES}.items()), forbid_unknown_fields=True)


class _File(msgspec.Struct):
    """What meta.json says of the file of a table."""

    n_rows: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    crc32: int


#: What meta.json says of a trace. Without `results` it is a recording.
_DOCUMENT = msgspec.defstruct(
    "_DOCUMENT", [("meta", _FACTS), ("tables", dict[str, _File]), ("results", dict[str, _File] | None)]
)


@cache
def schema_fingerprint() -> str:
    """Changes with every table, column and type, so that files with another schema are not read."""
    columns = [[t.name, [[c.name, _type_name(c.dtype)] for c in t.columns]] for t in _KNOWN.values()]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]


def _type_name(dtype: pl.DataType) -> str:
    return f"Enum{dtype.categories.to_list()}" if isinstance(dtype, pl.Enum) else str(dtype)


def storable(trace: Trace) -> bool:
    """Whether the trace can be stored: it has only tables and results of the schema."""
    known = set(trace.tables) <= set(TABLES)
    results = trace.results if isinstance(trace, Results) else {}
    return known and all(RESULTS.get(name) == result.table for name, result in results.items())


def write_folder(trace: Trace, folder: str, *, statistics: bool = True) -> int:
    """Write a trace into a folder that exists and is empty, or below a URL. Returns the bytes written.

    `statistics` of columns help other programs to skip rows, and cost a seventh of the time.
    Raises StepscopeError if the trace has tables that are not in the schema; OSError if it cannot be written.
    """
    if not storable(trace):
        raise StepscopeError(
            f"{trace.meta.path} has tables that cannot be stored", "use `show --format parquet` for single tables"
        )
    # Frames that are files already are read one at a time.
    tables = {
        name: _written(TABLES[name].conform(trace.table(name)), folder, name, statistics=statistics)
        for name in trace.tables
    }
    results = trace.results if isinstance(trace, Results) else {}
    stored = {
        name: _written(RESULTS[name].conform(result.frame), folder, name, statistics=statistics)
        for name, result in results.items()
    }
    document = {
        "stepscope": "trace",
        "version": VERSION,
        "schema": schema_fingerprint(),
        "written_by": program_version(),
        "meta": msgspec.structs.asdict(trace.meta) | {"facts": dict(trace.meta.facts)},
        "tables": tables,
        "results": stored if isinstance(trace, Results) else None,
    }
    text = json.dumps(document).encode("ascii")
    _put(folder, META, text)
    return len(text) + sum(entry["size_bytes"] for entry in (*tables.values(), *stored.values()))


def _written(frame: pl.DataFrame, folder: str, name: str, *, statistics: bool) -> dict[str, int]:
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "statistics": statistics}
    path = files.joined(folder, f"{name}.parquet")
    if files.is_url(folder):
        buffer = io.BytesIO()
        frame.write_parquet(buffer, **options)
        files.write(path, buffer.getvalue())
        checked = crc32(buffer.getbuffer())
        return {"n_rows": frame.height, "size_bytes": buffer.tell(), "crc32": checked}
    part = f"{path}.part"
    frame.write_parquet(part, **options)
    checked = 0
    with open(part, "rb") as file:  # noqa: PTH123  as in `_put`
        while content := file.read(_CHUNK):
            checked = crc32(content, checked)
        n_bytes = file.tell()
    os.replace(part, path)  # noqa: PTH105
    return {"n_rows": frame.height, "size_bytes": n_bytes, "crc32": checked}


def _put(folder: str, name: str, content: bytes) -> None:
    path = files.joined(folder, name)
    if files.is_url(folder):
        files.write(path, content)
        return
    # Another name until it is complete, so that meta.json is never incomplete.
    part = f"{path}.part"
    with open(part, "wb") as file:  # noqa: PTH123  the folder is a string here and a URL elsewhere
        file.write(content)
    os.replace(part, path)  # noqa: PTH105


def read_document(folder: str, *, kind: str) -> dict[str, Any] | None:
    """meta.json of a stored folder of this kind (trace, run); None if it is not one. Raises CorruptInput."""
    path = files.joined(folder, META)
    if not files.exists(path):
        return None
    if files.size_of(path) > _LEAST_LIMIT:  # this refuses pipes and devices, too
        raise CorruptInput("too large for a description of a trace", _AGAIN, path=path)
    with files.opened(path) as file, files.reaching(path):
        return parse_document(file.read(), path, kind=kind)


def parse_document(text: bytes, path: str, *, kind: str) -> dict[str, Any] | None:
    """The same from the bytes of a meta.json. `path` is for errors."""
    if f'"stepscope": "{kind}"'.encode() not in text[:200]:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptInput(f"not valid JSON: {error}", _AGAIN, path=path) from None
    return document if isinstance(document, dict) else None


_AGAIN = "export it again from the original trace"


def read_folder(folder: str, document: Mapping[str, Any], *, label: str, lease: object = None) -> Trace:
    """The trace in a folder, from what its meta.json says; tables are read when they are asked for.

    `label` becomes `meta.path`. The trace holds `lease` as long as its files may be read.
    Raises UnsupportedVersion (another version, other columns), CorruptInput (missing or truncated files).
    """
    version, schema = document.get("version"), document.get("schema")
    if version != VERSION:
        what = f"{label} is a store of version {str(version)[:_LONGEST]}; this program reads {VERSION}"
        raise UnsupportedVersion(what, _AGAIN)
    if schema != schema_fingerprint():
        by = str(document.get("written_by"))[:_LONGEST]
        raise UnsupportedVersion(f"{label} was written by stepscope {by}, whose tables have other columns", _AGAIN)
    try:
        said: Any = msgspec.convert(document, _DOCUMENT)
    except ValueError as error:  # other kinds of values, or text that is no Unicode
        raise CorruptInput(str(error), _AGAIN, path=files.joined(folder, META)) from None
    results = said.results or {}
    if unknown := {*said.tables} - {*TABLES} | {*results} - {*RESULTS}:
        what = f"it names {min(unknown)[:_LONGEST]!r}, which is no table"
        raise CorruptInput(what, _AGAIN, path=files.joined(folder, META))
    n_rows = {name: entry.n_rows for name, entry in said.tables.items()}
    for name, entry in (*said.tables.items(), *results.items()):
        _check_file(files.joined(folder, f"{name}.parquet"), _KNOWN[name], entry)
    meta = Meta(**{**msgspec.structs.asdict(said.meta), "path": label})
    stored = StoredTables(
        {name: files.joined(folder, f"{name}.parquet") for name in n_rows},
        n_rows,
        partial(_read, folder, said.tables, is_ours=lease is not None),
        lease=lease,
        # The digest of the cache was checked; what a URL names is read and checked as a whole.
        verify=bool if lease is not None or files.is_url(folder) else partial(_content, folder, said.tables),
    )
    if said.results is None:
        return Trace(meta, stored)
    return Results(meta, stored, {name: Result(RESULTS[name], _read(folder, results, name)) for name in results})


def _check_file(path: str, table: Table, entry: _File) -> None:
    """Raises CorruptInput if a file is not there as it was written, or promises more than it can hold."""
    if not files.exists(path) or files.is_folder(path):
        raise CorruptInput("this file of a stored trace is missing", _AGAIN, path=path)
    size = files.size_of(path)
    if size != entry.size_bytes:
        what = f"{size:,} bytes instead of {entry.size_bytes:,}: the file was truncated or changed"
        raise CorruptInput(what, _AGAIN, path=path)
    if entry.n_rows * len(table.columns) * _VALUE_BYTES > max(_LEAST_LIMIT, _MOST_RATIO * size):
        raise CorruptInput(f"{entry.n_rows:,} rows cannot be in {size:,} bytes", _AGAIN, path=path)


def _content(folder: str, tables: Mapping[str, _File], name: str, *, is_ours: bool = False) -> bytes:
    """The bytes of a table's file. Raises CorruptInput if they are not what was written."""
    path = files.joined(folder, f"{name}.parquet")
    _check_file(path, _KNOWN[name], tables[name])
    with files.opened(path) as file, files.reaching(path):
        content = file.read()
    if not is_ours and crc32(content) != tables[name].crc32:  # what Polars makes of damage may end the process
        raise CorruptInput(f"it is not what was written: its CRC-32 differs from that in {META}", _AGAIN, path=path)
    return content


def _read(folder: str, tables: Mapping[str, _File], name: str, *, is_ours: bool = False) -> pl.DataFrame:
    """A table, in order. Raises CorruptInput if it is damaged or holds what cannot be.

    `is_ours`: it is in the cache, and its digest says that this program wrote it like this.
    """
    path, table, n_rows = files.joined(folder, f"{name}.parquet"), _KNOWN[name], tables[name].n_rows
    try:
        if is_ours and n_rows >= LEAST_ROWS:  # column by column, so that no more than one of them is in memory
            _check_file(path, table, tables[name])
            with files.reaching(path):
                columns = (pl.read_parquet(path, columns=[one], n_rows=n_rows + 1, glob=False) for one in table.dtypes)
                frame = pl.DataFrame([mapped(one.rechunk().to_series()) for one in columns])
        else:
            content = _content(folder, tables, name, is_ours=is_ours)
            frame = pl.read_parquet(io.BytesIO(content), n_rows=n_rows + 1).rechunk()
            frame = frame if is_ours else in_order(table, frame)
    except pl.exceptions.PolarsError as error:
        raise CorruptInput(str(error).splitlines()[0], _AGAIN, path=path) from None
    flaw = None if frame.height == n_rows else f"it does not have the {n_rows:,} rows of {META}"
    if flaw is None and not is_ours:
        flaw = flaw_of(table, frame, {one: entry.n_rows for one, entry in tables.items()})
    if flaw is not None:
        raise CorruptInput(flaw, _AGAIN, path=path)
    return frame


def traces_in(folder: str) -> list[str]:
    """Folders of stored traces: the folder itself, or those that its meta.json names; empty if it is not a store.

    Raises CorruptInput.
    """
    if read_document(folder, kind="trace") is not None:
        return [folder]
    document = read_document(folder, kind="run")
    if document is None:
        return []
    names = document.get("traces")
    if not isinstance(names, list) or not all(
        isinstance(n, str) and n == Path(n).name not in ("", "..") for n in names
    ):
        raise CorruptInput("meta.json does not name its traces", path=files.joined(folder, META))
    return [files.joined(folder, name) for name in names]


def write_run(traces: Iterable[tuple[str, Trace]], folder: str, *, force: bool = False) -> int:
    """Write traces, each under its name, into a new folder, which appears when it is complete. Returns their number.

    At a URL, meta.json is written last, and nothing is read without it. `force` replaces a folder that is a store.
    Raises WouldOverwrite, StepscopeError.
    """
    there = files.exists(folder)
    if there:
        if not force:
            raise WouldOverwrite(folder)
        if read_document(folder, kind="run") is None:
            raise StepscopeError(
                f"{folder} is not a folder of stored traces, so it is not replaced", "choose another -o"
            )
    if files.is_url(folder):
        if there:
            files.remove_folder(folder)
        return _filled(traces, folder)
    target = Path(folder).resolve()
    part, old = (target.with_name(f".{target.name}.{secrets.token_hex(4)}.{end}") for end in ("part", "old"))
    try:
        part.mkdir(parents=True)
        try:
            n = _filled(traces, str(part))
            if there:
                target.rename(old)
            part.rename(target)
        finally:
            for left in (part, old):
                shutil.rmtree(left, ignore_errors=True)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise StepscopeError(f"cannot write {folder}: {reason}") from None
    return n


def _filled(traces: Iterable[tuple[str, Trace]], folder: str) -> int:
    names = []
    for name, trace in traces:
        inside = files.joined(folder, name)
        if not files.is_url(folder):
            Path(inside).mkdir()
        write_folder(trace, inside)
        names.append(name)
    text = json.dumps({"stepscope": "run", "version": VERSION, "traces": names}, indent=1).encode("ascii")
    path = files.joined(folder, META)
    if files.is_url(folder):
        files.write(path, text)
    else:
        Path(path).write_bytes(text)
    return len(names)
