"""Files as unpacked bytes: plain, gzip, zstd, xz, bz2, zip, known by content; with a limit on the unpacked size.

`IssueLog` counts what a reader dropped, guessed or repaired.
"""

from __future__ import annotations

import gc
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import msgspec
import polars as pl

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.machine import trim
from stepscope.core.patterns import regex
from stepscope.core.schema import ISSUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from zipfile import ZipFile

    from stepscope.core.trace import Trace


class IssueLog:
    """Counts by code, each with its severity and one example."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, int, str]] = {}

    def add(self, code: str, severity: str, count: int, example: str) -> None:
        """Count something; the first example given stays. Does nothing for a count of 0."""
        if count:
            _, before, first = self._rows.get(code, (severity, 0, example))
            self._rows[code] = (severity, before + int(count), first)

    def rows(self) -> list[tuple[str, str, int, str]]:
        """What was counted: code, severity, count and example, in order of appearance."""
        return [(code, *known) for code, known in self._rows.items()]

    def extend(self, other: IssueLog) -> None:
        """Count all that another log has."""
        for row in other.rows():
            self.add(*row)

    def has(self, severity: str) -> bool:
        """Whether anything of that severity was counted."""
        return any(known == severity for known, _, _ in self._rows.values())

    def table(self) -> pl.DataFrame:
        """The `issues` table, worst first."""
        rank = {"error": 0, "warning": 1, "info": 2}
        rows = sorted(self.rows(), key=lambda r: (rank[r[1]], -r[2]))
        return pl.DataFrame(rows, schema=dict(ISSUES.dtypes), orient="row")


#: What a dump of a flight recorder has in its first bytes, if it is JSON. Profiles have lists of groups called alike.
DUMP_AS_JSON = regex(rb'"(?:(?:collective_seq_id|comm_lib_version)"\s*:|pg_config"\s*:\s*\{)')
_HEAD = 512  # bytes of a file that say whether it is one
_DIGITS = regex(r"\d+")
CHUNK = 1 << 18
#: Without --max-bytes, a packed file may unpack to 2 GiB or to 200 times its size, whichever is more: traces pack to
#: a tenth or a thirtieth, decompression bombs to a thousandth.
DEFAULT_LIMIT = 2 << 30
DEFAULT_RATIO = 200

SQLITE_MAGIC = b"SQLite format 3\0"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
#: The least size of the header before the data of a member of a zip.
_ZIP_HEADER = 30
#: Smaller files leave so little free memory that returning it does not pay.
_LEAST_BYTES = 50_000_000


class Source(msgspec.Struct):
    """One document: a file, or a member of a zip. Iterate `chunks()` once; `damage` says afterwards what was lost."""

    path: str
    member: str | None = None
    max_bytes: int | None = None
    progress: Callable[[int], None] | None = None
    n_bytes: int = 0
    damage: str | None = None

    @property
    def label(self) -> str:
        """Path, and the member's name inside a zip."""
        return f"{self.path}!{self.member}" if self.member else self.path

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Unpacked bytes, a MiB or so at a time; of a plain file from byte `start` on.

        Stops at damage; `damage` describes it. Raises StepscopeError.
        """
        size = files.size_of(self.path)
        with files.opened(self.path) as file:
            with files.reaching(self.path):  # an object store may list what it does not let one read
                packing = packing_of(file.read(8))
                file.seek(0 if packing else start)
            limit = self._limit(size, packed=packing is not None)
            self.n_bytes = 0 if packing else start
            for chunk in self._reached(file, packing):
                self._count(len(chunk), size, limit)
                if self.progress is not None:
                    self.progress(file.tell())
                yield chunk

    def count_unpacked(self, n_bytes: int) -> None:
        """Count what a part of the document that is itself packed unpacks to. Raises StepscopeError at the limit."""
        size = files.size_of(self.path)
        self._count(n_bytes, size, self._limit(size, packed=True))

    @property
    def n_left(self) -> int:
        """How many more bytes may be unpacked."""
        return max((self._limit(files.size_of(self.path), packed=True) or 0) - self.n_bytes, 0)

    def _count(self, n_bytes: int, size: int, limit: int | None) -> None:
        self.n_bytes += n_bytes
        if limit is not None and self.n_bytes > limit:
            msg = f"{self.label} unpacks to more than {limit:,} bytes ({size:,} packed)"
            raise StepscopeError(msg, "if the file is sound, allow more with --max-bytes, as in --max-bytes 20GB")

    def _limit(self, size: int, *, packed: bool) -> int | None:
        if self.max_bytes is not None:
            return self.max_bytes
        return max(DEFAULT_LIMIT, DEFAULT_RATIO * size) if packed else None

    def _reached(self, file: IO[bytes], packing: str | None) -> Iterator[bytes]:
        with files.reaching(self.path):  # a disk may fail, a connection break, in the middle
            yield from self._unpacked(file, packing)

    def _unpacked(self, file: IO[bytes], packing: str | None) -> Iterator[bytes]:
        if packing is None:
            yield from iter(lambda: file.read(CHUNK), b"")
        elif packing == "gzip":
            yield from self._gzip(file)
        elif packing == "zip":
            yield from self._zip(file)
        else:
            yield from self._stream(file, packing)

    def _gzip(self, file: IO[bytes]) -> Iterator[bytes]:
        from isal import isal_zlib

        inflate = isal_zlib.decompressobj(wbits=31)
        packed, inside = b"", False
        while packed or (packed := file.read(CHUNK // 4)):
            try:
                chunk = inflate.decompress(packed, CHUNK)
            except isal_zlib.error as error:  # type: ignore[misc]  # the stubs say that it is an instance
                self.damage = f"gzip data damaged: {error}"
                yield from _until_damage(file, self.n_bytes)
                return
            if chunk:
                yield chunk
            inside = not inflate.eof
            packed = inflate.unconsumed_tail
            if inflate.eof:  # members may be concatenated; zero padding after the last one is legal
                packed = inflate.unused_data.lstrip(b"\0")
                inflate = isal_zlib.decompressobj(wbits=31)
        while inside and (chunk := inflate.decompress(b"", CHUNK)):
            yield chunk
        if inside and not inflate.eof:
            self.damage = "gzip data ends early"

    def _stream(self, file: IO[bytes], packing: str) -> Iterator[bytes]:
        import bz2
        import lzma

        import zstandard

        reader: bz2.BZ2File | lzma.LZMAFile | zstandard.ZstdDecompressionReader
        if packing == "zstd":
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        else:
            reader = bz2.BZ2File(file) if packing == "bz2" else lzma.LZMAFile(file)  # noqa: SIM115  closing them is ours
        while True:
            try:
                chunk = reader.read1(CHUNK)  # an error then costs no more than what the last step would have given
            except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
                self.damage = f"{packing} data damaged or ends early: {error}"
                return
            if not chunk:
                return
            yield chunk

    def _zip(self, file: IO[bytes]) -> Iterator[bytes]:
        import lzma
        import struct
        import zipfile

        damages = (
            zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error,
            KeyError, ValueError, NotImplementedError, RuntimeError,
        )  # fmt: skip
        try:
            with zipfile.ZipFile(file) as archive, archive.open(self.member or _documents(archive)[0]) as opened:
                member = cast("zipfile.ZipExtFile", opened)
                packing = packing_of(member.peek(8))
                if packing not in (None, "zip"):  # packed before it was put into the archive
                    yield from self._unpacked(opened, packing)
                    return
                # The checksum is looked at with the last bytes, which a small step keeps few.
                while chunk := member.read1(CHUNK // 16):
                    yield chunk
        except damages as error:
            if not self.n_bytes:
                msg = f"zip archive damaged: {error}"
                raise CorruptInput(msg, "copy the file again, or unpack it by hand", path=self.label) from None
            self.damage = f"zip data damaged: {error}"


def _until_damage(file: IO[bytes], n_done: int) -> Iterator[bytes]:
    """What damaged gzip data still gives after the first `n_done` bytes: reads again from the start in small steps."""
    file.seek(0)
    inflate, step, n_inflated = zlib.decompressobj(wbits=31), 4096, 0
    while packed := file.read(step):
        before = inflate.copy()
        try:
            chunk = inflate.decompress(packed)
        except zlib.error:
            if step == 1:
                return
            file.seek(-len(packed), 1)
            inflate, step = before, 1
            continue
        n_inflated += len(chunk)
        if n_inflated > n_done:
            yield chunk[-(n_inflated - n_done) :]
            n_done = n_inflated
        if inflate.eof:
            file.seek(-len(inflate.unused_data), 1)
            inflate = zlib.decompressobj(wbits=31)


def packing_of(head: bytes) -> str | None:
    """The packing of a file that begins with these bytes; None if plain."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def head_of(path: str, member: str | None = None, n_bytes: int = 1 << 16) -> bytes:
    """The first unpacked bytes of a file (of a zip: of its first document). Raises StepscopeError, CorruptInput."""
    source = Source(path, member)
    head = b""
    for chunk in source.chunks():
        head += chunk
        if len(head) >= n_bytes:
            break
    if source.damage and not head:
        raise CorruptInput(source.damage, "copy the file again", path=source.label, offset=0)
    return head[:n_bytes]


def family_of_dump(path: str) -> list[str]:
    """The dumps of PyTorch's flight recorder in the folder of one: by their names, else those called alike."""
    try:
        if files.rank_of_dump(path) is None and not _is_dump_as_json(path):
            return [path]
        folder, name = files.split(path)
        listed = files.files_in(folder or ".", deep=False)
    except StepscopeError:  # a folder or bucket whose files may be read and not listed
        return [path]
    dumps = [files.joined(folder, files.split(file)[1]) for file in listed if files.rank_of_dump(file) is not None]
    shape = _DIGITS.sub("0", name)
    return dumps or [file for file in listed if _DIGITS.sub("0", files.split(file)[1]) == shape] or [path]


def _is_dump_as_json(path: str) -> bool:
    if not path.lower().endswith(".json") or files.is_url(path) or not Path(path).is_file():
        return False
    with files.opened(path) as file:
        return DUMP_AS_JSON.search(file.read(_HEAD)) is not None


def members(path: str) -> list[str]:
    """Names of the JSON documents inside a zip; empty for every other file."""
    files.size_of(path)
    with files.opened(path) as file:
        with files.reaching(path):
            head = file.read(8)
        if packing_of(head) != "zip":
            return []
        file.seek(0)
        return _members(file, path)


def _members(file: IO[bytes], path: str) -> list[str]:
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            return _documents(archive)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        msg = f"zip archive damaged: {error}"
        raise CorruptInput(msg, "copy the file again, or unpack it by hand", path=path) from None


def _documents(archive: ZipFile) -> list[str]:
    """Members that may be traces: those called JSON, or what a file of PyTorch describes itself by, or else all.

    Raises ValueError if there are none, or if reading them all would take time without bound: members share their data,
    or claim to unpack to more than one packed file may.
    """
    by_place = sorted(archive.infolist(), key=lambda member: member.header_offset)
    ends = [member.header_offset + _ZIP_HEADER + member.compress_size for member in by_place]
    if any(end > after.header_offset for end, after in zip(ends, by_place[1:], strict=False)):
        raise ValueError("its members overlap")
    if len(ends) > 1 and sum(member.file_size for member in by_place) > max(DEFAULT_LIMIT, DEFAULT_RATIO * ends[-1]):
        raise ValueError(f"its members claim to unpack to more than {DEFAULT_RATIO} times its size")
    names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
    if not names:
        raise ValueError("it is empty")
    described = [n for n in names if n.endswith("/data.pkl")]  # the rest of such a file are its numbers
    return sorted(n for n in names if ".json" in n.lower()) or described or names


@contextmanager
def no_collection() -> Iterator[None]:
    """Turns the cyclic garbage collector off: decoded data has no cycles, and searching for them costs a third."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def give_back(n_bytes: int | None = None) -> None:
    """Return freed memory to the operating system, after a file of so many bytes (if known) was read.

    Does nothing where the library has no such call, or the file is small.

    Reading leaves more than half of its peak as free heap in the C library. Polars has its own allocator and cannot use
    it, so the memory of analyses would be added to it.
    """
    if n_bytes is None or n_bytes >= _LEAST_BYTES:
        trim()


def with_issues(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with further issues."""
    table = issues.table()
    return trace if table.is_empty() else trace.with_tables(issues=pl.concat([ISSUES.conform(trace.issues), table]))
