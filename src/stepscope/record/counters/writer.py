"""The file of counters while it grows: packed, and readable up to its last second even if we are killed."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stepscope.record.counters.readings import Row

NAME = "counters.csv.gz"
#: Six digits are more than is known of a rate; sizes of memory are exact.
_DIGITS = {"bytes": 15}
HEADER = "ts_ns,metric,unit,device,value\n"
#: A file of the last seconds is rewritten when it covers this many times those seconds.
_SLACK = 1.25


class Tail:
    """The last seconds of a file of counters, as packed members with the Unix time at which each begins."""

    def __init__(self, keep_s: float) -> None:
        self._keep_ns = int(keep_s * 1e9)
        self._members: deque[tuple[int, bytes]] = deque()
        self._pinned: list[bytes] = []
        self._pinned_until = 0
        self.size = 0

    def add(self, start_ns: int, now_ns: int, packed: bytes) -> None:
        """Add a member, and drop those that ended before the last seconds."""
        self._members.append((start_ns, packed))
        self.size += len(packed)
        while len(self._members) > 1 and self._members[1][0] < now_ns - self._keep_ns:
            start_ns, old = self._members.popleft()
            if start_ns < self._pinned_until:
                self._pinned.append(old)
            else:
                self.size -= len(old)

    def pin(self, now_ns: int) -> None:
        """Keep the current last seconds in the file for good: a profile was taken in that time."""
        self._pinned_until = now_ns

    @property
    def start_ns(self) -> int | None:
        """Unix time at which the last seconds begin; None before the first member."""
        return self._members[0][0] if self._members else None

    def packed(self, *, with_pinned: bool = False) -> bytes:
        """The members of the last seconds, after those that were pinned if asked."""
        return b"".join([*(self._pinned if with_pinned else ()), *(member for _, member in self._members)])


class CounterFile:
    """`counters.csv.gz`, a sequence of gzip members, one for each flush, so that a kill loses the last one at most.

    With `keep_s` it holds only the last seconds: once it holds a quarter more, it is replaced.
    """

    def __init__(self, path: Path, keep_s: float | None = None) -> None:
        self.path = path
        self.n_samples = 0
        self.tail = None if keep_s is None else Tail(keep_s)
        self._lines: list[str] = []
        self._start_ns = time.time_ns()
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._handle).st_size == 0:
            self.append(_packed(HEADER))

    def add(self, time_ns: int, rows: Iterable[Row]) -> None:
        """Samples of one time: metric, unit, device, value."""
        before = len(self._lines)
        head = f"{time_ns},"
        self._lines += [
            f"{head}{metric},{unit},{device},{value:.{_DIGITS.get(unit, 6)}g}\n" for metric, unit, device, value in rows
        ]
        self.n_samples += len(self._lines) - before

    def flush(self) -> bytes:
        """Write the new samples, all or nothing. Returns them as packed. Raises OSError (the disk is full)."""
        if not self._lines:
            return b""
        packed = _packed("".join(self._lines))
        self._lines = []
        start_ns, self._start_ns = self._start_ns, time.time_ns()
        self.append(packed)
        if self.tail is not None:
            self.tail.add(start_ns, self._start_ns, packed)
            if os.fstat(self._handle).st_size > _SLACK * self.tail.size + (1 << 12):
                self._replace(_packed(HEADER) + self.tail.packed(with_pinned=True))
        return packed

    def append(self, packed: bytes) -> None:
        """Write members that are packed already, all or nothing. Raises OSError (the disk is full)."""
        size = os.fstat(self._handle).st_size
        try:
            _write_all(self._handle, packed)
        except OSError:
            os.ftruncate(self._handle, size)
            raise

    def close(self) -> None:
        """Flush, drop everything before the last seconds, and close. Raises OSError (the disk is full)."""
        try:
            self.flush()
            if self.tail is not None and self.tail.size:
                self._replace(_packed(HEADER) + self.tail.packed(with_pinned=True))
        finally:
            os.close(self._handle)

    def _replace(self, whole: bytes) -> None:
        """Replace the file as a whole, so that a reader sees either the old or the new one."""
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _write_all(handle, whole)
            part.replace(self.path)
        except OSError:
            os.close(handle)
            part.unlink(missing_ok=True)
            raise
        os.close(self._handle)
        self._handle = handle


def _packed(text: str) -> bytes:
    packer = zlib.compressobj(4, zlib.DEFLATED, 31)
    return packer.compress(text.encode()) + packer.flush()


def _write_all(handle: int, packed: bytes) -> None:
    while packed:
        packed = packed[os.write(handle, packed) :]
