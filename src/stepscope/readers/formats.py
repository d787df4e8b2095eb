"""Every format that can be read: how it is recognised, what it provides, and the module that reads it.

A folder next to this file declares its formats as FORMATS in its `__init__`, which imports none of the modules that
read: so opening a file imports the reader of its own format and no other.
"""

from __future__ import annotations

import csv
import os
import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.patterns import regex
from stepscope.readers.common.source import SQLITE_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source

#: How the names of files end, after what they hold.
PACKING = r"(?:\.(?:gz|zst|xz|bz2))?\Z"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
#: How files begin that hold an object or a list of JSON, a database, or a pickle.
OBJECT = regex(rb"[\xef\xbb\xbf \t\r\n]*\{")
LIST = regex(rb"[\xef\xbb\xbf \t\r\n]*\[")
SQLITE = regex(re.escape(SQLITE_MAGIC))
PICKLE = regex(rb"\x80[\x02-\x05]")
#: What readers of kernels without a timeline provide.
KERNEL_METRICS = ("devices", "tracks", "spans", "kernels", "kernel_metrics", "issues")


class Sign(msgspec.Struct, frozen=True):
    """One way to recognise a format. All that is given must hold of a file's first unpacked bytes and its name."""

    #: How sure it is, 0 to 1.
    sure: float
    #: How the bytes begin.
    begins: re.Pattern[bytes] | None = None
    #: Texts that they hold, all of them, and a pattern that they hold somewhere; within the first so many bytes.
    holds: tuple[bytes, ...] = ()
    pattern: re.Pattern[bytes] | None = None
    within: int | None = None
    #: Columns that their first line names, as CSV.
    columns: tuple[str, ...] = ()
    #: What else must hold of them, where that takes code.
    test: Callable[[bytes], bool] | None = None
    #: A pattern that the file's path holds.
    path: re.Pattern[str] | None = None
    #: How sure it is of a file that is superseded by another one.
    superseded: float | None = None

    def fits(self, path: str, head: bytes) -> bool:
        """Whether it holds."""
        head = head[: self.within]
        return (
            (self.path is None or self.path.search(path) is not None)
            and (self.begins is None or self.begins.match(head) is not None)
            and all(text in head for text in self.holds)
            and (self.pattern is None or self.pattern.search(head) is not None)
            and (not self.columns or _columns_in(head).issuperset(self.columns))
            and (self.test is None or self.test(head))
        )


class Format(msgspec.Struct, frozen=True):
    """A format of ours. `module`, in this package, has the function `function(source) -> Trace`.

    The first of the `signs` that fits says how sure it is; with `utf16` they also hold of text in that encoding.
    `companion_files(path)` are the files that are read together with one, itself among them; reading the first reads
    all. `is_superseded(path)` says whether another file of the folder is read in its place. `copies` are how names of
    files end, and how those end of copies in another format, which are passed over in a folder: the rest is the same.
    A format is `cacheable` if its module reads nothing but the file itself. Of a folder, files with one of the
    `endings` are looked at.
    """

    name: str
    doc: str
    module: str
    signs: tuple[Sign, ...]
    provides: tuple[str, ...]
    companion_files: Callable[[str], list[str]] | None = None
    is_superseded: Callable[[str], bool] | None = None
    copies: tuple[re.Pattern[str], re.Pattern[str]] | None = None
    cacheable: bool = False
    endings: tuple[str, ...] = ()
    utf16: bool = False
    function: str = "read"

    def sniff(self, path: str, head: bytes, *, above: float = 0.0) -> float:
        """How sure it is that a file has this format, 0 to 1, by its first unpacked bytes and its name.

        0 if it is no surer than `above`, which spares it signs that say no more: some search all of the bytes.
        """
        if self.utf16 and head.startswith(_UTF16):
            head = head[2:].replace(b"\0", b"")
        surest = max((i for i, sign in enumerate(self.signs) if sign.sure > above), default=-1)
        sign = next((sign for sign in self.signs[: surest + 1] if sign.fits(path, head)), None)
        if sign is None or sign.sure <= above:
            return 0.0
        if sign.superseded is not None and self.is_superseded is not None and self.is_superseded(path):
            return sign.superseded if sign.superseded > above else 0.0
        return sign.sure

    def read(self, source: Source) -> Trace:
        """The trace in a source. Raises what the format's module raises: CorruptInput, UnknownFormat and others."""
        trace: Trace = getattr(import_module(f"stepscope.readers.{self.module}"), self.function)(source)
        return trace


class Reader(msgspec.Struct, frozen=True):
    """A format of another package. `sniff(path, head)` gives 0..1 from the first unpacked bytes and never raises.

    `companion_files(path)` are the files that are read together with one, itself among them; reading the first reads
    all. It is `cacheable` if `read` depends on the file and on stepscope's own code alone. Of a
    folder, files with one of the `endings` are looked at.
    """

    name: str
    doc: str
    sniff: Callable[[str, bytes], float]
    read: Callable[[Source], Trace]
    provides: tuple[str, ...]
    companion_files: Callable[[str], list[str]] | None = None
    cacheable: bool = False
    endings: tuple[str, ...] = ()


def header_of(head: bytes) -> list[str]:
    """The fields of a file's first line, from its first bytes; none if that is no line of text."""
    line = head.removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0]
    try:
        return csv_fields(line.decode("utf-8").rstrip("\r"))
    except UnicodeDecodeError:
        return []


@lru_cache(maxsize=1)
def _columns_in(head: bytes) -> frozenset[str]:
    """What the first line names; many formats ask it of one file, and a document may be a single line."""
    is_json = OBJECT.match(head) or LIST.match(head)  # its one long line takes a while to split
    return frozenset() if is_json else frozenset(header_of(head))


def csv_fields(line: str) -> list[str]:
    """The fields of a line of CSV; none if it is not CSV."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def is_text(head: bytes) -> bool:
    """Whether a file that begins like this holds text."""
    return head != b"" and b"\0" not in head


def _declared() -> Iterator[Format]:
    """What the folders of this one declare as FORMATS, in the order of their names."""
    with os.scandir(Path(__file__).parent) as entries:
        packages = sorted(entry.name for entry in entries if entry.is_dir() and entry.name != "__pycache__")
    for package in packages:
        yield from getattr(import_module(f"{__package__}.{package}"), "FORMATS", ())


#: Of equally sure ones the first is taken. Folders import this module, so it looks for them last.
FORMATS = tuple(_declared())
