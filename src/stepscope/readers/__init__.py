"""Opening files: finds the format of each by its first bytes, and the traces in the folders that the user names."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError, UnknownFormat
from stepscope.core.patterns import regex
from stepscope.core.registry import Registry
from stepscope.readers.captures import capture_files, with_captures
from stepscope.readers.common.impossible import without_impossible
from stepscope.readers.common.source import Source, head_of, members
from stepscope.readers.formats import FORMATS, Format, Reader
from stepscope.readers.recorded import COUNTER_FILES, RECORDING, SCHEDULING, STACK_FILES, side_file
from stepscope.readers.requests import FORMATS_OF_REQUESTS, RECORDED_METRICS, REQUEST_FILES, are_requests
from stepscope.store.column_files import forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.core.trace import Trace

__all__ = [
    "Reader",
    "SideFiles",
    "Source",
    "expand",
    "is_at_hand",
    "open_once",
    "open_trace",
    "reader_for",
    "readers",
    "side_files",
]

#: Readers of other packages.
PLUGINS = Registry("reader", Reader, "READER", "stepscope.readers", {})
#: Side files that `record` leaves in the folder of a trace, apart from counters.
_OF_RECORDER = (RECORDING, SCHEDULING, *STACK_FILES)
_PACKED = (".gz", ".zst", ".zip", ".xz", ".bz2")
_MEMBER = "!"
_DUMP = regex(r"(?:^|[/\\])(?:\.?dump-\d{4}-(?:slow-step|signal|request)(?:\.part)?|hang-\d{4})[/\\]")
_DIGITS = regex(r"\d+")


@cache
def _endings() -> tuple[str, ...]:
    """How the names of files end that are looked at in a folder."""
    return tuple(sorted({ending for reader in readers() for ending in reader.endings} | set(_PACKED)))


@cache
def readers() -> tuple[Format | Reader, ...]:
    """All readers: our own, then those that other packages offer under the entry-point group stepscope.readers."""
    return (*FORMATS, *PLUGINS.from_other_packages())


def reader_for(path: str, head: bytes) -> Format | Reader:
    """The reader that is surest of the file; of equally sure ones the first. Raises UnknownFormat if none is sure."""
    surest, score = None, 0.0
    for reader in readers():
        sure = reader.sniff(path, head, above=score) if isinstance(reader, Format) else reader.sniff(path, head)
        if sure > score:
            surest, score = reader, sure
    if surest is None:
        if not head:
            raise UnknownFormat(f"{path} is empty", "record the trace again, or copy it again")
        what = f"begins with {head[:12]!r}, which is no known format"
        raise UnknownFormat(f"{path} {what}", "see `stepscope formats` for what can be read")
    return surest


class SideFiles(msgspec.Struct, frozen=True):
    """Files that are read with a trace, if the user names them: those in its folder are known by their names.

    `counters` is a file of samples, `capture` a trace in which graphs were captured, or a folder of them, `requests` a
    file or folder of what requests to the engine took.
    """

    counters: str | None = None
    capture: str | None = None
    requests: str | None = None

    @staticmethod
    def of(
        counters: str | os.PathLike[str] | None,
        capture: str | os.PathLike[str] | None = None,
        requests: str | os.PathLike[str] | None = None,
    ) -> SideFiles:
        """The files at these paths."""
        named = (counters, capture, requests)
        return SideFiles(*(None if path is None else os.fspath(path) for path in named))


NO_SIDE_FILES = SideFiles()


def open_trace(
    path: str,
    *,
    side: SideFiles = NO_SIDE_FILES,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """One file (or `archive.zip!member`, or a folder with one trace), with its side files.

    A file that was opened before comes out of the cache of opened files, as long as it has not changed.
    `side` names the side files; without it those in the trace's folder are taken. `max_bytes` bounds what
    the trace may unpack to; `progress` is called with the packed bytes read so far.
    Raises StepscopeError (unreadable, too big), UnknownFormat, CorruptInput.
    """
    return _opened(path, side, max_bytes, progress, keep=True)


def open_once(
    path: str,
    *,
    side: SideFiles = NO_SIDE_FILES,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """As `open_trace`, where nobody will ask for the file again: it is not put into the cache."""
    return _opened(path, side, max_bytes, progress, keep=False)


def _opened(
    path: str, side: SideFiles, max_bytes: int | None, progress: Callable[[int], None] | None, *, keep: bool
) -> Trace:
    file, member = _one_file(path)
    trace = _trace(Source(file, member, max_bytes, progress), keep=keep)

    def opened(other: str) -> Trace:
        return _trace(Source(other, None, max_bytes), keep=keep)

    if side.capture is not None or capture_files(file) or "captured_launches" in trace.tables:
        trace = with_captures(trace, file, opened, side.capture)
    for requests in _requests_of(file, side) if trace.meta.format not in FORMATS_OF_REQUESTS else ():
        from stepscope.readers.requests.reader import with_requests

        is_named = side.requests is not None
        trace = with_requests(trace, requests, lambda path: opened(expand([path])[0]), required=is_named)
    if side.counters is None and side_file(file, (*COUNTER_FILES, *_OF_RECORDER)) is None:
        return trace
    from stepscope.readers.recorded import with_own_pid
    from stepscope.readers.recorded.counters import FORMAT, attach, with_recording
    from stepscope.readers.recorded.sched import with_sched
    from stepscope.readers.recorded.stack_samples import with_stacks
    from stepscope.readers.recorded.step_times import with_step_times

    whole = with_stacks(with_sched(with_own_pid(trace, file), file), file)
    if side.counters is not None or trace.meta.format != FORMAT:  # else it is the side file itself
        counters = side.counters or side_file(file, COUNTER_FILES)
        whole = whole if counters is None else attach(whole, counters, required=side.counters is not None)
        whole = with_recording(whole, file)
    whole = with_step_times(whole, file)
    return without_impossible(whole, before=trace)


def _requests_of(file: str, side: SideFiles) -> list[str]:
    """What the user named, or the file of requests and the recorded metrics in the folder of a trace."""
    if side.requests is not None:
        return [side.requests]
    present = (side_file(file, names) for names in (REQUEST_FILES, RECORDED_METRICS))
    return [path for path in present if path is not None]


def _one_file(path: str) -> tuple[str, str | None]:
    """The file that holds the trace, of a folder too if it holds no other, and its member. Raises StepscopeError."""
    file, member = _file_and_member(path)
    if not files.is_folder(file):
        return file, member
    inside = expand([file])
    if len(inside) > 1:
        hint = "name one of them, or read all: stepscope.load_run, or the command line"
        raise StepscopeError(f"{file} holds {len(inside):,} traces", hint)
    return (files.joined(file, store.META), None) if inside == [file] else _one_file(inside[0])


def is_at_hand(path: str, *, max_bytes: int | None = None) -> bool:
    """Whether a file is stored, cached, or too small to matter; also if opening it will say what is wrong with it."""
    try:
        file, member = _file_and_member(path)
        if files.is_folder(file):
            return True
        key = store.file_key(file, (member, max_bytes))
    except StepscopeError:
        return True
    return key is None or store.is_cached(key)


def side_files(path: str) -> list[str]:
    """Files in the folder of a trace that are read with it: counters, requests, what the recorder noted and sampled."""
    kinds = (COUNTER_FILES, REQUEST_FILES, RECORDED_METRICS)
    known = [file for names in kinds if (file := side_file(path, names)) is not None]
    folder = files.split(path)[0]
    of_recorder = [] if files.is_url(path) else [files.joined(folder, name) for name in _OF_RECORDER]
    written = list(filter(files.exists, of_recorder))
    if written:
        from stepscope.readers.recorded.step_times import step_time_files

        written += step_time_files(path)
    return [*known, *written, *capture_files(path)]


def _trace(source: Source, *, keep: bool) -> Trace:
    key = store.file_key(source.path, (source.member, source.max_bytes))
    cached = None if key is None else store.cached_trace(key, label=source.label)
    if cached is not None:
        if source.progress is not None:
            source.progress(files.size_of(source.path))
        return cached
    reader = reader_for(source.path, head_of(source.path, source.member))
    trace = without_impossible(reader.read(source))
    forget()
    if keep and key is not None and reader.cacheable:
        store.cache_trace(key, trace, source.n_bytes)
    return trace


def expand(paths: Iterable[str]) -> list[str]:
    """Files to read for what the user named: files, folders, patterns, zips (each member).

    A folder gives the traces in it, or if it holds none, those below it, or else requests to an engine or counters
    recorded by themselves. Files
    in a folder that are no traces are passed over, and copies of others in another format. Of files that are read
    together only the first is named.
    Raises StepscopeError if something named does not exist or holds no trace.
    """
    opened: list[str] = []
    for path in paths:
        if files.is_folder(path):
            opened += _folder(path)
        elif files.is_pattern(path) and not files.exists(path):
            matches = files.matching(path)
            if not matches:
                raise StepscopeError(f"nothing matches {path}", "check the pattern")
            opened += expand(matches)
        else:
            opened += _members(path)
    return _without_companions(list(dict.fromkeys(opened)))


def _without_companions(files: list[str]) -> list[str]:
    """Files without those that are read together with another one of them, as by a pattern."""
    if len(files) < 2:
        return files
    given = {Path(file) for file in files}
    of_formats = [reader.companion_files for reader in readers() if reader.companion_files is not None]
    firsts: list[str] = []
    companions: set[Path] = set()
    for file in files:
        if Path(file) in companions:
            continue
        families = [[Path(one) for one in of_format(file)] for of_format in of_formats]
        if not {family[0] for family in families} - {Path(file)} & given:
            firsts.append(file)
            companions.update(one for family in families for one in family[1:])
    return firsts


def _file_and_member(path: str) -> tuple[str, str | None]:
    """`archive.zip!member` taken apart at the first mark that ends the name of a file; else the path as it is."""
    marks = [i for i, sign in enumerate(path) if sign == _MEMBER]
    end = None if not marks or files.exists(path) else next((i for i in marks if files.exists(path[:i])), None)
    return (path, None) if end is None else (path[:end], path[end + 1 :] or None)


def _members(path: str) -> list[str]:
    inside = members(path) if _file_and_member(path)[1] is None else []
    return [f"{path}{_MEMBER}{member}" for member in inside] if len(inside) > 1 else [path]


def _folder(path: str) -> list[str]:
    if stored := store.traces_in(path):
        return stored
    if traces := _traces_of(files.files_in(path, deep=False)):
        return traces
    below = files.files_in(path, deep=True)
    # Dumps in a recording are recordings of their own, and meant only if there is nothing else.
    without_dumps = [file for file in below if not _DUMP.search(file.removeprefix(path))]
    for group in (without_dumps, below):
        if traces := _traces_of(group) or _requests_in(group) or _counters_of(group):
            return traces
    raise StepscopeError(f"no trace in {path}", f"files considered are those ending in {', '.join(_endings())}")


def _traces_of(group: list[str]) -> list[str]:
    """Those of the files that are traces, and the members of archives of them."""
    dumps = [file for file in group if files.rank_of_dump(file) is not None]
    candidates = [
        file for file in group if file.lower().endswith(_endings()) and files.split(file)[1] not in STACK_FILES
    ]
    known = {file for file in candidates if _is_trace(file)}
    # A file whose name differs only in a number belongs to the same group, even if it is damaged.
    names = {_shape(file) for file in known}
    traces = _without_copies(
        [file for file in candidates if file in known or (_shape(file) in names and not _is_superseded(file))]
    )
    return [*dumps, *(member for file in traces for member in _stored_at(file) or _members(file))]


def _counters_of(group: list[str]) -> list[str]:
    """Counters that were recorded without a profile: one file of each folder."""
    named = [file for file in group if files.split(file)[1] in COUNTER_FILES]
    return list(dict.fromkeys(side for file in named if (side := side_file(file, COUNTER_FILES)) is not None))


def _requests_in(group: list[str]) -> list[str]:
    """Requests and metrics of engines, without those that are read with the counters in their folder."""
    of_engines = [file for file in group if are_requests(file)]
    folders = {files.split(file)[0] for file in _counters_of(group)} if of_engines else set()
    side_names = (*RECORDED_METRICS, *REQUEST_FILES)
    return [
        file for file in of_engines if files.split(file)[0] not in folders or files.split(file)[1] not in side_names
    ]


def _stored_at(file: str) -> list[str]:
    """The folder of a stored trace, if the file is its meta.json."""
    folder, name = files.split(file)
    return store.traces_in(folder) if name == store.META else []


def _without_copies(paths: list[str]) -> list[str]:
    """Without files that hold no more than another one, of the same recording in a format that is exact."""
    for original, copy in (one.copies for one in FORMATS if one.copies is not None):
        names = {original.sub("", path) for path in paths if original.search(path)}
        paths = [path for path in paths if copy.search(path) is None or copy.sub("", path) not in names]
    return paths


def _shape(file: str) -> str:
    """The file's name with its numbers made one."""
    return _DIGITS.sub("0", files.split(file)[1])


def _is_superseded(file: str) -> bool:
    return any(one.is_superseded is not None and one.is_superseded(file) for one in FORMATS)


def _is_trace(file: str) -> bool:
    try:
        head = head_of(file)
    except StepscopeError:
        return True  # let reading it report what is wrong
    # An empty file is a trace that was lost: reading it says so.
    return not head or any(reader.sniff(file, head) >= 0.4 for reader in readers())
