"""Keys of the cache, and small values in it that were computed from a file, such as its summary.

The key of a file is a digest of its path, of what its file system says about it, and of its content. When a file is
written, its time of change (`ctime`) changes, and so does its key. No program can set this time back. If a file system
has no such time, or only in whole seconds, the content and a wait replace it. The times may also stay as they are when
a program writes through a memory mapping. The content of a file of up to 4 MiB is part of its key. Of a larger one
samples are, so a change of such a kind between the samples does not show.

A value is a frozen dataclass. The annotations of its fields are its schema: what does not fit them is not read. Modules
that define such classes import the types of their annotations at run time.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.machine import CacheFolder, cache_folder
from stepscope.store._cache import find_value, put_value, remove_damaged
from stepscope.store._folder import VERSION, schema_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.core.trace import Meta

T = TypeVar("T")

_WHOLE, _SAMPLES, _SAMPLE, _ENDS = 1 << 22, 30, 1 << 12, 1 << 16
#: A second change within this time may not change the times: a few ticks of the kernel's clock, or 2 s (FAT).
_TICK_NS, _COARSE_NS = 100_000_000, 2_100_000_000
_PACKAGE = str(Path(__file__).parents[1])


def key_of(path: str, extra: Sequence[object]) -> str | None:
    """The key of what is read from a file; None if nothing shows when the file changes.

    `extra` is what the result depends on besides the file: the member of an archive, limits. The code of the readers is
    part of the key too. Raises StepscopeError if the file cannot be read.
    """
    state = files.state_of(path)
    if state is None:
        return None
    parts = [VERSION, schema_fingerprint(), code_fingerprint(), files.absolute(path), *state, *extra]
    digest = hashlib.sha256(json.dumps(parts, default=str).encode())
    if not files.is_url(path):
        for piece in _samples(path, int(str(state[2]))):
            digest.update(piece)
    return digest.hexdigest()[:32]


def _samples(path: str, size: int) -> list[bytes]:
    """The whole file, or if it is large, both ends of it and pieces spread evenly between them."""
    step = (size - 2 * _ENDS) // (_SAMPLES + 1)
    with files.opened(path) as file, files.reaching(path):
        if size <= _WHOLE:
            return [file.read()]
        pieces = [file.read(_ENDS)]
        for i in range(_SAMPLES):
            file.seek(_ENDS + step * (i + 1))
            pieces.append(file.read(_SAMPLE))
        file.seek(size - _ENDS)
        return [*pieces, file.read(_ENDS)]


def settled(path: str, since_ns: int) -> bool:
    """Whether a change of the file after `since_ns` (Unix time) would show in its times.

    It would not if the file was written just before, because a second change could get the same time. Raises
    StepscopeError.
    """
    state = files.state_of(path)
    if state is None:
        return False
    if files.is_url(path):  # an object changes as a whole, and its tag with it
        return True
    changed = [int(str(moment)) for moment in state[3:]]
    # Whole seconds are no coincidence: the file system has no fractions.
    wait = _COARSE_NS if any(moment % 1_000_000_000 == 0 for moment in changed) else _TICK_NS
    return all(moment + wait <= since_ns for moment in changed)


def code_fingerprint() -> str:
    """Changes whenever the code that reads files changes, so that results of older code are not used."""
    return _code_of("core") + _code_of("readers")


@cache
def program_fingerprint() -> str:
    """Changes whenever this program changes, or the version of Polars, whose frames it stores."""
    return hashlib.sha256(f"{pl.__version__} {_code_of('')}".encode()).hexdigest()


@cache
def _code_of(room: str) -> str:
    """A digest of what the file system says of the code and data in a folder of the package: names, sizes, times.

    To read them takes as long as to read a small trace.
    """
    files_of_room = [
        f"{entry.path} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}"
        for entry in _files_in(os.path.join(_PACKAGE, room))  # noqa: PTH118
        if entry.name.endswith((".py", ".json"))
        for state in (entry.stat(),)
    ]
    return hashlib.sha256("\n".join(sorted(files_of_room)).encode("utf-8", "surrogateescape")).hexdigest()


def _files_in(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry
            elif entry.name != "__pycache__":
                yield from _files_in(entry.path)


#: Smaller files are not cached: reading them takes no longer than looking for them.
LEAST_PACKED = 200_000
_MEMBER = "!"
#: Formats in which a recording is one file, so that the key of the file shows every change.
_ONE_FILE_FORMATS = ("kineto",)


class CacheKey(msgspec.Struct, frozen=True):
    """Identifies what the cache holds, or will hold, for a file. `began_ns` is the Unix time at which it was made."""

    where: CacheFolder
    key: str
    path: str
    extra: tuple[object, ...]
    began_ns: int


def file_key(path: str, extra: Sequence[object]) -> CacheKey | None:
    """The key of a file that is about to be read; None if it is not cached (too small, or the cache is off).

    `extra` is what the result depends on besides the file. Raises StepscopeError if the file cannot be read.
    """
    where = cache_folder()
    if where is None or files.size_of(path) < LEAST_PACKED:
        return None
    began_ns = time.time_ns()
    key = key_of(path, extra)
    return None if key is None else CacheKey(where, key, path, tuple(extra), began_ns)


def value_key(what: str, path: str, depends: Sequence[object] | None) -> CacheKey | None:
    """The key of a value that is computed from the file; None if it is not cached. Raises StepscopeError (unreadable).

    `what` names the value. `depends` is what it depends on besides this program and the file; None: too much to cache.
    """
    if depends is None or cache_folder() is None or _MEMBER in path or files.is_folder(path):
        return None
    if files.size_of(path) < LEAST_PACKED:
        return None  # before the fingerprint, which reads the whole program
    return file_key(path, (what, path, program_fingerprint(), *depends))


def cached_value(of: CacheKey, kind: type[T]) -> T | None:
    """What `cache_value` stored under this key, of this class; None if there is nothing."""
    content = find_value(of.where, of.key)
    if content is None:
        return None
    try:
        return unpacked(content, kind)
    except (zlib.error, pl.exceptions.PolarsError, OSError, ValueError, IndexError) as error:
        remove_damaged(of.where, of.key, f"it is no {kind.__name__}: {error}")
        return None


def cache_value(of: CacheKey, value: object, meta: Meta, *, what: str) -> None:
    """Store what was computed from the file after the key was made, unless the file changed meanwhile.

    Does nothing for formats whose recordings are several files. `stepscope cache` shows `what`.
    """
    if meta.format not in _ONE_FILE_FORMATS:
        return
    try:
        if unchanged(of):
            path, kind = files.absolute(meta.path), f"{meta.format}, {what}"
            put_value(of.where, of.key, packed(value), source=path, kind=kind, source_bytes=meta.size_bytes)
    except (OSError, StepscopeError):  # as for traces: it is computed again next time
        return


def remember(name: str, content: bytes, *, source: str, kind: str) -> None:
    """Store a few bytes about no single file under a name; does nothing if the cache is off or cannot be written."""
    where = cache_folder()
    if where is not None:
        with suppress(OSError):
            put_value(where, _named(name), content, source=source, kind=kind, source_bytes=0)


def remembered(name: str) -> bytes | None:
    """What `remember` stored under the name; None if there is nothing."""
    where = cache_folder()
    return None if where is None else find_value(where, _named(name))


def _named(name: str) -> str:
    return hashlib.blake2b(b"name " + name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def packed(value: object) -> bytes:
    """A struct as bytes: its fields as JSON, and the frames and the types of columns in it as Arrow streams."""
    frames: list[pl.DataFrame] = []
    types: dict[pl.DataType, int] = {}

    def plain(part: object) -> object:
        if isinstance(part, pl.DataFrame):
            frames.append(part)
            return len(frames) - 1
        if isinstance(part, pl.DataType):
            return types.setdefault(part, len(types))
        if isinstance(part, Mapping):
            return dict(part)
        raise NotImplementedError(f"{type(part)} cannot be stored")

    # Not msgspec's own JSON: names of files may hold surrogates, which it refuses.
    text = json.dumps(msgspec.to_builtins(value, enc_hook=plain)).encode("ascii")
    of_types = pl.DataFrame(schema={str(i): dtype for dtype, i in types.items()})
    return zlib.compress(msgspec.msgpack.encode([text, *map(_arrow, (of_types, *frames))]), level=1)


def unpacked(content: bytes, kind: type[T]) -> T:
    """The dataclass of this class in what `packed` gave.

    Raises zlib.error, PolarsError, OSError, ValueError, IndexError if the bytes are something else.
    """
    text, *arrows = msgspec.msgpack.decode(zlib.decompress(content), type=list[bytes])
    of_types, *frames = [pl.read_ipc_stream(io.BytesIO(arrow)) for arrow in arrows]
    return msgspec.convert(
        json.loads(text), kind, dec_hook=lambda of, i: frames[i] if of is pl.DataFrame else of_types.dtypes[i]
    )


def _arrow(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer)
    return buffer.getvalue()


def unchanged(of: CacheKey) -> bool:
    """Whether the file is the same as when the key was made, judged by times and samples of its content.

    Raises StepscopeError if it cannot be read any more.
    """
    return settled(of.path, of.began_ns) and key_of(of.path, of.extra) == of.key
