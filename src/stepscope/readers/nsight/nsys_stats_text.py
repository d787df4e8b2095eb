"""The tables inside what `nsys stats --format csv` printed, separated from everything else in the same file.

Else are lines that name the next report (`Processing [x.sqlite] with [osrt_sum.py]...`, by version also
`Running [...]`, `[4/8] Executing 'osrt_sum' stats report`, ` ** Title (osrt_sum):`), that say why one was left out
(`SKIPPED: ...`), and what the shell wrote. Reports had other names until 2023.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.core.patterns import regex
from stepscope.readers.nsight.nsys_stats_files import HEADER, RENAMED, Column, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.readers.common.source import IssueLog

_STATED = regex(r"(\w+)\.py\b|'(\w+)' stats report|\((\w+)\):\s*$")
_OTHER = rb"Processing \[|Running \[|SKIPPED|Generat|NOTICE|Export|\[\d+/\d+\]| \*\* |\r?\n"
_END = regex(rb"\n(?=" + _OTHER + rb")")
_SKIPPED = regex(rb"^SKIPPED: *(?:\S+ )?([^\r\n]*)", re.MULTILINE)
#: What one of a unit is in ns or in bytes. Prefixes are decimal, but for those that say that they are not.
_UNITS = {
    "ns": {
        "ns": 1.0, "nsec": 1.0, "nanoseconds": 1.0, "us": 1e3, "usec": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3,
        "microseconds": 1e3, "ms": 1e6, "msec": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9,
    },
    "bytes": {
        "b": 1.0, "byte": 1.0, "bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10,
        "mib": 2.0**20, "gib": 2.0**30,
    },
}  # fmt: skip
#: Until 2021 columns had no unit: times were in ns, sums of sizes in KiB.
_UNSAID = {"ns": "ns", "bytes": "kib"}
_NO_MEASURE = ("", "%")
_BLOCK = 8 << 20
_MOST_LINES = 50
_ANYTHING = regex(rb"\S")


class Printed(msgspec.Struct, frozen=True):
    """A table: the name of its report (empty if unknown), its columns, and where in the text its rows are."""

    report: str
    columns: tuple[Column, ...]
    text: bytes
    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether there is not one row."""
        return _ANYTHING.search(self.text, self.start, self.end) is None

    def place(self, *labels: str) -> str | None:
        """The first column of one of these labels, as `select` calls it: by its number."""
        places = (i for label in labels for i, column in enumerate(self.columns) if column.label == label)
        at = next(places, None)
        return None if at is None else str(at)

    def first(self, column: str, n: int = 20) -> list[str]:
        """The first values of a column."""
        end = self.start
        for _ in range(n):
            end = self.text.find(b"\n", end, self.end) + 1 or self.end
        return _parsed(self.text[self.start : end], len(self.columns))[0][column].drop_nulls().to_list()

    def select(self, issues: IssueLog, **columns: pl.Expr) -> pl.DataFrame:
        """The rows as these columns, made of the printed ones, which are texts and called by their numbers.

        Some MB are read at a time, so that a long table is never there as text and as columns both.
        """
        frames = []
        for block in _blocks(self.text, self.start, self.end):
            rows, n_dropped = _parsed(block, len(self.columns))
            issues.add("rows_dropped", "warning", n_dropped, "rows with too few fields were dropped")
            frames.append(rows.select(**columns))
        return pl.concat(frames)

    def note_units(self, unit: str, issues: IssueLog, of: Sequence[str] = ()) -> None:
        """Say which units numbers were rounded to, and which are not known. `of` are labels; without them all."""
        measures = [c.unit for c in self.columns if c.unit not in _NO_MEASURE and (not of or c.label in of)]
        large = [printed for printed in measures if _UNITS[unit].get(printed.lower(), 0.0) > 1]
        if large:
            what = f"numbers were printed in {large[0]}, and rounded to so many digits"
            issues.add("rounded", "info", len(large), what)
        odd = [printed for printed in measures if printed.lower() not in _UNITS[unit]]
        if odd:
            what = f"{odd[0]} is no unit of {'sizes' if unit == 'bytes' else 'times'} that is known"
            issues.add("unknown_units", "warning", len(odd), f"columns are left out: {what}")


def printed_tables(text: bytes, file_report: str, issues: IssueLog) -> Iterator[Printed]:
    """Every table, also one without rows. `file_report` names the only one of a file that names none itself."""
    headers = list(_headers(text))
    before = 0
    for i, (at, start, columns) in enumerate(headers):
        stated = _stated(text[before:at])
        last = headers[i + 1][0] if i + 1 < len(headers) else len(text)
        end = _end_of_rows(text, start, last)
        before = end
        if end == len(text):
            end = _end_of_whole_rows(text, start, len(columns), issues)
        yield Printed(stated or (file_report if len(headers) == 1 else ""), columns, text, start, end)


def _headers(text: bytes) -> Iterator[tuple[int, int, tuple[Column, ...]]]:
    """Where each header begins, where the line behind it does, and its columns."""
    first = text[: text.find(b"\n") + 1 or len(text)]
    if HEADER.match(b"\n" + first) and (columns := columns_of(first)):
        yield 0, len(first), columns
    for match in HEADER.finditer(text):
        if columns := columns_of(match.group()):
            yield match.start() + 1, min(match.end() + 1, len(text)), columns


def skipped(text: bytes) -> list[str]:
    """Why reports were left out, in the program's own words."""
    return [reason.decode("utf-8", "replace").strip() for reason in _SKIPPED.findall(text)]


def _stated(text: bytes) -> str:
    """The report's name in the lines before its table, in its current form; empty if they do not name it."""
    report = ""
    for line in text.decode("utf-8", "replace").splitlines():
        if match := _STATED.search(line.rstrip()):
            report = next(filter(None, match.groups()))
    return RENAMED.get(report, report)


def _end_of_rows(text: bytes, start: int, last: int) -> int:
    """Where the rows of a table end: at the next line that is not a row, unless it is within quotes."""
    at = max(start - 1, 0)
    while (match := _END.search(text, at, last)) is not None:
        if text.count(b'"', start, match.start()) % 2 == 0:
            return max(match.start() + 1, start)
        at = match.end()
    return last


def _end_of_whole_rows(text: bytes, start: int, width: int, issues: IssueLog) -> int:
    """Where the last row ends of a table with which the file ends; one that breaks off is left out and counted."""
    row_start = max(text.rfind(b"\n") + 1, start)
    tail = text[row_start:].decode("utf-8", "replace")
    if tail.strip() and (tail.count('"') % 2 or len(next(csv.reader([tail]), [])) < width):
        issues.add("truncated", "error", 1, "the file ends within a row")
        return row_start
    return len(text)


def _blocks(text: bytes, start: int, last: int) -> Iterator[bytes]:
    """The rows some MB at a time, cut where a row ends."""
    while start < last:
        end = start + _BLOCK
        for _ in range(_MOST_LINES):  # of one row; a stray quote must not make one of all that follows
            end = text.find(b"\n", end, last) + 1 or last
            if end == last or text.count(b'"', start, end) % 2 == 0:
                break
        yield text[start:end]
        start = end


def _parsed(text: bytes, width: int) -> tuple[pl.DataFrame, int]:
    """Rows as text, columns called 0, 1, …; and how many rows had to be left out."""
    schema = {str(i): pl.String for i in range(width)}
    try:
        frame = pl.read_csv(
            text, has_header=False, schema=schema, truncate_ragged_lines=True, encoding="utf8-lossy",
            missing_columns="insert",
        )  # fmt: skip
    except pl.exceptions.PolarsError:  # one stray quote is enough
        lines = text.decode("utf-8", "replace").splitlines()
        rows = [next(csv.reader([line]), []) for line in lines if line.strip()]
        whole = [[value or None for value in row[:width]] for row in rows if len(row) >= width]
        return pl.DataFrame(whole, schema=schema, orient="row"), len(rows) - len(whole)
    return frame, 0


def number(column: str) -> pl.Expr:
    """A column of text as numbers; commas may group digits. Null for anything else."""
    return pl.col(column).str.replace_all(",", "", literal=True).cast(pl.Float64, strict=False)


def size_of(unit: str) -> float:
    """Bytes in one of a unit of sizes."""
    return _UNITS["bytes"][unit.lower()]


def scaled(table: Printed, column: str, unit: str, unsaid: str | None = None) -> pl.Expr:
    """A column in ns or bytes (`unit`), by the unit in its header; null if that is not known.

    `unsaid` is the unit of a column that has none, in place of the usual one.
    """
    printed = table.columns[int(column)].unit or unsaid or _UNSAID[unit]
    factor = _UNITS[unit].get(printed.lower())
    return pl.lit(None, pl.Float64) if factor is None else number(column) * factor
