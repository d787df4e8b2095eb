"""Files that say who uses a folder: a lock lives as long as the process that holds it, however that ends."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["alone", "shared"]

# Where there is no flock (Windows) an open file cannot be removed, which protects its folder as well.
if sys.platform != "win32":
    import fcntl

    def _locked(file: IO[bytes], *, exclusive: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:  # another has it, or the file system has no locks: then nobody may remove the folder
            return False
        return True

else:

    def _locked(file: IO[bytes], *, exclusive: bool) -> bool:  # noqa: ARG001
        return True


def shared(path: Path) -> IO[bytes] | None:
    """The file, opened, with a lock that others may hold too; None if it is not there or is being removed."""
    return _taken(path, exclusive=False)


def alone(path: Path) -> IO[bytes] | None:
    """The file, opened, with a lock that nobody else holds; None if it is not there or in use."""
    return _taken(path, exclusive=True)


def _taken(path: Path, *, exclusive: bool) -> IO[bytes] | None:
    try:
        file = path.open("rb")
    except OSError:
        return None
    # It may have been removed between the two steps, and even be there anew.
    if _locked(file, exclusive=exclusive) and _is_still(file, path):
        return file
    file.close()
    return None


def _is_still(file: IO[bytes], path: Path) -> bool:
    import os

    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
