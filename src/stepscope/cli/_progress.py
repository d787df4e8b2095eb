"""Shows the progress of reading on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WIDTH = 30
_EVERY_S = 0.1


@contextmanager
def progress(paths: Sequence[str], *, wanted: bool) -> Iterator[Callable[[str, int], None] | None]:
    """The `progress` function for `load_run`; None without a terminal. The line is erased at the end.

    `paths` may be filled in until reading begins.
    """
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    sizes: dict[str, int] = {}
    read: dict[str, int] = {}
    drawn_at = time.monotonic()

    def tell(path: str, n_bytes: int) -> None:
        nonlocal drawn_at
        if not sizes:
            sizes.update({p: _size(p) for p in paths})
        if path not in read:  # files are read one after the other: earlier ones are done
            read.update({earlier: sizes.get(earlier, 0) for earlier in read})
        read[path] = n_bytes
        now = time.monotonic()
        if now - drawn_at >= _EVERY_S:
            drawn_at = now
            _draw(min(sum(read.values()) / max(sum(sizes.values()), 1), 1.0), len(read), len(paths))

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


@contextmanager
def ranks_done(*, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A function that shows how many files are done; None without a terminal. The line is erased at the end."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    drawn_at = 0.0

    def tell(n_done: int, n_files: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if n_files > 1 and now - drawn_at >= _EVERY_S:
            drawn_at = now
            _draw(n_done / n_files, n_done, n_files)

    try:
        yield tell
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _draw(ratio: float, at: int, n_files: int) -> None:
    bar = "#" * round(ratio * _WIDTH)
    files = f"  file {at} of {n_files}" if n_files > 1 else ""
    sys.stderr.write(f"\rreading [{bar:<{_WIDTH}}] {ratio:4.0%}{files}\x1b[K")
    sys.stderr.flush()


def _size(path: str) -> int:
    """Bytes on disk; 0 if unknown (a member of an archive, a remote file)."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
