"""Worker processes of our own: each is asked for one item at a time, so that one that dies takes one item with it."""

from __future__ import annotations

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.cluster._worker import COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Died", "pooled"]


@dataclass(frozen=True, slots=True)
class Died:
    """What is left of an item whose worker ended: its exit code, negative for a signal."""

    exit_code: int

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.exit_code == -9:
            return "was killed (signal 9), as the system does when memory runs out"
        if self.exit_code < 0:
            return f"was killed (signal {-self.exit_code})"
        return f"ended with exit code {self.exit_code}; what it said is above"


def pooled(function: bytes, items: Sequence[tuple[int, Any]], *, n_workers: int) -> Iterator[tuple[int, Any]]:
    """Apply a pickled function to numbered items in so many processes. Yields number and result as they come.

    The result of an item whose process died is Died. Closing the iterator ends the processes.
    """
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for item in items:
        tasks.put(item)
    tenders = [_Tender(function, tasks, done, n_workers) for _ in range(min(n_workers, len(items)))]
    try:
        for tender in tenders:
            tender.thread.start()
        for _ in items:
            yield done.get()
    except (GeneratorExit, KeyboardInterrupt):
        _stop(tasks, tenders)
        raise
    finally:
        for tender in tenders:
            tender.thread.join()


def _stop(tasks: queue.SimpleQueue[tuple[int, Any]], tenders: Sequence[_Tender]) -> None:
    """Nobody waits for the rest any more."""
    while True:
        try:
            tasks.get_nowait()
        except queue.Empty:
            break
    for tender in tenders:
        tender.kill()


class _Tender:
    """A thread that hands items to a process, and starts another when it dies."""

    def __init__(
        self,
        function: bytes,
        tasks: queue.SimpleQueue[tuple[int, Any]],
        done: queue.SimpleQueue[tuple[int, Any]],
        n_workers: int,
    ) -> None:
        self._function, self._tasks, self._done, self._n_workers = function, tasks, done, n_workers
        self._process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._tend, daemon=True)

    def _tend(self) -> None:
        while True:
            try:
                number, item = self._tasks.get_nowait()
            except queue.Empty:
                break
            process = self._process = self._process or _started(self._function, self._n_workers)
            try:
                result = _asked(process, item)
            except (OSError, EOFError, pickle.UnpicklingError):
                result = Died(_ended(process))
                self._process = None
            self._done.put((number, result))
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()  # it leaves when it has no more to read
            self._process.wait()

    def kill(self) -> None:
        """End the process at once."""
        process = self._process
        if process is not None:
            process.kill()


def _started(function: bytes, n_workers: int) -> subprocess.Popen[bytes]:
    # Threads of several processes would only get in one another's way.
    threads = str(max(1, (os.cpu_count() or 1) // n_workers))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"POLARS_MAX_THREADS": threads, "OPENBLAS_NUM_THREADS": "1", **os.environ},
    )
    if process.stdin is not None:
        process.stdin.write(function)
    return process


def _asked(process: subprocess.Popen[bytes], item: Any) -> Any:
    if process.stdin is None or process.stdout is None:
        raise EOFError
    process.stdin.write(pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))
    process.stdin.flush()
    return pickle.load(process.stdout)  # noqa: S301  from a process that this one started


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that no longer answers; killed if it has not ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            _closed(pipe)
    try:
        return process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _closed(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:  # what was not yet written to a process that is gone
        return
