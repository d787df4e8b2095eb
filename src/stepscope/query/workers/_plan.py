"""How many processes a job of so many files is worth, and how many fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.query.workers.machine import cores, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Plan", "plan"]

#: Measured: what a process needs before it reads, then for each byte of a trace; bytes that it reads in a second.
_BASE_BYTES, _PER_BYTE, _BYTES_PER_S = 130_000_000, 0.9, 90_000_000
#: What starting a process costs, in seconds: less work than that is done in this one.
_START_S = 0.6
#: How much bigger a file is unpacked: packed as a whole, as a store.
_PACKED, _STORED = 12, 25
#: Objects that other processes do not see.
_MINE = "memory://"
_PACKINGS = (".gz", ".zst", ".xz", ".bz2", ".zip")
_REMOTE_BYTES = 100_000_000
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Plan:
    """How many processes, 0 for this one alone, and what each may take."""

    n_workers: int
    worker_bytes: int


def plan(paths: Sequence[str], *, workers: int | None = None, memory_limit: int | None = None) -> Plan:
    """As many workers as there are cores and files, fewer where memory ends: `memory_limit`, or 80 % of what is free.

    `workers` asks for a number, 0 for none; memory bounds it all the same. Where all files are read sooner than a
    process has started there are none.
    """
    if any(path.startswith(_MINE) for path in paths):
        return Plan(0, _BASE_BYTES)
    sizes = [_unpacked_bytes(path) for path in paths]
    need = int(_BASE_BYTES + _PER_BYTE * max(sizes, default=0))
    limit = int(_SHARE * memory_bytes()) if memory_limit is None else memory_limit
    fitting = max(1, (limit - _BASE_BYTES) // need)  # this process is there as well
    wanted = min(cores(), len(paths)) if workers is None else min(workers, len(paths))
    if workers is None and (wanted < 2 or sum(sizes) / _BYTES_PER_S / 2 < _START_S):
        return Plan(0, need)
    return Plan(min(wanted, fitting), need)


def _unpacked_bytes(path: str) -> int:
    """About how many bytes a trace unpacks to. To ask an object store for each would take long: a guess has to do."""
    if files.is_url(path):
        return _REMOTE_BYTES
    try:
        if files.is_folder(path):
            return _STORED * sum(files.size_of(file) for file in files.files_in(path, deep=False))
        size = files.size_of(path)
    except StepscopeError:  # reading it will say what is wrong
        return 0
    return size * (_PACKED if path.lower().endswith(_PACKINGS) else 1)
