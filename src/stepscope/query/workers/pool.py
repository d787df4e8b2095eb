"""Worker processes of our own. Each gets one item at a time, so that a worker that dies loses only one item.

A worker reads a pickled function and pickled items from standard input and writes pickled results. It is not a
`multiprocessing` process, because that would import the user's own script again.

Only the modules of this folder unpickle: a function can be sent to a process in no other way, and Dask sends everything
like this. They read pipes between processes that this program started, or what Dask hands over, and never a file.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import warnings
from typing import IO, TYPE_CHECKING, Any

import msgspec

from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.machine import SHARE, cores, memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Measured: memory that a process needs before it reads, and per byte of a trace; bytes that it reads per second.
_BASE_BYTES, _PER_BYTE, _BYTES_PER_S = 130_000_000, 0.9, 90_000_000
#: How many seconds it takes to start a process. This process does any work that takes less.
_START_S = 0.6
#: Objects that other processes do not see.
_MINE = "memory://"
_SHARE = 0.8


class Plan(msgspec.Struct, frozen=True):
    """How many worker processes (0: read in this process only) and how much memory each may take."""

    n_workers: int
    worker_bytes: int


def plan(paths: Sequence[str], *, workers: int | None = None, memory_limit: int | None = None) -> Plan:
    """As many workers as there are cores and files, or fewer so that they fit into memory.

    Memory is `memory_limit`, or 80 % of what is free. `workers` asks for a number, 0 for none; memory still bounds it.
    There are no workers if this process reads all files faster than a worker starts.
    """
    if any(path.startswith(_MINE) for path in paths):
        return Plan(0, _BASE_BYTES)
    sizes = [files.unpacked_bytes(path) for path in paths]
    need = int(_BASE_BYTES + _PER_BYTE * max(sizes, default=0))
    limit = int(_SHARE * memory_bytes()) if memory_limit is None else memory_limit
    fitting = max(1, (limit - _BASE_BYTES) // need)  # this process is there as well
    wanted = min(cores(), len(paths)) if workers is None else min(workers, len(paths))
    if workers is None and (wanted < 2 or sum(sizes) / _BYTES_PER_S / 2 < _START_S):
        return Plan(0, need)
    return Plan(min(wanted, fitting), need)


#: For the GNU C library: memory that one file frees is used for the next one and is not returned to the system in
#: between. Other C libraries ignore these variables.
_KEEP_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_TOP_PAD_": str(4 << 20),
}  # fmt: skip

#: How long a process may take to end: it may still be writing into the cache.
_PATIENCE_S = 20
#: What the interpreter of a worker runs; its argument is the parent's list of places to import from.
COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stepscope.query.workers.pool import main; main()"
)


class Died(msgspec.Struct, frozen=True):
    """The result of an item whose worker ended: the exit code, negative for a signal."""

    exit_code: int

    @property
    def ending(self) -> str:
        """How it ended, for people."""
        if self.exit_code == -9:
            return "was killed (signal 9), as the system does when memory runs out"
        if self.exit_code < 0:
            return f"was killed (signal {-self.exit_code})"
        return f"ended with exit code {self.exit_code}; its messages are above"


def pooled(function: bytes, items: Sequence[tuple[int, Any]], *, n_workers: int) -> Iterator[tuple[int, Any]]:
    """Apply a pickled function to numbered items in so many processes. Yields number and result as they come.

    The result of an item whose process died is Died. Closing the iterator ends the processes.
    """
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for item in items:
        tasks.put(item)
    environment = _environment(n_workers)
    tenders = [_Tender(function, tasks, done, environment) for _ in range(min(n_workers, len(items)))]
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
    """The caller has stopped waiting for the rest."""
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
        environment: dict[str, str],
    ) -> None:
        self._function, self._tasks, self._done, self._environment = function, tasks, done, environment
        self._process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._tend, daemon=True)

    def _tend(self) -> None:
        while True:
            try:
                number, item = self._tasks.get_nowait()
            except queue.Empty:
                break
            self._done.put((number, self._result(item)))
        if self._process is not None:
            _ended(self._process)

    def _result(self, item: Any) -> Any:
        try:
            if self._process is None:
                self._process = _started(self._environment)
                _send(self._process, self._function)
            _send(self._process, pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))
            return _received(self._process)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            process, self._process = self._process, None
            return StepscopeError(f"cannot start a process: {error}") if process is None else Died(_ended(process))

    def kill(self) -> None:
        """End the process at once."""
        process = self._process
        if process is not None:
            process.kill()


def _environment(n_workers: int) -> dict[str, str]:
    # Threads of several processes would only slow each other down.
    threads = str(max(1, (os.cpu_count() or 1) // n_workers))
    given = {"POLARS_MAX_THREADS": threads, SHARE: threads, "OPENBLAS_NUM_THREADS": "1", **_KEEP_FREED, **os.environ}
    # A cache that is not used because others could write to it: this process warns, and not each worker.
    return given if store.cache_folder() is not None else given | {"STEPSCOPE_CACHE": "0"}


def _started(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  this interpreter, with our own code
        [sys.executable, "-c", COMMAND, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def _send(process: subprocess.Popen[bytes], pickled: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(pickled)
        process.stdin.flush()


def _received(process: subprocess.Popen[bytes]) -> Any:
    if process.stdout is None:
        raise EOFError
    return pickle.load(process.stdout)  # noqa: S301  from a process that this one started


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Close the pipes of a process and wait for its exit code; kill it if it does not end in time."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            _closed(pipe)
    try:
        return process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _closed(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:  # data that was not yet written to a process that has ended
        return


def main() -> None:
    """Serve standard input. Prints go to standard error, because standard output carries results."""
    # Garbage is collected between items: doing so all the time costs a tenth of the work.
    gc.disable()
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, results)


def serve(tasks: IO[bytes], results: IO[bytes]) -> None:
    """Read a function, then apply it to every item that follows."""
    function: Any = _next(tasks)
    while True:
        try:
            item = _next(tasks)
        except EOFError:
            return
        pickle.dump(function(item), results, protocol=pickle.HIGHEST_PROTOCOL)
        results.flush()
        if not gc.isenabled():
            gc.collect()
            gc.freeze()  # what remains are imported modules: they need no further search


def _next(tasks: IO[bytes]) -> object:
    return pickle.load(tasks)  # noqa: S301  from the process that started this one
