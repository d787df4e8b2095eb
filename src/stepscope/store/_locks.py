"""Files that say who uses a folder: a lock lives as long as the process that holds it, however that ends."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Lock", "alone", "shared"]

# Where there is no flock (Windows) an open file cannot be removed, which protects its folder as well.
if sys.platform != "win32":
    import fcntl

    def _locked(descriptor: int, *, exclusive: bool) -> bool:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:  # another has it, or the file system has no locks: then nobody may remove the folder
            return False
        return True

else:

    def _locked(descriptor: int, *, exclusive: bool) -> bool:  # noqa: ARG001
        return True


class Lock:
    """A file held open, until it is closed or nobody has the lock any more."""

    def __init__(self, descriptor: int) -> None:
        self.close = weakref.finalize(self, os.close, descriptor)


def shared(path: Path) -> Lock | None:
    """A lock on the file that others may hold too; None if it is not there or is being removed."""
    return _taken(path, exclusive=False)


def alone(path: Path) -> Lock | None:
    """A lock on the file that nobody else holds; None if it is not there or in use."""
    return _taken(path, exclusive=True)


def _taken(path: Path, *, exclusive: bool) -> Lock | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    lock = Lock(descriptor)
    # It may have been removed between the two steps, and even be there anew.
    if _locked(descriptor, exclusive=exclusive) and _is_still(descriptor, path):
        return lock
    lock.close()
    return None


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
