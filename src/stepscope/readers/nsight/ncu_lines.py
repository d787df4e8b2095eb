"""The CSV inside what `ncu --csv` printed: its headers and rows, separated from everything else in the same file.

Else are ncu's own messages (`==PROF==`, `==WARNING==`, `==ERROR==`) and what the profiled program printed, before,
between and after the rows. A file may hold several reports, each with a header of its own.
"""

from __future__ import annotations

import codecs
import csv
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.patterns import regex

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from stepscope.readers.common.source import Source

BLOCK = 8 << 20

_HEADER = regex(rb'(?:"ID"|(?:^|(?<=\W))ID),"?Process ID"?,.*$')
_SUMMARY, _INSTRUCTIONS = regex(rb'"?Invocations"?,'), regex(rb'^"?Kernel Name"?,(?!.*"?Metric Name)')
_ROW = {True: regex(rb'"[\d.,]*",'), False: regex(rb"\d*,")}  # of the units on the raw page, with nothing
_MESSAGE = regex(rb"==(PROF|WARNING|ERROR)==\s*(.*)")
_TEXT_TITLE = regex(rb"Context \d+, Stream \d+")
_WIDE_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class Header(msgspec.Struct, frozen=True):
    """The header of a report: its columns, whether they are quoted, and which report of the file it is."""

    columns: tuple[str, ...]
    quoted: bool
    report: int

    @property
    def is_long(self) -> bool:
        """A row for each metric of a launch; else a row for each launch, with a column for each metric."""
        return "Metric Name" in self.columns


@dataclass(slots=True)
class Lines:
    """A file of ncu's, split up. After `blocks`, the other fields hold what else was in the file."""

    source: Source
    header: Header | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    n_reports: int = 0
    n_truncated: int = 0
    is_text: bool = False
    is_summary: bool = False
    is_instructions: bool = False

    def blocks(self) -> Iterator[tuple[Header, bytes]]:
        """What follows a header, some MB at a time, cut where a row begins, with that header.

        Nearly always that is rows and nothing else. To look at every line costs as much as to parse it, so who finds
        that a block is not takes it apart with `segments`.
        """
        for block in _whole_rows(as_utf8(self.source.chunks())):
            if self.header is None:
                yield from self.segments(block)
                continue
            start = block.rfind(b"\n") + 1
            rows = block[:start] if start < len(block) and self._is_truncated(block[start:]) else block
            if rows and not rows.isspace():
                yield self.header, rows

    def segments(self, block: bytes) -> Iterator[tuple[Header, bytes]]:
        """The rows of a block under the header of each, without other lines; facts of those go to the fields."""
        begin = at = 0
        while (hit := block.find(b"Kernel Name", at)) >= 0:
            start, end = block.rfind(b"\n", 0, hit) + 1, block.find(b"\n", hit)
            at = len(block) if end < 0 else end + 1
            header = self._header(block[start:at].rstrip(b"\r\n"))
            if header is not None:
                yield from self._rows(block[begin:start])
                self.header, begin = header, at
        yield from self._rows(block[begin:])

    def _header(self, line: bytes) -> Header | None:
        match = _HEADER.search(line)
        if match is None:
            self.is_summary |= _SUMMARY.search(line) is not None
            self.is_instructions |= _INSTRUCTIONS.search(line) is not None
            return None
        text = match.group()
        try:
            columns = tuple(next(csv.reader([text.decode("utf-8", "replace")]), ()))
        except csv.Error:
            return None
        if ("Metric Name" in columns) != ("Metric Value" in columns):
            return None  # it was damaged
        self.n_reports += 1
        return Header(columns, text.startswith(b'"'), self.n_reports)

    def _rows(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        if self.header is None:
            for line in data.splitlines():
                self._other(line)
        elif rows := b"".join(self._only_rows(data, _ROW[self.header.quoted])):
            yield self.header, rows

    def _only_rows(self, data: bytes, row: re.Pattern[bytes]) -> Iterator[bytes]:
        """The lines that are rows, with those over which a quoted field runs on."""
        pending = b""
        for line in data.splitlines(keepends=True):
            if pending and row.match(line) is None:
                pending += line
                if pending.count(b'"') % 2 == 0:
                    yield pending
                    pending = b""
                continue
            pending = b""
            if not line.endswith(b"\n") and self._is_truncated(line):
                continue
            if row.match(line) is None:
                self._other(line)
            elif line.count(b'"') % 2:
                pending = line
            else:
                yield line

    def _is_truncated(self, line: bytes) -> bool:
        """Whether the file's last line, which has no end, is a row that ends before its last value."""
        header = self.header
        if header is None or _ROW[header.quoted].match(line) is None:
            return False
        last = header.columns.index("Metric Value") if header.is_long else len(header.columns) - 1
        n_before = line.count(b'","') if header.quoted else line.count(b",")
        is_truncated = line.count(b'"') % 2 == 1 or n_before < last
        self.n_truncated += is_truncated
        return is_truncated

    def _other(self, line: bytes) -> None:
        """Keep the facts of a line that is not a row."""
        message = _MESSAGE.search(line)
        if message is not None and message.group(1) != b"PROF":
            (self.errors if message.group(1) == b"ERROR" else self.warnings).append(
                message.group(2).decode("utf-8", "replace").strip()
            )
        self.is_text |= _TEXT_TITLE.search(line) is not None


def _whole_rows(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes in blocks that end where a row begins, or at least a line; the last one at the end of the file."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        end = chunk.rfind(b'\n"') + 1 or chunk.rfind(b"\n") + 1
        if size < BLOCK or not end:
            continue
        parts[-1] = chunk[:end]
        yield b"".join(parts)
        parts, size = [chunk[end:]], len(chunk) - end
    yield b"".join(parts)


def as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The text as UTF-8 without its mark: a shell on Windows may have written UTF-16."""
    first = next(chunks, b"")
    encoding = next((name for mark, name in _WIDE_MARKS if first.startswith(mark)), None)
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first[2:]).encode()
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
