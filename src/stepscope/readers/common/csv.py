"""CSV files whose rows are read as text: whole rows only, and columns as numbers where they are some."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.errors import CorruptInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.readers.common.issues import IssueLog
    from stepscope.readers.common.source import Source

_BOM = b"\xef\xbb\xbf"
_HINT = "copy or export it again"


def header_of(head: bytes) -> list[str]:
    """The fields of a file's first line, from its first bytes; none if that is no line of text."""
    line = head.removeprefix(_BOM).partition(b"\n")[0]
    try:
        return _fields(line.decode("utf-8").rstrip("\r"))
    except UnicodeDecodeError:
        return []


def read_rows(source: Source, needed: Sequence[str], issues: IssueLog) -> pl.DataFrame:
    """The file's rows as text, empty fields null. A last line that breaks off is dropped and counted in `issues`.

    Raises CorruptInput (a needed column missing, not one whole row), StepscopeError (size limit).
    """
    text = b"".join(source.chunks()).removeprefix(_BOM)
    if source.damage:
        issues.add("damaged_packing", "error", 1, f"{source.damage} ({source.n_bytes:,} bytes read)")
    header = header_of(text)
    missing = [name for name in needed if name not in header]
    if missing:
        raise CorruptInput(f"no column {', '.join(missing)}", _HINT, path=source.label, offset=0)
    end = text.rfind(b"\n") + 1
    rest = text[end:]
    if rest and (len(header_of(rest)) < len(header) or rest.count(b'"') % 2):
        issues.add("truncated", "error", 1, f"the file ends inside a row, after {source.n_bytes:,} bytes")
        text = text[:end]
    try:
        rows = pl.read_csv(io.BytesIO(text), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except pl.exceptions.PolarsError:  # one stray quote is enough
        rows = _line_by_line(text, header, issues)
    if rows.is_empty():
        raise CorruptInput("it holds a header and not one whole row", _HINT, path=source.label)
    return rows


def _line_by_line(text: bytes, header: list[str], issues: IssueLog) -> pl.DataFrame:
    """The lines that are rows by themselves: slow, but damage stays where it is."""
    lines = text.decode("utf-8", "replace").split("\n")[1:]
    fields = [_fields(line.rstrip("\r")) for line in lines if line.strip()]
    whole = [row for row in fields if len(row) == len(header)]
    issues.add("rows_dropped", "warning", len(fields) - len(whole), "rows with a field too many or too few")
    columns = {name: [row[header.index(name)] or None for row in whole] for name in header}
    return pl.DataFrame(columns, schema=dict.fromkeys(header, pl.String))


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def nanoseconds(column: str) -> pl.Expr:
    """A column of microseconds, written as decimals, as whole nanoseconds; null where it is no number.

    Points in time have too many digits for a double: they are read as decimals.
    """
    return (pl.col(column).cast(pl.Decimal(19, 3), strict=False) * 1000).cast(pl.Int64, strict=False)
