"""The file of counters while it grows: packed, and whole up to its last second whatever happens to us."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stepscope.record._readings import Row

__all__ = ["HEADER", "NAME", "CounterFile"]

NAME = "counters.csv.gz"
#: Six digits say more of a rate than is known; levels of memory are exact.
_DIGITS = {"bytes": 15}
HEADER = "ts_ns,metric,unit,device,value\n"


class CounterFile:
    """`counters.csv.gz`, a sequence of gzip members, one for each flush, so that a kill loses the last one at most."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_samples = 0
        self._lines: list[str] = []
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(self._handle).st_size == 0:
            self._lines.append(HEADER)
            self.flush()

    def add(self, time_ns: int, rows: Iterable[Row]) -> None:
        """Samples of one time: metric, unit, device, value."""
        before = len(self._lines)
        head = f"{time_ns},"
        self._lines += [
            f"{head}{metric},{unit},{device},{value:.{_DIGITS.get(unit, 6)}g}\n" for metric, unit, device, value in rows
        ]
        self.n_samples += len(self._lines) - before

    def flush(self) -> None:
        """Write what was added since the last time, all or nothing. Raises OSError (the disk is full)."""
        if not self._lines:
            return
        packer = zlib.compressobj(4, zlib.DEFLATED, 31)
        packed = packer.compress("".join(self._lines).encode()) + packer.flush()
        self._lines = []
        size = os.fstat(self._handle).st_size
        try:
            while packed:
                packed = packed[os.write(self._handle, packed) :]
        except OSError:
            os.ftruncate(self._handle, size)
            raise

    def close(self) -> None:
        """The last flush. Raises OSError (the disk is full)."""
        try:
            self.flush()
        finally:
            os.close(self._handle)
