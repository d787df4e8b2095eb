"""Reports the end of each training step to the recorder, and receives its requests for a profile of the next steps.

`.job/steps-PID` holds four numbers in memory shared with whoever reads it: steps made, when the last one ended
(CLOCK_MONOTONIC, ns), how long it took (ns), and the median of the steps before it (ns; 0 while there are too few).
A step much slower than that is reported at once, as a line of JSON through the pipe `.job/asked`.
"""

from __future__ import annotations

import bisect
import collections
import json
import mmap
import os
import struct
import time
from typing import Any, NamedTuple

_STEP = struct.Struct("<qqqq")
#: Number of the request, the first step to profile (0: any), how many, and the folder inside the recording.
_WISH = struct.Struct("<qqq72s")
#: The median is that of this many steps. With fewer, no step is called slow.
_WINDOW, _FEWEST = 64, 8
#: A rank that lags by at most this many steps profiles the same steps as the other ranks.
_LAG = 3


class Wish(NamedTuple):
    """Profile `n_steps` steps from `first` on, into the folder of that name."""

    number: int
    first: int
    n_steps: int
    name: str


class StepEnds:
    """Reports the ends of steps of this process, detects slow ones, and reads the recorder's requests."""

    def __init__(self, folder: str, slower: float) -> None:
        """`slower`: how many times the median a slow step takes; 0 to call none slow."""
        self._job = os.path.join(folder, ".job")
        self._slower = slower
        self._memory = self._wishes = None  # type: Any
        self._heard = 0
        self.open()

    def open(self) -> None:
        """Begin to report this process' steps; called again in a forked child."""
        self._recent = collections.deque()  # type: collections.deque[int]
        self._sorted = []  # type: list[int]
        self._last_ns = 0
        self._is_unlike = False
        self._memory = _shared(os.path.join(self._job, "steps-%d" % os.getpid()), _STEP.size)
        self._wishes = _shared(os.path.join(self._job, "wish"), 0)
        self._heard = self._wish_number()

    def ended(self, n_steps: int) -> Wish | None:
        """Step number `n_steps` (from 1) has ended. Returns the request that came since the last step, or None."""
        now, before = time.monotonic_ns(), self._last_ns
        self._last_ns = now
        took, median = (now - before if before else 0), self._median()
        if self._memory is not None:
            _STEP.pack_into(self._memory, 0, n_steps, now, took, median)
        if before and not self._is_unlike:
            if self._slower and median and took > self._slower * median:
                self.tell(ask="slow-step", step=n_steps - 1, step_ns=took, median_ns=median)
            self._add(took)
        self._is_unlike = False
        if self._wish_number() <= self._heard:
            return None
        return self._wish(n_steps)

    def skip(self) -> None:
        """Do not compare the current step with others, because a profiler starts, runs, or writes."""
        self._is_unlike = True

    def tell(self, **fields: Any) -> None:
        """Send a message to the recorder; nothing happens if it is gone."""
        line = json.dumps(dict(fields, pid=os.getpid(), rank=os.environ.get("RANK"))) + "\n"
        try:
            handle = os.open(os.path.join(self._job, "asked"), os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(handle, line.encode())
        except OSError:  # it is gone, or has fallen far behind
            pass
        finally:
            os.close(handle)

    def _median(self) -> int:
        n = len(self._sorted)
        return self._sorted[n // 2] if n >= _FEWEST else 0

    def _add(self, took: int) -> None:
        self._recent.append(took)
        bisect.insort(self._sorted, took)
        if len(self._recent) > _WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._recent.popleft())]

    def _wish_number(self) -> int:
        return 0 if self._wishes is None else struct.unpack_from("<q", self._wishes)[0]

    def _wish(self, n_steps: int) -> Wish:
        self._heard, first, n, name = _WISH.unpack_from(self._wishes)
        # Ranks in lockstep can all still profile the same steps; others begin with their next step.
        if not n_steps < first <= n_steps + 1 + _LAG:
            first = n_steps + 1
        return Wish(self._heard, first, n, name.rstrip(b"\0").decode())


def _shared(path: str, size: int) -> Any:
    """The memory of a new file of that size, to write, or (size 0) of an existing file, to read. None if that fails."""
    try:
        if not size:
            with open(path, "rb") as file:
                return mmap.mmap(file.fileno(), _WISH.size, access=mmap.ACCESS_READ)
        with open(path, "w+b") as file:
            file.write(bytes(size))
            file.flush()
            return mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):  # no such file, or it is too short
        return None
