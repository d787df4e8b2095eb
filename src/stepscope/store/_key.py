"""The key of a file in the cache: a digest of its path, what its file system says about it, and of its content.

When a file is written, its time of change (`ctime`) changes, and so does its key. No program can set this time back. If
a file system has no such time, or only in whole seconds, the content and a wait replace it. The times may also stay as
they are when a program writes through a memory mapping. The content of a file of up to 4 MiB is part of its key; of a
larger one samples are, so a change of such a kind between the samples does not show.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.store._folder import VERSION, schema_fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["code_fingerprint", "key_of", "program_fingerprint", "settled"]

_WHOLE, _SAMPLES, _SAMPLE, _ENDS = 1 << 22, 30, 1 << 12, 1 << 16
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
