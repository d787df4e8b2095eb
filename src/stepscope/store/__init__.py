"""Traces on disk: a folder of Parquet files for each trace, and a cache of opened files that consists of such folders.

Readers use `file_key`, `cached_trace` and `cache_trace`. The cache never lies in the folder of the input, never returns
what was read before the file changed, and never makes reading fail. `write_run` writes the folders of `export --to
parquet`, and `traces_in` finds the traces in them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import polars as pl
from msgspec.structs import replace

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.machine import CacheFolder, CacheWarning, cache_folder, is_off
from stepscope.store._cache import Entry, clear, entries, find_trace, put_trace, scratch_folder
from stepscope.store._folder import (
    META,
    parse_document,
    read_document,
    read_folder,
    storable,
    traces_in,
    write_folder,
    write_run,
)
from stepscope.store.cache_keys import (
    LEAST_PACKED,
    CacheKey,
    cache_value,
    cached_value,
    file_key,
    packed,
    program_fingerprint,
    remember,
    remembered,
    unchanged,
    unpacked,
    value_key,
)
from stepscope.store.column_files import forget

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

__all__ = [
    "META",
    "CacheFolder",
    "CacheKey",
    "CacheWarning",
    "Entry",
    "cache_folder",
    "cache_trace",
    "cache_value",
    "cached_trace",
    "cached_value",
    "clear",
    "entries",
    "file_key",
    "is_cached",
    "is_off",
    "packed",
    "parse_document",
    "program_fingerprint",
    "put_trace",
    "read_document",
    "read_folder",
    "remember",
    "remembered",
    "scratch_folder",
    "storable",
    "traces_in",
    "unchanged",
    "unpacked",
    "value_key",
    "wait_until_written",
    "write_folder",
    "write_run",
]

#: Smaller files (unpacked) are not cached: reading them takes no longer than looking for them. A packed trace has a
#: twentieth of its size.
LEAST_BYTES = 20 * LEAST_PACKED
_writer: threading.Thread | None = None


def cached_trace(of: CacheKey, *, label: str) -> Trace | None:
    """The cached trace, as if it had just been read from `label`; None if it is not in the cache."""
    return find_trace(of.where, of.key, label=label)


def is_cached(of: CacheKey) -> bool:
    """Whether the trace is in the cache. The entry is not opened, so it may still be damaged."""
    return (of.where.folder / of.key / META).exists()


def cache_trace(of: CacheKey, trace: Trace, n_bytes: int) -> None:
    """Cache a trace that unpacked to `n_bytes`. A thread writes it, so the caller need not wait.

    One trace is written at a time. When the process ends it waits for the thread. If it is killed, the incomplete
    entry is never read.
    """
    global _writer  # noqa: PLW0603  one writer per process, as there is one disk
    if n_bytes < LEAST_BYTES or not storable(trace):
        return
    wait_until_written()
    _writer = threading.Thread(target=_keep, args=(of, trace), name="stepscope-cache")
    _writer.start()


def wait_until_written() -> None:
    """Wait until the trace that is being written is in the cache."""
    if _writer is not None:
        _writer.join()


def _keep(of: CacheKey, trace: Trace) -> None:
    try:
        # The key stands for what was read only if the file did not change meanwhile.
        if unchanged(of):
            meta = replace(trace.meta, path=files.absolute(trace.meta.path))
            put_trace(of.where, of.key, replace(trace, meta=meta))
            forget()
    except (OSError, StepscopeError, pl.exceptions.PolarsError):
        # The disk is full or the folder cannot be written: the file is read again next time. `stepscope cache` says
        # if the folder cannot be written.
        return
