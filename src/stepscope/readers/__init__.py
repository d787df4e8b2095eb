"""Readers: one file per format, found by the first bytes of a file. Adding one is a file and a line here."""

# os.path says no where Path raises: names too long, folders that may not be searched.
# ruff: noqa: PTH110, PTH112, PTH118, PTH207
from __future__ import annotations

import glob
import itertools
import os
import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError, UnknownFormat
from stepscope.readers._record import Reader
from stepscope.readers._source import Source, head_of, members
from stepscope.readers.counters import NAMES, attach, beside
from stepscope.readers.recording import FORMAT, with_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.trace import Trace

__all__ = ["Reader", "Source", "expand", "open_trace", "reader_for", "readers"]

#: Modules that hold a READER, in order of preference among equally sure ones.
_MODULES = (
    "paddle", "kineto", "nsys", "rocprof", "proton", "sealed", "ncu_csv", "ncu_text", "ncu_rep", "kernel_table",
    "perf_data", "counters_data", "step_costs", "recording",
)  # fmt: skip
_ENDINGS = (
    ".json", ".pb", ".gz", ".zst", ".zip", ".xz", ".bz2", ".sqlite", ".db", ".rpd", ".csv", ".hatchet", ".nsys-rep",
    ".ncu-rep", ".qdrep", ".pftrace",
)  # fmt: skip
_MEMBER = "!"
_TWIN = re.compile(r"(?P<name>.*)\.(?P<kind>pb|json)(?:\.(?:gz|zst|xz|bz2))?", re.IGNORECASE | re.DOTALL)


@cache
def readers() -> tuple[Reader, ...]:
    """All readers: our own, then those that other packages offer under the entry-point group stepscope.readers."""
    own = [import_module(f"stepscope.readers.{module}").READER for module in _MODULES]
    return (*own, *(point.load() for point in entry_points(group="stepscope.readers")))


def reader_for(path: str, head: bytes) -> Reader:
    """The reader surest of the file. Raises UnknownFormat if none is."""
    best = max(readers(), key=lambda reader: reader.sniff(path, head))
    if best.sniff(path, head) <= 0:
        if not head:
            raise UnknownFormat(f"{path} is empty", "record the trace again, or copy it again")
        what = f"begins with {head[:12]!r}, which no reader knows"
        raise UnknownFormat(f"{path} {what}", "see `stepscope formats` for what can be read")
    return best


def open_trace(
    path: str,
    *,
    counters: str | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """One file (or `archive.zip!member`) as a Trace, with the counters recorded beside it.

    `counters` names the side file of counters; without it one that lies beside the trace is taken. `max_bytes` bounds
    what the trace may unpack to; `progress` is told the packed bytes read so far.
    Raises StepscopeError (unreadable, too big), UnknownFormat, CorruptInput.
    """
    file, member = _file_and_member(path)
    head = head_of(file, member)
    source = Source(file, member, max_bytes, progress)
    trace = reader_for(file, head).read(source)
    if trace.meta.format == FORMAT and counters is None:  # it is the side file itself
        return trace
    side = counters or beside(file)
    return with_recording(trace if side is None else attach(trace, side, required=counters is not None), file)


def expand(paths: Iterable[str]) -> list[str]:
    """Files to read for what the user named: files, folders, patterns, zips (each member).

    A folder gives the traces in it, or if it holds none, those below it, or else counters recorded by themselves. Files
    in a folder that are no traces are passed over, and x.json where there is x.pb.
    Raises StepscopeError if something named does not exist or holds no trace.
    """
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += _folder(path)
        elif not os.path.exists(path) and glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))
            if not matches:
                raise StepscopeError(f"nothing matches {path}", "check the pattern")
            found += expand(matches)
        else:
            found += _members(path)
    return list(dict.fromkeys(found))


def _file_and_member(path: str) -> tuple[str, str | None]:
    """`archive.zip!member` taken apart at the first mark that ends the name of a file; else the path as it is."""
    marks = [i for i, sign in enumerate(path) if sign == _MEMBER]
    cut = None if os.path.exists(path) else next((i for i in marks if os.path.exists(path[:i])), None)
    return (path, None) if cut is None else (path[:cut], path[cut + 1 :] or None)


def _members(path: str) -> list[str]:
    inside = members(path) if _file_and_member(path)[1] is None else []
    return [f"{path}{_MEMBER}{member}" for member in inside] if len(inside) > 1 else [path]


def _folder(path: str) -> list[str]:
    try:
        os.scandir(path).close()
    except OSError as error:
        raise StepscopeError(f"cannot read {path}: {error.strerror or error}", "check its owner and mode") from None
    for depth in (1, None):
        here = itertools.islice(os.walk(path), depth)
        files = sorted(os.path.join(root, f) for root, _, names in here for f in names if f.lower().endswith(_ENDINGS))
        kept = _without_twins([file for file in files if _is_trace(file)])
        traces = [member for file in kept for member in _members(file)]
        if traces:
            return traces
    # Counters that were recorded without a profile.
    alone = [root for root, _, names in os.walk(path) if any(name in names for name in NAMES)]
    if alone:
        return [side for root in sorted(alone) if (side := beside(os.path.join(root, NAMES[0]))) is not None]
    raise StepscopeError(f"no trace in {path}", f"files considered are those ending in {', '.join(_ENDINGS)}")


def _without_twins(files: list[str]) -> list[str]:
    """Paddle writes one recording as x.pb or as x.json; of a folder with both the exact one, protobuf, is read."""
    kinds = [(match["name"], match["kind"]) if (match := _TWIN.fullmatch(file)) else (file, None) for file in files]
    exact = {name for name, kind in kinds if kind == "pb"}
    return [file for file, (name, kind) in zip(files, kinds, strict=True) if kind != "json" or name not in exact]


def _is_trace(file: str) -> bool:
    try:
        head = head_of(file)
    except StepscopeError:
        return True  # let reading it report what is wrong
    # An empty file is a trace that was lost: reading it says so.
    return not head or any(reader.sniff(file, head) >= 0.4 for reader in readers())
