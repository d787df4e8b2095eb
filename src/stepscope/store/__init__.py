"""Traces kept on disk: a folder of Parquet files for each, and a cache of opened files made of such folders.

`ticket`, `taken` and `keep_later` are the cache as readers use it: it is never beside the input, never serves what was
read before the file changed, and never makes reading fail. `write_run` and `traces_in` are folders that users ask for.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store._cache import Entry, Place, clear, entries, find, keep, place, scratch
from stepscope.store._folder import META, document_of, mark_of, read_folder, storable, write_folder
from stepscope.store._key import program_fingerprint
from stepscope.store._run import traces_in, write_run
from stepscope.store.blobs import LEAST_PACKED, CacheKey, keep_noted, note_ticket, noted, ticket, unchanged

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = [
    "META",
    "CacheKey",
    "Entry",
    "Place",
    "clear",
    "document_of",
    "entries",
    "is_cached",
    "keep",
    "keep_later",
    "keep_noted",
    "mark_of",
    "note_ticket",
    "noted",
    "place",
    "program_fingerprint",
    "read_folder",
    "scratch",
    "storable",
    "taken",
    "ticket",
    "traces_in",
    "unchanged",
    "wait",
    "write_folder",
    "write_run",
]

#: Files are kept if they unpack to so many bytes; to read less takes no longer than to look for it. Packed, a trace
#: takes a twentieth.
LEAST_BYTES = 20 * LEAST_PACKED
_writer: threading.Thread | None = None


def taken(of: CacheKey, *, label: str) -> Trace | None:
    """The kept trace, as if it had just been read from `label`; None if it is not there."""
    return find(of.where, of.key, label=label)


def is_cached(of: CacheKey) -> bool:
    """Whether the file is there, as far as one sees without opening it."""
    return (of.where.folder / of.key / META).exists()


def keep_later(of: CacheKey, trace: Trace, n_bytes: int) -> None:
    """Keep a trace that unpacked to so many bytes, in a thread: whoever opened it need not wait.

    One is written at a time. A process that ends waits for it; one that is killed leaves nothing.
    """
    global _writer  # noqa: PLW0603  there is one disk
    if n_bytes < LEAST_BYTES or not storable(trace):
        return
    wait()
    _writer = threading.Thread(target=_keep, args=(of, trace), name="stepscope-cache")
    _writer.start()


def wait() -> None:
    """Until what is being kept is on disk."""
    if _writer is not None:
        _writer.join()


def _keep(of: CacheKey, trace: Trace) -> None:
    try:
        # What was read is what the key stands for only if the file did not change meanwhile.
        if unchanged(of):
            meta = replace(trace.meta, path=files.absolute(trace.meta.path))
            keep(of.where, of.key, replace(trace, meta=meta))
    except (OSError, StepscopeError, pl.exceptions.PolarsError):
        # A full disk or a folder that may not be written to: the next time the file is read again. `stepscope cache`
        # tells.
        return
