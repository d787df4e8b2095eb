"""Opens traces, with the counters recorded along with them and, if given, kernel counters joined to them."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stepscope import readers
from stepscope.core import files
from stepscope.core.trace import Trace
from stepscope.readers import NO_SIDE_FILES, SideFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    PathLike = str | Path

#: More files than these are named by their folder, if it holds no others.
_MOST_NAMED = 4


def loaded(
    path: PathLike,
    *,
    side: SideFiles = NO_SIDE_FILES,
    kernel_counters: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
    cache: bool = True,
) -> Trace:
    """A trace, read or taken from the cache, as in `stepscope.load`. With `cache` false it is not put there."""
    read = readers.open_trace if cache else readers.open_once
    trace = read(os.fspath(path), side=side, max_bytes=max_bytes, progress=progress)
    if kernel_counters is None:
        return trace
    from stepscope.analyses.ncu_join import stitched

    if not isinstance(kernel_counters, Trace):
        kernel_counters = loaded(kernel_counters, max_bytes=max_bytes)
    return stitched(trace, kernel_counters)


class FileOpener(msgspec.Struct, frozen=True):
    """Opens one file of a run. It can be pickled for another process, which then reports no progress."""

    side: SideFiles
    kernel_counters: Trace | str | None
    max_bytes: int | None
    progress: Callable[[str, int], None] | None

    def __call__(self, path: str) -> Trace:
        """The trace in a file."""
        return self._opened(path, cache=True)

    def once(self, path: str) -> Trace:
        """The trace in a file, which is not put into the cache."""
        return self._opened(path, cache=False)

    def depends(self, path: str) -> tuple[object, ...] | None:
        """All that a trace depends on besides its file; None if other traces or files elsewhere are joined to it."""
        if self.side != NO_SIDE_FILES or self.kernel_counters is not None:
            return None
        return (self.max_bytes, *((side, *(files.state_of(side) or ())) for side in readers.side_files(path)))

    def _opened(self, path: str, *, cache: bool) -> Trace:
        measured = self.kernel_counters
        return loaded(
            path,
            side=self.side,
            kernel_counters=_read_once(measured, self.max_bytes) if isinstance(measured, str) else measured,
            max_bytes=self.max_bytes,
            progress=partial(self.progress, path) if self.progress else None,
            cache=cache,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return FileOpener, (self.side, self.kernel_counters, self.max_bytes, None)


def with_side_files(
    opener: Callable[[str], Trace], *, capture: str | None, requests: str | None
) -> Callable[[str], Trace]:
    """The opener of a run's files, with another capture and other requests; one that opens no files stays as it is."""
    if not isinstance(opener, FileOpener):
        return opener
    return replace(opener, side=replace(opener.side, capture=capture, requests=requests))


def named_as(names: Sequence[str], paths: Sequence[str], opener: FileOpener) -> tuple[str, ...]:
    """The words of a command line that open these files in the same way: `names` are those that the user gave."""
    if len(names) > _MOST_NAMED:
        folder = Path(names[0]).parent
        names = [str(folder)] if folder.is_dir() and readers.expand([str(folder)]) == list(paths) else names
    of_side = {f"--{name}": getattr(opener.side, name) for name in SideFiles.__struct_fields__}
    options = {**of_side, "--with": opener.kernel_counters, "--max-bytes": opener.max_bytes}
    given = [(flag, str(value)) for flag, value in options.items() if value and not isinstance(value, Trace)]
    return (*names, *(word for pair in given for word in pair))


@lru_cache(maxsize=1)
def _read_once(path: str, max_bytes: int | None) -> Trace:
    """The kernel counters that all ranks of a run are joined to."""
    return loaded(path, max_bytes=max_bytes)
