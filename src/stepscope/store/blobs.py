"""Notes: a few bytes that were made of a file, kept in the cache of opened files under a key of their own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store._cache import Place, find_note, keep_note, place
from stepscope.store._key import key_of, program_fingerprint, settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Meta

__all__ = ["LEAST_PACKED", "CacheKey", "keep_noted", "note_ticket", "noted", "ticket", "unchanged"]

#: A packed file of fewer bytes is read in no more time than it takes to look for it.
LEAST_PACKED = 200_000
_MEMBER = "!"
#: Formats of which a recording is one file, so that its key tells all changes.
_ONE_FILE_FORMATS = ("kineto",)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What is needed to find a file in the cache, or to keep it there once it is read."""

    where: Place
    key: str
    path: str
    extra: tuple[object, ...]
    began_ns: int


def ticket(path: str, extra: Sequence[object]) -> CacheKey | None:
    """The ticket of a file that is about to be read; None if it is not to be kept.

    `extra` is what else the reading depends on. Raises StepscopeError if the file cannot be read.
    """
    where = place()
    if where is None or files.size_of(path) < LEAST_PACKED:
        return None
    began_ns = time.time_ns()
    key = key_of(path, extra)
    return None if key is None else CacheKey(where, key, path, tuple(extra), began_ns)


def note_ticket(what: str, path: str, depends: Sequence[object] | None) -> CacheKey | None:
    """The ticket of a note about the file; None if there is to be none. Raises StepscopeError (unreadable).

    `what` says what is noted, `depends` what else it follows from besides this program and the file; null: too much.
    """
    if depends is None or _MEMBER in path or files.is_folder(path):
        return None
    return ticket(path, (what, path, program_fingerprint(), *depends))


def noted(of: CacheKey) -> bytes | None:
    """What `keep_noted` kept with this ticket; None if there is nothing."""
    return find_note(of.where, of.key)


def keep_noted(of: CacheKey, content: bytes, meta: Meta, *, what: str) -> None:
    """Keep a few bytes that were made of a file since the ticket was made, unless the file changed meanwhile.

    Only of formats whose recordings are one file. `what` is shown where the cache is listed.
    """
    if meta.format not in _ONE_FILE_FORMATS:
        return
    try:
        if unchanged(of):
            path, kind = files.absolute(meta.path), f"{meta.format}, {what}"
            keep_note(of.where, of.key, content, source=path, kind=kind, source_bytes=meta.size_bytes)
    except (OSError, StepscopeError):  # as for traces: next time it is made again
        return


def unchanged(of: CacheKey) -> bool:
    """Whether the file is what it was when the ticket was made, as far as times and samples tell.

    Raises StepscopeError if it cannot be read any more.
    """
    return settled(of.path, of.began_ns) and key_of(of.path, of.extra) == of.key
