"""Where events of a watch go: a line, a file of JSON lines, a command, a web address.

Nothing here ends the watch: what fails is reported once, and again after it has worked in between.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_COMMAND_S, _WEBHOOK_S, _LAST_S = 60.0, 10.0, 15.0
#: Events that wait for a slow command or address at the most; later ones are dropped, which is reported.
_MOST_WAITING = 100


@dataclass
class Outputs:
    """Sends events: `write` gets each as a line of text; alarms and causes go to the command and the webhook too."""

    write: Callable[[str], None]
    log: Path | None = None
    on_alarm: str | None = None
    webhook: str | None = None
    _failing: set[str] = field(default_factory=set)
    _waiting: queue.Queue[dict[str, Any]] = field(default_factory=lambda: queue.Queue(_MOST_WAITING))
    _sender: threading.Thread | None = None

    def __post_init__(self) -> None:
        """Check the webhook. Raises StepscopeError (it is no address)."""
        if self.webhook is not None and urlsplit(self.webhook).scheme not in ("http", "https"):
            raise StepscopeError(f"{self.webhook} is no web address", "begin it with https:// or http://")

    def send(self, event: dict[str, Any]) -> None:
        """Send an event; its `text` is the line."""
        self.write(f"{time.strftime('%H:%M:%S')} {event['text']}")
        whole = {"unix_s": round(time.time(), 3), **event}
        if self.log is not None:
            self._try("the log", partial(_append, self.log, whole))
        if event["event"] in ("alarm", "cause") and (self.on_alarm or self.webhook):
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_all, daemon=True)
                self._sender.start()
            try:
                self._waiting.put_nowait(whole)
            except queue.Full:
                self.problem("sending alarms", "100 of them wait already")

    def close(self) -> None:
        """Give alarms that wait for the command or the webhook some seconds."""
        deadline = time.monotonic() + _LAST_S
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.05)

    def _send_all(self) -> None:
        while True:
            event = self._waiting.get()
            text = json.dumps(event).encode()
            if self.on_alarm:
                self._try("--on-alarm", partial(_run, self.on_alarm, text))
            if self.webhook:
                self._try("--webhook", partial(_post, self.webhook, text))
            self._waiting.task_done()

    def _try(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
            self._failing.discard(what)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.problem(what, str(error))

    def problem(self, what: str, why: str) -> None:
        """Report that something fails, unless it was reported and has not worked since."""
        if what not in self._failing:
            self._failing.add(what)
            self.write(f"{time.strftime('%H:%M:%S')} {what} failed: {why}; watching goes on")


def _append(log: Path, event: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def _run(command: str, text: bytes) -> None:
    whole = ["/bin/sh", "-c", command]
    done = subprocess.run(whole, input=text, timeout=_COMMAND_S, check=False)  # noqa: S603  the user's own command
    if done.returncode:
        raise OSError(f"the command ended with {done.returncode}")


def _post(url: str, text: bytes) -> None:
    request = urllib.request.Request(url, text, {"Content-Type": "application/json"})  # noqa: S310  checked to be http
    with urllib.request.urlopen(request, timeout=_WEBHOOK_S):  # noqa: S310  checked to be http
        pass
