"""Writes when the steps of this process end, over the whole run: eight bytes a mark, less than a megabyte an hour.

The file is pidN.steps in the recording's folder, or pidN.loop.steps if the job marks its steps itself: a header, then
marks. The header has Unix time and CLOCK_MONOTONIC at the first step (ns), process id, and rank (-1: none). A mark has
the time since the mark before it (µs), how many steps ended in it, what marks them, and a byte: its lowest bit is 1 if
they are unlike others because a profiler started, ran or wrote. The other seven are the part of the time that was spent
inside the model's calls which mark them, of all threads, as the number 96 + 8 log₂(part); 0 if that is not known. So it
is known to 4 %. Without steps a mark is a pause: what marks steps changed.
"""

from __future__ import annotations

import _thread
import errno
import math
import os
import struct
import time
from typing import Any

MAGIC = b"STEPEND1"
HEADER = struct.Struct("<8sqqii")
MARK = struct.Struct("<IHBB")
_MOST_US, _MOST_STEPS = (1 << 32) - 1, (1 << 16) - 1
#: So many marks, and one more in each 33 ms since the first step: if there are more steps, several share a mark.
_FREE_MARKS, _LEAST_NS = 8_000, 33_000_000
#: A step that takes so many times as long as those that would share its mark gets one of its own.
_FAR = 4
#: Marks are appended this often: a job that is killed loses those of a second.
_FLUSH_NS = 1_000_000_000
#: What is kept in memory while the disk is full: half an hour of steps of 60 ms.
_FULL, _MOST_HELD_BYTES = (errno.ENOSPC, errno.EDQUOT), 1 << 18


class StepTimes:
    """The times of steps of this process. Nothing is opened between two writes: a job may close all files it has.

    Several threads may end steps. A lock would make a mark half as dear again, so there is none: steps that end in the
    same microsecond may be counted wrong by one.
    """

    def __init__(self, folder: str, rank: int | None, kind: str = "") -> None:
        self._folder, self._rank, self._kind = folder, -1 if rank is None else rank, kind
        self.in_child()

    def in_child(self) -> None:
        """In a forked child, which has a file of its own."""
        self._begins = _thread.RLock()
        self._pending = []  # type: list[bytes]
        self._first_ns = self._ended_ns = self._marked_ns = self._flushed_ns = 0
        self._n_steps = self._n_marks = self._source = 0
        self._is_unlike = self._is_lost = False
        self._inside_ns = -1  # of the model's calls that have ended since the last mark; -1: none are reported
        self._path = os.path.join(self._folder, "pid%d%s.steps" % (os.getpid(), self._kind))

    def ended(self, source: int, *, is_unlike: bool) -> None:
        """A step that `source` marks ends now, in any thread; the first one only begins the file."""
        now = time.monotonic_ns()
        if not self._marked_ns and self._is_first(source, now):
            return
        before, self._ended_ns = self._ended_ns, now
        if source != self._source:
            self._mark(now, 0)
            self._source, self._n_steps, self._is_unlike, self._inside_ns = source, 0, False, -1
            return
        self._n_steps += 1
        self._is_unlike |= is_unlike
        if self._n_marks >= _FREE_MARKS + (now - self._first_ns) // _LEAST_NS and self._n_steps < _MOST_STEPS:
            return
        n_short = self._n_steps - 1
        if n_short and (now - before) * n_short > _FAR * (before - self._marked_ns):
            self._mark(before, n_short)
            self._n_steps = 1
        self._mark(now, self._n_steps or 1)
        self._n_steps, self._is_unlike = 0, False
        if now - self._flushed_ns >= _FLUSH_NS:
            self.flush()

    def _is_first(self, source: int, now: int) -> bool:
        """Begins the file, unless another thread just did."""
        with self._begins:
            if self._marked_ns:
                return False
            self._source = source
            unix = time.time_ns() - time.monotonic_ns() + now
            self._pending.append(HEADER.pack(MAGIC, unix, now, os.getpid(), self._rank))
            self._first_ns = self._ended_ns = self._flushed_ns = self._marked_ns = now
            return True

    def worked(self, ns: int) -> None:
        """A call of the model that marks steps has ended, after so long."""
        self._inside_ns = max(self._inside_ns, 0) + ns

    def paused(self) -> None:
        """What came since the last mark is no step."""
        if self._marked_ns:
            self._ended_ns = time.monotonic_ns()
            self._mark(self._ended_ns, 0)
            self._n_steps, self._is_unlike, self._inside_ns = 0, False, -1

    def unlike(self) -> None:
        """The step that runs is unlike others: a profiler starts, runs or writes."""
        self._is_unlike = True

    def flush(self) -> None:
        """Append what is known. What a full disk does not take is kept for later; without a folder nothing more is."""
        self._flushed_ns = self._marked_ns
        pending, self._pending = self._pending, []
        text = b"".join(pending)
        if self._is_lost or not text:
            return
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._keep(text, error.errno)
            return
        try:
            rest = text[os.write(handle, text) :]
            if rest:
                self._keep(rest, errno.ENOSPC)
        except OSError as error:
            self._keep(text, error.errno)
        finally:
            os.close(handle)

    def _keep(self, text: bytes, why: int | None) -> None:
        self._is_lost = why not in _FULL or len(text) > _MOST_HELD_BYTES
        self._pending = [] if self._is_lost else [text]

    def _mark(self, now: int, n_steps: int) -> None:
        took = min(max(now - self._marked_ns, 0) // 1000, _MOST_US)  # another thread may have marked a later time
        # What the division leaves counts for the next mark, so that no error adds up.
        self._marked_ns = now if took == _MOST_US else self._marked_ns + took * 1000
        self._n_marks += 1
        self._pending.append(
            MARK.pack(took, n_steps, self._source, self._is_unlike | _part(self._inside_ns, took) << 1)
        )
        self._inside_ns = min(self._inside_ns, 0)


def _part(inside_ns: int, took_us: int) -> int:
    """The part of a time, 0.03 % to 15 (threads), in seven bits; 0 if it is not known."""
    if inside_ns < 0 or not took_us:
        return 0
    return min(max(round(96 + 8 * math.log2(max(inside_ns, 1) / (took_us * 1000))), 1), 127)


def make(folder: str, files: Any) -> StepTimes:
    """For this process."""
    return StepTimes(folder, files.rank_of(os.environ))
