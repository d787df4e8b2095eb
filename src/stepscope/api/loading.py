"""How the files of a run are opened: with what is said of all of them, and with what lies beside each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from stepscope import readers
from stepscope.core import files
from stepscope.core.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    PathLike = str | Path

__all__ = ["FileOpener", "loaded"]


def loaded(
    path: PathLike,
    *,
    counters: PathLike | None = None,
    with_: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep: bool = True,
) -> Trace:
    """A trace, read or taken from where it is kept, as `stepscope.load` says."""
    side = None if counters is None else os.fspath(counters)
    read = readers.open_trace if keep else readers.open_once
    trace = read(os.fspath(path), counters=side, max_bytes=max_bytes, progress=progress)
    if with_ is None:
        return trace
    from stepscope.analyses.ncu_join import stitched

    return stitched(trace, with_ if isinstance(with_, Trace) else loaded(with_, max_bytes=max_bytes))


@dataclass(frozen=True, slots=True)
class FileOpener:
    """Opens one file of a run. In another process there is nobody to tell of progress."""

    counters: str | None
    with_: Trace | str | None
    max_bytes: int | None
    progress: Callable[[str, int], None] | None

    def __call__(self, path: str) -> Trace:
        """The trace in a file."""
        return self._opened(path, keep=True)

    def once(self, path: str) -> Trace:
        """The trace in a file, which is not kept for the next time."""
        return self._opened(path, keep=False)

    def depends(self, path: str) -> tuple[object, ...] | None:
        """What a trace follows from besides its file; null if a trace is joined to it, or files from afar."""
        if self.counters is not None or self.with_ is not None:
            return None
        return (self.max_bytes, *((side, *(files.state_of(side) or ())) for side in readers.side_files(path)))

    def _opened(self, path: str, *, keep: bool) -> Trace:
        tell = partial(self.progress, path) if self.progress else None
        joined = _joined(self.with_, self.max_bytes) if isinstance(self.with_, str) else self.with_
        return loaded(path, counters=self.counters, with_=joined, max_bytes=self.max_bytes, progress=tell, keep=keep)

    def __reduce__(self) -> tuple[object, ...]:
        return FileOpener, (self.counters, self.with_, self.max_bytes, None)


@lru_cache(maxsize=1)
def _joined(path: str, max_bytes: int | None) -> Trace:
    """Of several ranks all are joined to the same counters, which are read once."""
    return loaded(path, max_bytes=max_bytes)
