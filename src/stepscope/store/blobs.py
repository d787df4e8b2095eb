"""Keys of the cache, and small values in it: a few bytes that were computed from a file, such as its summary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store._cache import CacheFolder, cache_folder, find_value, put_value
from stepscope.store._key import key_of, program_fingerprint, settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Meta

__all__ = ["LEAST_PACKED", "CacheKey", "cache_value", "cached_value", "file_key", "unchanged", "value_key"]

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
