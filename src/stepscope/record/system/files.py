"""Files of the kernel that are read many times a second: opened once, read from their start each time."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Kept", "Texts", "read_once"]

_BLOCK = 1 << 16
#: Files that are left for other uses when the limit of open ones is reached.
_SPARE = 64


class Texts(dict[str, bytes]):
    """What files held when they were read: asked as the files are, later."""

    read = dict.get


class Kept:
    """Open files by path. A file that is not there, or goes away, reads as None, and is tried again when asked for."""

    def __init__(self, most: int | None = None) -> None:
        self._open: dict[str, int] = {}
        self._most = _raised_limit() - _SPARE if most is None else most

    def read(self, path: str) -> bytes | None:
        """What the file holds now, up to 64 KiB; None if it cannot be read."""
        try:
            handle = self._open.get(path)
            if handle is None:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if len(self._open) >= self._most:  # a job of very many threads
                    with os.fdopen(handle, "rb", 0) as file:
                        return file.read(_BLOCK)
                self._open[path] = handle
            return os.pread(handle, _BLOCK, 0)
        except OSError:
            self.drop(path)
            return None

    def read_all(self, paths: Iterable[str]) -> Texts:
        """What each of the files holds now; those that cannot be read are left out."""
        found, opened = Texts(), self._open
        for path in paths:
            handle = opened.get(path)
            try:
                text = self.read(path) if handle is None else os.pread(handle, _BLOCK, 0)
            except OSError:
                self.drop(path)
                text = self.read(path)
            if text is not None:
                found[path] = text
        return found

    def drop(self, path: str) -> None:
        """Close a file that is not needed any more."""
        handle = self._open.pop(path, None)
        if handle is not None:
            os.close(handle)

    def drop_below(self, folder: str) -> None:
        """Close all files of a folder, such as that of a process that ended."""
        for path in [path for path in self._open if path.startswith(folder)]:
            self.drop(path)

    def close(self) -> None:
        """Close all."""
        self.drop_below("")

    def __len__(self) -> int:
        return len(self._open)


def _raised_limit() -> int:
    """How many files we may hold open, after asking for as many as we may ask for (but no more than 64 K)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 1 << 16 if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def read_once(path: str) -> str | None:
    """The text of a small file, or None if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with os.fdopen(handle, "rb", 0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None
