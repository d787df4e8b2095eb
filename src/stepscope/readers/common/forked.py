"""Processes that decode parts of one file at the same time and leave what they decoded in memory.

They are forked, since starting an interpreter takes as long as decoding 30 MB. They use no library that has threads,
write their result to memory that the parent maps, and end. If one of them fails or takes too long, the parent reads
the whole file itself: results and errors are always those of one process.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_PROCESSES = 16
#: A process that takes so much longer than the first part did is given up.
_PATIENCE_S, _TIMES_AS_LONG = 30.0, 10
_PAUSE_S = 0.002


class UnfinishedError(Exception):
    """A process did not do its work, or not in time."""


def can_fork() -> bool:
    """Whether this system has what `forked` needs."""
    return hasattr(os, "memfd_create") and hasattr(os, "fork")


def deadline_of(took_s: float) -> float:
    """Until when the other parts should be done, on the monotonic clock, if one like them took so long."""
    return time.monotonic() + _PATIENCE_S + _TIMES_AS_LONG * took_s


@contextmanager
def forked(works: list[Callable[[int], None]]) -> Iterator[list[Callable[[float], mmap.mmap]]]:
    """A process for each piece of work, and what waits for its result until a deadline. They end with the block.

    Each piece of work gets the file descriptor to which it writes its result with `put`. What waits for it gives that
    memory, or raises UnfinishedError.
    """
    running: dict[int, int] = {}  # process, the memory that it writes
    try:
        for work in works:
            handle = os.memfd_create("stepscope")
            with warnings.catch_warnings():
                # Of threads that the parent has, and whose locks the child might wait for: it uses none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if not pid:
                _be_child(work, handle)
            running[pid] = handle
        yield [partial(_finished, running, pid) for pid in tuple(running)]
    finally:
        for pid, handle in running.items():
            os.close(handle)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _be_child(work: Callable[[int], None], handle: int) -> None:
    """Do the work and end: with status 0 if it is done. If it fails, the parent tries itself and says what is wrong."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        work(handle)
        status = 0
    finally:
        os._exit(status)


def _finished(running: dict[int, int], pid: int, deadline: float) -> mmap.mmap:
    """What the process left. Raises UnfinishedError if it did not come to its end in time."""
    done, status = os.waitpid(pid, os.WNOHANG)
    while not done:
        if time.monotonic() > deadline:
            raise UnfinishedError
        time.sleep(_PAUSE_S)
        done, status = os.waitpid(pid, os.WNOHANG)
    handle = running.pop(pid)
    try:
        if status:
            raise UnfinishedError
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)


def put(handle: int, data: bytes | memoryview) -> None:
    """Write all of the data."""
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(handle, view) :]


def forget(left: mmap.mmap, begin: int, end: int) -> None:
    """Give up these bytes of what a process left, as far as they are whole pages."""
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        left.madvise(mmap.MADV_REMOVE, begin, end - begin)
