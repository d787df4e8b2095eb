"""When a profile begins and ends, in all frameworks: at steps A and B, or at two times.

A profiler cannot be started or stopped anywhere. It is safe where steps begin, and at other safe points that the hooks
of a framework report.
"""

from __future__ import annotations

import _thread
import gzip
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Trace files are packed while the job waits: quickly.
_LEVEL = 1
#: How long a time window waits for a step to begin or end: in longest steps, at least; and how old a recent step is.
_GAPS, _PATIENCE_NS, _LATELY_NS = 3, 250_000_000, 30_000_000_000

#: A profile for a dump ends early, but has so many steps, once it has taken so many bytes of memory. PyTorch takes six
#: times as much when it stops, and holds up the job for some 20 µs for each of its events: six seconds
#: in all, or longer if two steps have more.
_LEAST_STEPS, _MOST_BYTES = 2, 128 << 20

_WAITING, _PREPARED, _RUNNING, _OVER = range(4)


class Settings(NamedTuple):
    """What to profile: steps from `first` up to `last`, or from `start_ns` to `end_ns` of the monotonic clock."""

    first: int = 0
    last: int = 0
    start_ns: int = 0
    end_ns: int = 0

    @property
    def is_window(self) -> bool:
        """Whether a window of time is profiled instead of steps."""
        return self.end_ns > 0

    @property
    def is_some(self) -> bool:
        """Whether anything is profiled."""
        return self.is_window or self.last > 0

    @classmethod
    def of(cls, steps: str, window: str) -> Settings | None:
        """From the environment: A:B each, `window` in ns; None for no profile."""
        if window:
            start, end = window.split(":")
            return cls(start_ns=int(start), end_ns=int(end))
        if steps:
            first, last = steps.split(":")
            return cls(first=int(first), last=int(last))
        return None


class Profile:
    """One profile of this process by one of the profilers.

    A profiler has the methods `prepare()`, `start()`, `mark(n)` (step n begins and the one before it ends; with None no
    other begins), `stop()`, `write()`, `obstacle()` (why no profile can be taken, None if one can) and `is_safe()`
    (whether it may start or stop here and now). `any_thread` says whether any thread may do that, `errors` are the
    exceptions that it may raise, and `folder` is where it writes.

    `ends` reports each step to the recorder, and passes on its requests for profiles of later steps, for its dumps.
    """

    def __init__(self, profiler: Any, log: Any, settings: Settings, ends: Any = None) -> None:
        self._profiler, self._log, self._settings = profiler, log, settings
        self._ends = ends
        #: The recorder's current request, and the next one.
        self._wish = self._next = None  # type: Any
        self.any_thread = bool(profiler.any_thread)
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()
        self._state = _WAITING if settings.is_some else _OVER
        self._thread = None  # type: Any
        self._here = _thread._local()  # type: Any
        self._is_marked = self._is_busy = self._is_left = False
        self._owed = None  # type: Any
        self._began = self._resident = 0
        #: Whether ranges of the job's own mark steps in the trace, as ours would; and whether we mark one right now.
        self.has_own_marks = self.is_marking = False
        self._last_ns = self._gap_ns = 0
        self.n_steps = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be profiled, and the recorder does not need steps."""
        return self._state == _OVER and self._ends is None

    @property
    def is_timed(self) -> bool:
        """Whether times are waited for."""
        return self._state != _OVER and self._settings.is_window

    @property
    def is_near(self) -> bool:
        """Whether a profiler is prepared or runs, so that the source of steps must not change."""
        return self._state in (_PREPARED, _RUNNING)

    @property
    def runs_here(self) -> bool:
        """Whether a profiler is prepared for this thread, or runs on it, which slows its steps."""
        return self.is_near and self._is_here()

    def moves_here(self) -> None:
        """Steps begin on this thread from now on, and no more on the one before.

        A profile that has not begun is taken here. One that runs there cannot be stopped here, and will not be written.
        """
        if self._state == _PREPARED and not self.any_thread:
            self._thread = _thread.get_ident()
            self._here.end = _End(self._thread_ends)
        elif self._state == _RUNNING and not self._is_here():
            self._is_left = True

    def is_content(self) -> bool:
        """Whether begins of steps like this one are enough: there is no time window, and it is safe here."""
        return not self._settings.is_window and bool(self._profiler.is_safe())

    def step_begins(self, n: int) -> None:
        """Step n (from 0 on) begins on this thread, and the one before it has ended."""
        self.n_steps = n
        if self._ends is not None:
            self._tell(n)
        if self._state == _OVER:
            return
        if self._settings.is_window:
            self._saw()
        elif n < self._settings.first - 1:
            return
        self._at(n)
        self._answer()

    def safe_point(self, *, may_begin: bool = True) -> None:
        """A safe point on this thread; `may_begin`: a profile may begin here, as the thread is not short-lived."""
        if self._state == _OVER or (self._state == _WAITING and not may_begin):
            return
        if self._owed is not None:
            self._at(self._owed)
        elif self._settings.is_window:
            if not self.n_steps:
                self._saw()
            self._at(None)

    def _tell(self, n: int) -> None:
        """Report the step that has ended to the recorder, and take its next request."""
        if self.is_near:
            self._ends.skip()
        self._next = self._ends.ended(n) or self._next
        if self._next is None or self._state != _OVER:
            return
        wish, self._wish, self._next = self._next, self._next, None
        first = max(wish.first, n + 1)
        self._settings = Settings(first=first, last=first + wish.n_steps)
        self._profiler.folder = os.path.join(self._log.folder, wish.name)
        self._is_marked, self._owed, self._state = False, None, _WAITING

    def _answer(self) -> None:
        """Report to the recorder that the profile that it waits for is written, or will not be."""
        if self._wish is not None and self._state == _OVER:
            wish, self._wish = self._wish, None
            self._ends.tell(profiled=wish.name)

    def waits(self) -> bool:
        """Whether a time window needs a safe point now, and no step is expected soon."""
        now = time.monotonic_ns()
        settings = self._settings
        due = settings.end_ns if self._state == _RUNNING else settings.start_ns
        if self._state == _OVER or now < due:
            return False
        is_lively = self._last_ns and now - self._last_ns < _LATELY_NS
        return now > due + (max(_PATIENCE_NS, _GAPS * self._gap_ns) if is_lively else 0)

    def ask(self) -> None:
        """Begin or end a time window now, without a step."""
        if self._state != _OVER and self.waits():
            self._at(None, is_last_chance=True)

    def make_way(self, why: str) -> None:
        """End our profile, because the job wants to use the profiler."""
        if self._state == _OVER or self._is_busy:
            return
        if self._state == _WAITING:
            self._state = _OVER
            self._log.issue("profile_left_out", why + ", so no profile was recorded", "info")
        else:
            self._log.issue("profile_cut", "%s, so the recorded profile ends at step %d" % (why, self.n_steps))
            self._finish()
        self._answer()

    def at_exit(self) -> None:
        """The process ends: write what there is, and report the number of steps."""
        if os.getpid() != self._pid:
            return
        self._pid = 0  # only once
        if self._state == _RUNNING and not self._is_here():
            # A profiler that still runs would crash the process now.
            self._state = _OVER
            self._try(self._profiler.stop, "the profiler did not stop")
            self._log.issue(
                "profile_failed", "the profiled thread reached no point at which the profiler could be stopped"
            )
        if self._state == _RUNNING and self._has_whole() and not self._is_left:
            if self._settings.is_window:
                if time.monotonic_ns() < self._settings.end_ns:
                    self._log.issue("profile_short", "the job ended before the window did", "info")
            else:
                text = "the job ended at step %d, before step %d" % (self.n_steps, self._settings.last)
                self._log.issue("profile_short", text, "info")
        if self._state in (_PREPARED, _RUNNING):
            self._finish()
        self._state = _OVER
        self._answer()
        self._log.add(steps=self.n_steps)

    def _thread_ends(self) -> None:
        """The thread that is profiled ends, after which the profiler could not be stopped."""
        if self._state == _RUNNING and self._is_here() and os.getpid() == self._pid:
            self._log.issue("profile_short", "the thread that was profiled ended before its profile did", "info")
            self._finish()
            self._answer()

    def in_child(self) -> None:
        """In a forked child: a running profile is its parent's; one that has not begun is its own."""
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()
        self._is_busy = False
        self._next = None
        if self._state != _WAITING or self._wish is not None:
            self._state, self._wish = _OVER, None

    def _at(self, n: int | None, *, is_last_chance: bool = False) -> None:
        # If another thread, or an interrupted call of this one, holds the lock, go on: the step is remembered.
        if not self._lock.acquire(False):
            return
        try:
            if not self._is_here() or not self._profiler.is_safe():
                self._owed = n if n is not None else self._owed
                return
            self._owed = None
            self._is_busy = True
            if self._settings.is_window:
                self._in_window(n, is_last_chance=is_last_chance)
            elif n is not None:
                self._in_steps(n)
        finally:
            self._is_busy = False
            self._lock.release()

    def _in_steps(self, n: int) -> None:
        settings = self._settings
        if self._state == _WAITING:
            # A step before the first wanted one is for the profiler to warm up, which takes seconds with CUDA.
            self._prepare()
        if self._state == _OVER or n < settings.first:
            return
        if n >= settings.last or self._is_large(n):
            self._finish()
            return
        if self._state == _PREPARED:
            self._start(n)
        self._mark(n)

    def _in_window(self, n: int | None, *, is_last_chance: bool) -> None:
        now = time.monotonic_ns()
        settings = self._settings
        if self._state == _WAITING and settings.start_ns <= now < settings.end_ns:
            self._prepare()
            if self._state == _PREPARED:
                self._start(self.n_steps)
        elif self._state == _WAITING and now >= settings.end_ns:
            self._state = _OVER
        elif (
            self._state == _RUNNING
            and now >= settings.end_ns
            # Wait for the end of the step, so as not to cut it in two.
            and (n is not None or not self._is_marked or is_last_chance)
        ):
            self._finish()
        if self._state == _RUNNING and n is not None:
            self._mark(n)

    def _prepare(self) -> None:
        why = self._profiler.obstacle()
        if why is not None:
            self._state = _OVER
            if why:
                self._log.issue("profile_left_out", why + ", so no profile was recorded", "info")
            return
        if self._ends is not None:
            self._ends.skip()
        self._thread = _thread.get_ident()
        if not self.any_thread:
            self._here.end = _End(self._thread_ends)
        self._try(self._profiler.prepare, "the profiler did not start")
        if self._state == _WAITING:
            self._state = _PREPARED

    def _start(self, n: int) -> None:
        self._try(self._profiler.start, "the profiler did not start")
        if self._state == _PREPARED:
            self._state = _RUNNING
            self._began, self._resident = n, resident_bytes()

    def _is_large(self, n: int) -> bool:
        """Whether this is a profile for a dump that would hold up the job if it grew further."""
        if self._wish is None or self._state != _RUNNING or n < self._began + _LEAST_STEPS:
            return False
        if resident_bytes() - self._resident <= _MOST_BYTES:
            return False
        text = "its events are many: it ended at step %d, before step %d" % (n, self._settings.last)
        self._log.issue("profile_short", text, "info")
        return True

    def _mark(self, n: int) -> None:
        if self._state == _RUNNING:
            self._is_marked = True
            if not self.has_own_marks:
                self._set_mark(n)

    def _set_mark(self, n: int | None) -> None:
        self.is_marking = True
        try:
            self._profiler.mark(n)
        finally:
            self.is_marking = False

    def _has_whole(self) -> bool:
        return self._settings.is_window or self.n_steps > self._began

    def _finish(self) -> None:
        """Stop the profiler and write what it has, if a whole step is in it."""
        was, self._state = self._state, _OVER
        if was != _RUNNING:
            return
        if self._is_marked and not self.has_own_marks:
            self._set_mark(None)
        if self._ends is not None:
            self._ends.skip()
        if not self._try(self._profiler.stop, "the profiler did not stop") or not self._has_whole():
            return
        if self._is_left:
            text = "the thread that was profiled calls the model no more, others do, so no profile was recorded"
            self._log.issue("profile_left_out", text, "info")
            return
        is_written = self._try(self._profiler.write, "the profile could not be written", "error")
        if is_written and self._wish is None and self._ends is not None:  # the profile that was requested at the start
            self._ends.tell(profiled="")

    def _try(self, call: Any, failed: str, severity: str = "warning") -> bool:
        try:
            call()
        except self._profiler.errors as error:
            self._state = _OVER
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self._log.issue("profile_failed", "%s: %s" % (failed, reason), severity)
            return False
        return True

    def _is_here(self) -> bool:
        """Whether this is the thread on which the profiler runs, or any thread will do."""
        return self.any_thread or self._state == _WAITING or self._thread == _thread.get_ident()

    def _saw(self) -> None:
        now = time.monotonic_ns()
        if self._last_ns:
            self._gap_ns = max(min(now - self._last_ns, _LATELY_NS), self._gap_ns // 2)
        self._last_ns = now


class _End:
    """Calls a function when the thread ends that has this in its thread-local data."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


def resident_bytes() -> int:
    """Memory that this process has; 0 if that is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def rank_of(environment: Any) -> int | None:
    """The process' rank in the job, from its launcher's variables; None for a single process, or if none is set."""
    names = (
        ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", ""),
        ("PMI_RANK", "PMI_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"), ("SLURM_PROCID", "SLURM_NTASKS"),
    )  # fmt: skip
    for name, size in names:
        rank = environment.get(name, "")
        # RANK is set by hand too, without a size; the others are set by launchers of a single process too.
        if rank.isdigit() and (name in ("RANK", "PMIX_RANK") or environment.get(size, "1").strip() not in ("", "1")):
            return int(rank)
    return None


def target(folder: str, rank: int | None, ending: str) -> str:
    """Where this process' profile goes: rankN + ending, pidN where there is no rank; the pid too if that is taken."""
    pid = os.getpid()
    name = "pid%d" % pid if rank is None else "rank%d" % rank
    path = os.path.join(folder, name + ending)
    return os.path.join(folder, "%s.pid%d%s" % (name, pid, ending)) if os.path.exists(path) else path


def part(folder: str, what: str) -> str:
    """A file for what is not finished: the recorder removes those that are left."""
    return os.path.join(folder, ".profile-%d.%s.part" % (os.getpid(), what))


def pack(chunks: Iterable[bytes], folder: str, path: str) -> None:
    """The chunks as a gzip file, which appears whole or not at all. Raises OSError."""
    packed = part(folder, "gz")
    try:
        with gzip.open(packed, "wb", _LEVEL) as out:
            for chunk in chunks:
                out.write(chunk)
        os.rename(packed, path)
    finally:
        remove(packed)


def pieces(path: str) -> Iterable[bytes]:
    """The file in pieces of a megabyte. Raises OSError."""
    with open(path, "rb") as source:
        while True:
            piece = source.read(1 << 20)
            if not piece:
                return
            yield piece


def remove(path: str) -> None:
    """Remove a file or folder if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.exists(path):
        os.remove(path)
