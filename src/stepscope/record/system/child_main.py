"""What the processes that record have in common: how they are told of the job, when to end, and how they answer."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Ending", "pid_from", "pidfd", "tell"]


class Ending:
    """Why to end, once there is a reason: a SIGTERM, the end of the job, or that of the one who started us.

    `n_asked` is how often that one has asked for a dump.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.n_asked = 0

    def watch(self) -> None:
        """End on SIGTERM; outlive what is meant for the job. The recorder holds its signals back, and we begin so."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = f"signal {number}"

    def look(self, events: dict[int, int], handle: int | None, root: int) -> None:
        """What a poll of standard input and of the job's handle (None: there is none, /proc tells) has found."""
        if handle in events or (handle is None and not Path(f"/proc/{root}").exists()):
            self.reason = self.reason or "job"
        elif sys.stdin.fileno() in events:
            text = os.read(sys.stdin.fileno(), 64)
            self.n_asked += text.count(b"dump")
            if not text:
                self.reason = self.reason or "recorder"


def pidfd(pid: int) -> int | None:
    """A handle that a poll finds readable when the process ends."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # it is gone, or the kernel is older than 5.3: /proc tells
        return None


def pid_from(handle: int) -> int | None:
    """The job's pid, from a line; None if the one who started us went away before there was a job."""
    text = b""
    while not text.endswith(b"\n"):
        more = os.read(handle, 64)
        if not more:
            return None
        text += more
    return int(text)


def tell(message: dict[str, Any]) -> int:
    """Say it to the one who started us, if that one still listens. 1, our exit code after an error."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
