"""The file of stacks while it grows: each frame, stack, thread and process is written once, samples refer to them."""

from __future__ import annotations

import linecache
import os
import re
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.record.stacks.py_spy_output import Frame

NAME = "stacks.tsv.gz"
#: Kinds of rows: P process (n: its parent), T thread, F frame (n: line), S stack (text: frames, outermost first),
#: W stack of a thread, G stack of one that held the GIL (n: samples), C time on a core (n: ns), L a run (n: Hz).
HEADER = "kind\tid\tts_ns\tdur_ns\tpid\ttid\tn\ttext\tfile\n"
#: Limit of what an endless job writes: enough for some days at 100 Hz.
_MOST_BYTES = 1 << 29
#: This many stacks are remembered, to write each only once. Then remembering starts again from none.
_MOST_STACKS = 1 << 17
_BLANKS = str.maketrans("\t\n\r", "   ")
#: A line of the job that takes a lock: by name, or a context without a call, which only a lock can keep waiting long.
#: The standard library's own locks guard queues, events and the ends of threads.
_TAKES_LOCK = re.compile(
    r"\.acquire\(|^(?:async\s+)?with\s+(?:[\w.\[\]]+\s*(?:\bas\b|,|:)|[^#]*(?<![bcBC])(?:[Ll]ock|LOCK|[Mm]utex|[Ss]emaphore))"
)
_LIBRARY = re.compile(r"/python\d+(?:\.\d+)?t?/(?!(?:site|dist)-packages/)|^<")
_LONGEST_LINE = 80


class StackFile:
    """`stacks.tsv.gz`, a sequence of gzip members, one for each run of some seconds. Raises OSError (disk full)."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self.path = path
        self.n_samples = 0
        self._most_bytes = most_bytes
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._n_stacks = 0
        self._written: dict[tuple[str, int, int], tuple[int, str]] = {}
        self._lines = [HEADER]
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.flush()

    @property
    def is_full(self) -> bool:
        """Whether it has reached the size that bounds it."""
        return os.fstat(self._handle).st_size >= self._most_bytes

    def add(self, kind: str, time: tuple[int, int], pid: int, tid: int, frames: tuple[Frame, ...], n: int) -> None:
        """A stack of a thread, with its number of samples. `time` is start (Unix) and duration. Units: ns."""
        stack = self._stack(frames)
        self._lines.append(f"{kind}\t{stack}\t{time[0]}\t{time[1]}\t{pid}\t{tid}\t{n}\t\t\n")
        self.n_samples += n

    def run(self, start_ns: int, dur_ns: int, hz: int) -> None:
        """A time in which stacks were sampled, `hz` times a second."""
        self._lines.append(f"L\t\t{start_ns}\t{dur_ns}\t\t\t{hz}\t\t\n")

    def on_core(self, start_ns: int, dur_ns: int, pid: int, tid: int, ns: int) -> None:
        """How long a thread ran on a core in that time."""
        self._lines.append(f"C\t\t{start_ns}\t{dur_ns}\t{pid}\t{tid}\t{ns}\t\t\n")

    def process(self, pid: int, parent: int, command: str) -> None:
        """A process and its parent (0: not sampled)."""
        self._write_once("P", pid, 0, parent, command)

    def thread(self, pid: int, tid: int, name: str) -> None:
        """A thread's name."""
        self._write_once("T", pid, tid, 0, name)

    def _write_once(self, kind: str, pid: int, tid: int, n: int, text: str) -> None:
        if self._written.get((kind, pid, tid)) != (n, text):
            self._written[kind, pid, tid] = (n, text)
            self._lines.append(f"{kind}\t\t\t\t{pid}\t{tid}\t{n}\t{text.translate(_BLANKS)}\t\n")

    def _stack(self, frames: tuple[Frame, ...]) -> int:
        ids = []
        for frame in (*frames, *_lock_of(frames[-1:])):
            known = self._frames.get(frame)
            if known is None:
                known = self._frames[frame] = len(self._frames)
                name, file, line = frame
                self._lines.append(
                    f"F\t{known}\t\t\t\t\t{line}\t{name.translate(_BLANKS)}\t{file.translate(_BLANKS)}\n"
                )
            ids.append(known)
        key = tuple(ids)
        number = self._stacks.get(key)
        if number is None:
            if len(self._stacks) >= _MOST_STACKS:
                self._stacks.clear()
            number = self._stacks[key] = self._n_stacks
            self._n_stacks += 1
            self._lines.append(f"S\t{number}\t\t\t\t\t\t{' '.join(map(str, ids))}\t\n")
        return number

    def flush(self) -> None:
        """Write what was added since the last time, all or nothing. Raises OSError (the disk is full)."""
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        packed = packer.compress("".join(self._lines).encode(errors="replace")) + packer.flush()
        self._lines = []
        size = os.fstat(self._handle).st_size
        try:
            while packed:
                packed = packed[os.write(self._handle, packed) :]
        except OSError:
            os.ftruncate(self._handle, size)
            raise

    def close(self) -> None:
        """Close it. What was not flushed is lost. A file without stacks is removed."""
        if not self.n_samples:
            self.path.unlink(missing_ok=True)
        os.close(self._handle)


def _lock_of(innermost: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """A frame more for the wait for a lock, named as the line that takes it; none if the line does not.

    Taking a lock calls no Python function, so a thread that waits for one is at such a line, and in no function of it.
    """
    for _, file, line in innermost:
        text = linecache.getline(file, line).strip() if line and not _LIBRARY.search(file) else ""
        if _TAKES_LOCK.search(text):
            return ((f"waits: {text[:_LONGEST_LINE]}", file, line),)
    return ()
