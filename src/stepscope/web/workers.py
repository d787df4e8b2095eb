"""Threads that work on requests, so that a slow one does not block the rest.

Python cannot end a thread from outside. So a task whose answer nobody wants is dropped where that is possible: before
it begins, when it opens its next file, or in the middle of an SQL query. A slow task stops counting towards the number
of tasks that run at once. If a task takes far too long, those who wait get an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable


#: Worked on at once; what has taken `_LONG_S` is not counted, as long as there are threads.
_AT_ONCE, _MOST_THREADS = 2, 6
_LONG_S = 15.0
#: A task is dropped if nobody has asked or waited for its answer for this time.
_UNWANTED_S = 10.0
_GIVEN_UP_S = 600.0
_own = threading.local()


class Stopped(Exception):
    """Nobody waits for the answer any more. It is not an error of the input, so it is not a StepscopeError."""


@dataclass(slots=True, eq=False)
class Task:
    """A question being worked out. `answer` is what those who asked look at; times are those of a steady clock."""

    work: Callable[[], Any]
    wanted_at: float
    answer: Future[Any] = field(default_factory=Future)
    began_at: float = 0.0
    ended_at: float = 0.0
    stopped: bool = False
    stops: list[Callable[[], None]] = field(default_factory=list)

    def stop(self) -> None:
        """Ask the task to end. It does so at its next check."""
        self.stopped = True
        for stop in self.stops:
            stop()


class Workers:
    """A queue of tasks and the threads that work on them. All methods may be called from any thread.

    Nothing here runs by itself: whoever waits for an answer calls `tend` regularly. If nobody waits, nothing needs to
    be tended.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="stepscope")
        self._queued: deque[Task] = deque()
        self._running: list[Task] = []
        self._closed = False

    def submit(self, work: Callable[[], Any], *, wanted_s: float = 0.0) -> Task:
        """A task for this work; it counts as wanted for so long from now, whether or not anyone asks."""
        task = Task(work, time.monotonic() + wanted_s)
        with self._lock:
            self._queued.append(task)
        self.tend()
        return task

    def want(self, task: Task) -> None:
        """Record that somebody waits for the task."""
        task.wanted_at = max(task.wanted_at, time.monotonic())

    def pending(self) -> int:
        """Tasks that are queued or running."""
        with self._lock:
            return len(self._queued) + len(self._running)

    def tend(self) -> None:
        """Drop tasks that nobody waits for, give up tasks that take too long, and begin the next ones."""
        now = time.monotonic()
        with self._lock:
            dropped = [task for task in self._queued if now - task.wanted_at > _UNWANTED_S]
            for task in dropped:
                self._queued.remove(task)
            left = [task for task in self._running if now - task.wanted_at > _UNWANTED_S and not task.stopped]
            late = [task for task in self._running if now - task.began_at > _GIVEN_UP_S and not task.answer.done()]
            self._begin(now)
        for task in dropped:
            task.answer.cancel()
        for task in (*left, *late):
            task.stop()
        for task in left:
            task.answer.cancel()
        for task in late:
            _settle(task, error=_given_up())

    def _begin(self, now: float) -> None:
        """Give the next tasks to threads."""
        while self._queued and not self._closed and len(self._running) < _MOST_THREADS:
            if sum(now - task.began_at <= _LONG_S for task in self._running) >= _AT_ONCE:
                return
            task = self._queued.popleft()
            task.began_at = now
            self._running.append(task)
            self._threads.submit(_run, task).add_done_callback(partial(self._finished, task))

    def _finished(self, task: Task, done: Future[Any]) -> None:
        with self._lock:
            self._running.remove(task)
        error = Stopped() if done.cancelled() else done.exception()
        if isinstance(error, Stopped):
            task.answer.cancel()
        else:
            _settle(task, error=error, result=None if error is not None else done.result())
        self.tend()

    def close(self) -> None:
        """Begin no more tasks, and stop those that can be stopped."""
        with self._lock:
            self._closed = True
            dropped, running = list(self._queued), list(self._running)
            self._queued.clear()
        for task in dropped:
            task.answer.cancel()
        for task in running:
            task.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


def halt_if_stopped() -> None:
    """Raises Stopped if nobody waits for the task of this thread any more. Tasks call it between files."""
    task: Task | None = getattr(_own, "task", None)
    if task is not None and task.stopped:
        raise Stopped


def on_stop(stop: Callable[[], None]) -> None:
    """Register a function that another thread calls when nobody waits for this thread's answer any more."""
    task: Task | None = getattr(_own, "task", None)
    if task is None:
        return
    task.stops.append(stop)
    if task.stopped:
        stop()


def _run(task: Task) -> Any:
    _own.task = task
    try:
        halt_if_stopped()
        return task.work()
    finally:
        _own.task = None


def _settle(task: Task, *, error: BaseException | None, result: Any = None) -> None:
    task.ended_at = time.monotonic()
    with suppress(InvalidStateError):  # it was cancelled or given up already
        if error is not None:
            task.answer.set_exception(error)
        else:
            task.answer.set_result(result)


def _given_up() -> StepscopeError:
    hint = "open fewer traces at once, or use the command line, which has no time limit"
    return StepscopeError(f"no answer within {_GIVEN_UP_S / 60:.0f} minutes", hint)
