"""The file of scheduling events while it grows: frames, each whole or, if we are killed, missing.

It begins with `MAGIC`. A frame is a head, `HEAD` (little-endian: kind, number of the core, bytes of what follows, bytes
of what it unpacks to, when it was read on the monotonic clock in ns), and zlib data: JSON (`FACTS`) or what the source
gave of one core (`EVENTS`).
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EVENTS", "FACTS", "HEAD", "MAGIC", "NAME", "SchedFile"]

NAME = "sched.ring"
MAGIC = b"stepscope sched 1\n"
HEAD = struct.Struct("<HHIIq")
FACTS, EVENTS = 1, 2
_LEVEL = 1


class SchedFile:
    """`sched.ring`, in which each `flush` writes what was added since the last one. Raises OSError (disk full)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frames: list[bytes] = []
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self.size = 0
        self._put(MAGIC)

    def add(self, time_ns: int, core: int, content: bytes) -> None:
        """Events of a core, which were read at a time."""
        self._frame(EVENTS, core, content, time_ns)

    def tell(self, time_ns: int, **facts: Any) -> None:
        """Facts, as JSON."""
        self._frame(FACTS, 0, json.dumps(facts, separators=(",", ":")).encode(), time_ns)

    def _frame(self, kind: int, core: int, content: bytes, time_ns: int) -> None:
        packed = zlib.compress(content, _LEVEL)
        self._frames += [HEAD.pack(kind, core, len(packed), len(content), time_ns), packed]

    def flush(self) -> None:
        """Write, all or nothing."""
        frames, self._frames = self._frames, []
        if frames:
            self._put(b"".join(frames))

    def _put(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError:
            os.ftruncate(self._handle, self.size)
            raise
        self.size += len(content)

    def close(self) -> None:
        """The last flush."""
        try:
            self.flush()
        finally:
            os.close(self._handle)
