"""Which kept trace belongs to a file: a digest of where it lies, what its file system says of it, and samples of it.

A file that was written to has another time of change (`ctime`), which no program can set back, so another key. Where a
file system has no such time, or only whole seconds of it, samples of the content and a wait make up for it.
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

_SAMPLES, _SAMPLE, _ENDS = 14, 1 << 12, 1 << 16
#: A change within so long after another may leave no trace in times: a few ticks of the kernel's clock, or 2 s (FAT).
_TICK_NS, _COARSE_NS = 100_000_000, 2_100_000_000


def key_of(path: str, extra: Sequence[object]) -> str | None:
    """The name under which what was read from a file is kept; None if nothing tells when the file changes.

    `extra` is what else the reading depends on: the member of an archive, limits. The code of the readers is part of
    it too. Raises StepscopeError if the file cannot be read.
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

    It would not if the file was written so shortly before that a second change gets the same time. Raises
    StepscopeError.
    """
    state = files.state_of(path)
    if state is None:
        return False
    if files.is_url(path):  # an object changes as a whole, and its tag with it
        return True
    changed = [int(str(moment)) for moment in state[3:]]
    # Whole seconds are not by chance: the file system keeps no others.
    wait = _COARSE_NS if any(moment % 1_000_000_000 == 0 for moment in changed) else _TICK_NS
    return all(moment + wait <= since_ns for moment in changed)


@cache
def code_fingerprint() -> str:
    """Changes with every change of the code that reads files: what older code made of them is not taken."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted([*root.joinpath("readers").rglob("*.py"), *root.joinpath("core").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def program_fingerprint() -> str:
    """Changes with every change of this program, and of the library whose frames it keeps."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(pl.__version__.encode(), digest_size=16)
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
