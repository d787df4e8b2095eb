"""Keys of the cache, and small values in it: a few bytes that were computed from a file, such as its summary."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store._cache import CacheFolder, cache_folder, find_value, put_value
from stepscope.store._folder import VERSION, schema_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Meta

__all__ = [
    "LEAST_PACKED",
    "CacheKey",
    "cache_value",
    "cached_value",
    "code_fingerprint",
    "file_key",
    "key_of",
    "program_fingerprint",
    "settled",
    "unchanged",
    "value_key",
]


_SAMPLES, _SAMPLE, _ENDS = 14, 1 << 12, 1 << 16
#: A second change within this time may not change the times: a few ticks of the kernel's clock, or 2 s (FAT).
_TICK_NS, _COARSE_NS = 100_000_000, 2_100_000_000


def key_of(path: str, extra: Sequence[object]) -> str | None:
    """The key of what is read from a file; None if nothing shows when the file changes.

    `extra` is what the result depends on besides the file: the member of an archive, limits. The code of the readers is
    part of the key too. Raises StepscopeError if the file cannot be read.
    """
    state = files.state_of(path)
    if state is None:
        return None
    parts = [VERSION, schema_fingerprint(), code_fingerprint(), files.absolute(path), *state, *extra]
    digest = hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=16)
    if not files.is_url(path):
        for piece in _samples(path, int(str(state[2]))):
            digest.update(piece)
    return digest.hexdigest()


def _samples(path: str, size: int) -> list[bytes]:
    """Both ends of the file and pieces spread evenly over it."""
    step = max((size - 2 * _ENDS) // (_SAMPLES + 1), 0)
    spots = [_ENDS + step * (i + 1) for i in range(_SAMPLES)] if step > _SAMPLE else []
    with files.opened(path) as file, files.reaching(path):
        pieces = [file.read(_ENDS)]
        for spot in (*spots, max(size - _ENDS, 0)):
            file.seek(spot)
            pieces.append(file.read(_SAMPLE if spot in spots else _ENDS))
    return pieces


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


@cache
def code_fingerprint() -> str:
    """Changes whenever the code that reads files changes, so that results of older code are not used."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*root.joinpath("readers").rglob("*.py"), *root.joinpath("core").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def program_fingerprint() -> str:
    """Changes whenever this program changes, or the version of Polars, whose frames it stores."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(pl.__version__.encode(), digest_size=16)
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


#: Smaller files are not cached: reading them takes no longer than looking for them.
LEAST_PACKED = 200_000
_MEMBER = "!"
#: Formats in which a recording is one file, so that the key of the file shows every change.
_ONE_FILE_FORMATS = ("kineto",)


@dataclass(frozen=True, slots=True)
class CacheKey:
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
    if depends is None or _MEMBER in path or files.is_folder(path):
        return None
    return file_key(path, (what, path, program_fingerprint(), *depends))


def cached_value(of: CacheKey) -> bytes | None:
    """What `cache_value` stored under this key; None if there is nothing."""
    return find_value(of.where, of.key)


def cache_value(of: CacheKey, content: bytes, meta: Meta, *, what: str) -> None:
    """Store a few bytes that were computed from the file after the key was made, unless the file changed meanwhile.

    Does nothing for formats whose recordings are several files. `stepscope cache` shows `what`.
    """
    if meta.format not in _ONE_FILE_FORMATS:
        return
    try:
        if unchanged(of):
            path, kind = files.absolute(meta.path), f"{meta.format}, {what}"
            put_value(of.where, of.key, content, source=path, kind=kind, source_bytes=meta.size_bytes)
    except (OSError, StepscopeError):  # as for traces: it is computed again next time
        return


def unchanged(of: CacheKey) -> bool:
    """Whether the file is the same as when the key was made, judged by times and samples of its content.

    Raises StepscopeError if it cannot be read any more.
    """
    return settled(of.path, of.began_ns) and key_of(of.path, of.extra) == of.key
