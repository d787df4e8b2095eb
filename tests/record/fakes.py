"""A clock and a sampler that are not real, so that most tests of the recorder start nothing and wait for nothing."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Clock:
    """Time that passes only while someone waits. It replaces the modules `time` and `select` of what is tested."""

    POLLIN, POLLHUP = select.POLLIN, select.POLLHUP

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def time_ns(self) -> int:
        return self.now_ns

    monotonic_ns = time_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def process_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.now_ns += max(0, int(seconds * 1e9))

    def poll(self) -> Poll:
        return Poll(self)


class Poll:
    """What is ready at once is ready; else time passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._poll = clock, select.poll()
        self.register = self._poll.register

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        ready = self._poll.poll(0)
        if not ready:
            self._clock.sleep(timeout_ms / 1000)
        return ready


class FakeSampler:
    """A sampler that samples nothing. It notes what it is asked to do, and ends with `problems`.

    `then` has functions that are called when it is asked for that ("sample", "dump", "poll").
    """

    def __init__(self, problems: Sequence[str] = (), then: Mapping[str, Callable[[], object]] | None = None) -> None:
        self.problems, self._then = problems, then or {}
        self.asked: list[str] = []
        self.child = self.process = self

    def send(self, pid: int) -> None:
        assert os.path.exists(f"/proc/{pid}")  # noqa: PTH110  a zombie too
        self._ask("sample")

    def dump(self) -> None:
        self._ask("dump")

    def poll(self) -> None:
        self._then.get("poll", lambda: None)()

    def end(self, *, terminate: bool) -> list[str]:
        self._ask("terminate" if terminate else "end")
        return list(self.problems)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        self._then.get(what, lambda: None)()
