"""What all processes that record have in common: how they get the job's pid, when they end, how they report."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Ending:
    """The reason to end, once there is one: a SIGTERM, the end of the job, or the end of the recorder.

    `n_asked` counts requests of the recorder for a dump.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.n_asked = 0

    def watch(self) -> None:
        """End on SIGTERM, and ignore signals that are meant for the job. We inherit the recorder's blocked signals."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = f"signal {number}"

    def look(self, events: dict[int, int], handle: int | None, root: int) -> None:
        """Handle the events of standard input and of the job's handle (None: look in /proc instead)."""
        if handle in events or (handle is None and not Path(f"/proc/{root}").exists()):
            self.reason = self.reason or "job"
        elif sys.stdin.fileno() in events:
            text = os.read(sys.stdin.fileno(), 64)
            self.n_asked += text.count(b"dump")
            if not text:
                self.reason = self.reason or "recorder"


def pidfd(pid: int) -> int | None:
    """A handle that becomes readable when the process ends; None if there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # it is gone, or the kernel is older than 5.3
        return None


def pid_from(handle: int) -> int | None:
    """Read a line with the job's pid; None if the recorder went away before it sent one."""
    text = b""
    while not text.endswith(b"\n"):
        more = os.read(handle, 64)
        if not more:
            return None
        text += more
    return int(text)


def tell(message: dict[str, Any]) -> int:
    """Send a message to the recorder, if it is still there. Returns 1, our exit code after an error."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
