"""What the server holds: its inputs, the traces read from them, and the answers worked out so far."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import polars as pl

from stepscope.api.loading import FileOpener
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.trace import Opener, Run, Trace
from stepscope.readers import NO_SIDE_FILES, SideFiles, expand, open_trace
from stepscope.web.timeline.memory_levels import MemoryScene, memory_scene_of
from stepscope.web.timeline.scene import Scene, scene_of, without
from stepscope.web.workers import Task, Workers, halt_if_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

T = TypeVar("T")
_PICKLE = regex(r"\.(pickle|pkl)(\.(gz|zst|xz|bz2))?$")
_RESCAN_S = 2.0
_MOST_PENDING = 64
_MOST_ANSWERS, _MOST_ANSWER_BYTES = 64, 1 << 30
_MOST_SHARED = 4
#: A failure is returned for this time; after that the request is tried again.
_FAILURE_LASTS_S = 30.0


class Busy(StepscopeError):
    """More requests are waiting than the server accepts."""

    def __init__(self) -> None:
        super().__init__("the server is busy with other requests", "try again in a moment")


class Input(msgspec.Struct, frozen=True):
    """A file that may be read: its number in URLs, its path, a short name unique among the inputs."""

    index: int
    path: str
    label: str


class _Opener(msgspec.Struct, frozen=True):
    """Opens the files of a run. Traces that the session holds are not opened again."""

    session: Session

    def __call__(self, path: str) -> Trace:
        return self.session.open_path(path)

    def once(self, path: str) -> Trace:
        return self.session.open_path(path)

    def depends(self, path: str) -> tuple[object, ...] | None:
        return self.session.depends(path)

    def __reduce__(self) -> tuple[object, ...]:
        """Another process opens the files itself."""
        return copy.copy, (self.session.opener(),)


class Session:
    """Inputs by number, read on demand and held while memory allows; answers by key.

    Numbers never change: a file that appears later in a watched folder gets the next one. A file that changed since it
    was read is read again, and what was worked out of it is forgotten. All methods may be called from any thread.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        side: SideFiles = NO_SIDE_FILES,
        max_bytes: int | None = None,
        keep_bytes: int = 8 << 30,
        run: Run | None = None,
    ) -> None:
        """Look the names up; with `run` its files are the inputs, which it opens itself. Raises StepscopeError."""
        self._names, self._side, self._max_bytes, self._keep_bytes = tuple(names), side, max_bytes, keep_bytes
        self._run = run
        self._lock = threading.RLock()
        self._paths = list(run.paths) if run is not None else list(expand(names))
        self._scanned_at = time.monotonic()
        self._traces: OrderedDict[str, tuple[object, Trace, int]] = OrderedDict()
        self._scenes: dict[str, tuple[object, Scene]] = {}
        self._filtered: dict[str, tuple[Scene, frozenset[str], Scene]] = {}
        self._memory_scenes: dict[str, MemoryScene] = {}
        self._ranks: dict[str, int | None] = {}
        self._reading: dict[str, threading.Lock] = {}
        self._read_bytes: dict[str, int] = {}
        self._elsewhere: dict[str, float] = {}
        self._sharing: dict[Hashable, threading.Lock] = {}
        self._shared: OrderedDict[Hashable, Any] = OrderedDict()
        self._answers: OrderedDict[Hashable, Task] = OrderedDict()
        self._workers = Workers()

    @property
    def names(self) -> tuple[str, ...]:
        """The paths that the user named."""
        return self._names

    def inputs(self) -> list[Input]:
        """All inputs, including files that have appeared since. Folders are read every two seconds at most."""
        with self._lock:
            if self._run is None and time.monotonic() - self._scanned_at > _RESCAN_S:
                self._rescan()
            paths = list(self._paths)
        labels = files.labels_of(paths)
        return [Input(i, path, label) for i, (path, label) in enumerate(zip(paths, labels, strict=True))]

    def _rescan(self) -> None:
        self._scanned_at = time.monotonic()
        try:
            paths = expand(self._names)
        except StepscopeError:  # a file was moved away: its trace can still be shown if it has been read
            return
        known = set(self._paths)
        self._paths += [path for path in paths if path not in known]

    def path(self, index: int) -> str:
        """Path of an input. Raises StepscopeError if there is no such number."""
        with self._lock:
            if not 0 <= index < len(self._paths):
                message = f"no trace has the number {index}"
                raise StepscopeError(message, f"traces are numbered 0 to {len(self._paths) - 1}")
            return self._paths[index]

    def run(self, indices: Sequence[int]) -> Run:
        """These inputs as one job, whose traces this session reads and holds."""
        return Run(tuple(self.path(i) for i in indices), _Opener(self))

    def depends(self, path: str) -> tuple[object, ...] | None:
        """What the trace depends on in addition to its file, as `Opener` says."""
        given = self.opener()
        return given.depends(path) if isinstance(given, Opener) else None

    def opener(self) -> Callable[[str], Trace]:
        """What opens the files without the session."""
        return FileOpener(self._side, None, self._max_bytes, None) if self._run is None else self._run.open_trace

    def trace(self, index: int) -> Trace:
        """The trace, read now if it is not held. Raises StepscopeError."""
        return self.open_path(self.path(index))

    def open_path(self, path: str) -> Trace:
        """The trace in one of the files. Raises StepscopeError."""
        halt_if_stopped()
        with self._lock:
            one_at_a_time = self._reading.setdefault(path, threading.Lock())
        with one_at_a_time:
            stamp = stamp_of(path)
            with self._lock:
                entry = self._traces.get(path)
                if entry is not None and entry[0] == stamp:
                    self._traces.move_to_end(path)
                    return entry[1]
                self._read_bytes[path] = 0
            try:
                trace = self._read(path)
            finally:
                with self._lock:
                    del self._read_bytes[path]
            self._keep(path, stamp, trace)
            return trace

    def _read(self, path: str) -> Trace:
        if self._run is not None:
            return self._run.open_trace(path)
        return open_trace(path, side=self._side, max_bytes=self._max_bytes, progress=self._tell(path))

    def _tell(self, path: str) -> Callable[[int], None]:
        def tell(n_bytes: int) -> None:
            with self._lock:
                self._read_bytes[path] = n_bytes

        return tell

    def _keep(self, path: str, stamp: object, trace: Trace) -> None:
        size = sum(int(frame.estimated_size()) for frame in trace.tables.values())
        with self._lock:
            self._traces[path] = (stamp, trace, size)
            self._traces.move_to_end(path)
            self._ranks[path] = trace.rank
            while len(self._traces) > 1 and sum(entry[2] for entry in self._traces.values()) > self._keep_bytes:
                gone, _ = self._traces.popitem(last=False)
                self._scenes.pop(gone, None)
                self._filtered.pop(gone, None)
                self._memory_scenes.pop(gone, None)

    def scene(self, index: int, hidden: frozenset[str] = frozenset()) -> Scene:
        """The trace laid out for the timeline, held as long as the trace is. Raises StepscopeError.

        `hidden` are kinds of the legend that are left out; one such scene is held for each trace.
        """
        path = self.path(index)
        if hidden:
            whole = self.scene(index)
            with self._lock:
                held = self._filtered.get(path)
            if held is None or held[0] is not whole or held[1] != hidden:
                held = (whole, hidden, without(whole, hidden))
                with self._lock:
                    if path in self._traces:
                        self._filtered[path] = held
            return held[2]
        trace = self.open_path(path)
        stamp = stamp_of(path)
        with self._lock:
            entry = self._scenes.get(path)
            if entry is not None and entry[0] == stamp and entry[1].trace is trace:
                return entry[1]
        made = scene_of(trace)
        with self._lock:
            if path in self._traces:
                self._scenes[path] = (stamp, made)
        return made

    def memory_scene(self, index: int) -> MemoryScene:
        """The memory snapshot laid out for drawing, held as long as it is. Raises StepscopeError."""
        path = self.path(index)
        trace = self.open_path(path)
        with self._lock:
            made = self._memory_scenes.get(path)
        if made is None or made.trace is not trace:
            made = memory_scene_of(trace)
            with self._lock:
                if path in self._traces:
                    self._memory_scenes[path] = made
        return made

    def rank(self, index: int) -> int | None:
        """The rank of an input, without reading it again. None if it has none or cannot be read."""
        path = self.path(index)
        with self._lock:
            if path in self._ranks:
                return self._ranks[path]
        try:
            return self.open_path(path).rank
        except StepscopeError:
            with self._lock:
                self._ranks[path] = None
            return None

    def know_ranks(self, ranks: Mapping[int, int | None]) -> None:
        """Take over the rank of each input from the cache, without reading the inputs."""
        with self._lock:
            for index, rank in ranks.items():
                self._ranks.setdefault(self._paths[index], rank)

    def of_rank(self, indices: Sequence[int]) -> dict[int, int]:
        """Which of these inputs holds each rank, as far as they have been read; empty where ranks are not unique."""
        with self._lock:
            pairs = [(self._ranks.get(self._paths[i]), i) for i in indices]
        inputs = {rank: i for rank, i in pairs if rank is not None}
        return inputs if len(inputs) == len(pairs) else {}

    def stamps(self, indices: Sequence[int]) -> tuple[object, ...]:
        """Values that change when one of these inputs changes. They are part of the key of every answer about them."""
        return tuple(stamp_of(self.path(i)) for i in indices)

    def progress(self) -> list[tuple[str, float]]:
        """Files that are being read, each with its progress (0 to 1)."""
        with self._lock:
            reading, elsewhere = dict(self._read_bytes), list(self._elsewhere.items())
        sizes = {path: max(_size(path), 1) for path in reading}
        own = [(Path(path).name, min(done / sizes[path], 1.0)) for path, done in reading.items()]
        return [*elsewhere, *own]

    @contextmanager
    def reading(self, n_files: int) -> Iterator[Callable[[int, int], None]]:
        """While other processes read files: a function to be called with how many are done, and with how many all are.

        It raises Stopped if nobody waits for the answer any more.
        """
        name = f"{n_files} files"

        def done(n_done: int, n_all: int) -> None:
            halt_if_stopped()
            with self._lock:
                self._elsewhere[name] = n_done / max(n_all, 1)

        try:
            yield done
        finally:
            with self._lock:
                self._elsewhere.pop(name, None)

    def shared(self, key: Hashable, work: Callable[[], T]) -> T:
        """What the work returns. Threads that ask at the same time wait for the first of them, and get the same."""
        with self._lock:
            one_at_a_time = self._sharing.setdefault(key, threading.Lock())
        with one_at_a_time:
            with self._lock:
                if key in self._shared:
                    return cast("T", self._shared[key])
            made = work()
            with self._lock:
                self._shared[key] = made
                while len(self._shared) > _MOST_SHARED:
                    gone, _ = self._shared.popitem(last=False)
                    self._sharing.pop(gone, None)
            return made

    def heights(self, indices: Sequence[int]) -> dict[str, int] | None:
        """Rows of each table in these inputs together; None unless all of them are held."""
        with self._lock:
            entries = [self._traces.get(self._paths[i]) for i in indices]
        rows: dict[str, int] = {}
        for entry in entries:
            if entry is None:
                return None
            for name, n_rows in entry[1].heights().items():
                rows[name] = rows.get(name, 0) + n_rows
        return rows

    def ask(self, key: Hashable, work: Callable[[], Any], *, wanted_s: float = 0.0) -> Future[Any]:
        """The task that answers a question, running or done. Whoever waits for it asks again regularly.

        What nobody has asked for in a while is dropped, but for `wanted_s`. Raises Busy.
        """
        with self._lock:
            task = self._answers.get(key)
            if task is None or _is_over(task):
                if self._workers.pending() >= _MOST_PENDING:
                    raise Busy
                task = self._answers[key] = self._workers.submit(work, wanted_s=wanted_s)
            self._workers.want(task)
            self._answers.move_to_end(key)
            self._forget()
        self._workers.tend()
        return task.answer

    def _forget(self) -> None:
        """Drop the answers asked for longest ago, once there are too many or they take too much memory."""
        done = [(key, task) for key, task in reversed(self._answers.items()) if task.answer.done()]
        held, n_answers = 0, len(self._answers) - len(done)
        for i, (key, task) in enumerate(done):
            held, n_answers = held + _answer_bytes(task), n_answers + 1
            if n_answers > _MOST_ANSWERS or (i and held > _MOST_ANSWER_BYTES):
                del self._answers[key]

    def close(self) -> None:
        """Accept no more requests."""
        self._workers.close()


def _is_over(task: Task) -> bool:
    """Whether the question has to be answered again."""
    if not task.answer.done():
        return False
    if task.answer.cancelled():
        return True
    return task.answer.exception() is not None and time.monotonic() - task.ended_at > _FAILURE_LASTS_S


def _answer_bytes(task: Task) -> int:
    """What the rows of an answer take; the rest of it is small."""
    if task.answer.cancelled() or task.answer.exception() is not None:
        return 0
    frame = getattr(task.answer.result(), "frame", None)
    return int(frame.estimated_size()) if isinstance(frame, pl.DataFrame) else 0


def snapshots_of(session: Session, inputs: Sequence[int]) -> list[int]:
    """Those of the inputs that are memory snapshots. What has another ending is not read, if there are several."""
    likely = [i for i in inputs if len(inputs) == 1 or _PICKLE.search(session.path(i))]
    return [i for i in likely if _is_snapshot(session, i)]


def _is_snapshot(session: Session, index: int) -> bool:
    try:
        return session.trace(index).is_memory_snapshot
    except StepscopeError:  # it cannot be read: the report says so
        return False


def companion_of(session: Session, index: int) -> int | None:
    """The snapshot of the trace with this number, or the trace of this snapshot: of the same rank, or the only one.

    Both must say when they began. None if there is no such input.
    """
    known = [one.index for one in session.inputs()]
    pickles = [i for i in known if _PICKLE.search(session.path(i))]
    rest = [i for i in known if i not in pickles]
    candidates = rest if index in pickles else pickles
    if not candidates or session.trace(index).meta.origin_unix_ns is None:
        return None
    if len(candidates) > 1:
        rank = session.rank(index)
        candidates = [i for i in candidates if rank is not None and session.rank(i) == rank]
    if len(candidates) != 1 or _is_snapshot(session, candidates[0]) == (index in pickles):
        return None
    try:
        return candidates[0] if session.trace(candidates[0]).meta.origin_unix_ns is not None else None
    except StepscopeError:  # it cannot be read: the report says so
        return None


def stamp_of(path: str) -> object:
    """What changes when the file does; None where there is no such file of its own (a member of a zip)."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
