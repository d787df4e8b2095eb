"""Between the sampler and the others: wishes to the start-up hook in the job, messages from it, requests of a user."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import struct
import time
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.record.system import meta

__all__ = ["Channel", "request"]

_PIPE, _WISH, _ANSWER = "asked", "wish", "answer-"
#: As startup/_stepscope_steps.py reads them.
_STEP = struct.Struct("<qqqq")
_WISHED = struct.Struct("<qqq72s")
_BLOCK = 1 << 16


class Channel:
    """The sampler's end. Raises OSError when made (a file system without named pipes)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / meta.FOLDER
        pipe = self._folder / _PIPE
        os.mkfifo(pipe, 0o600)
        # For reading and writing, so that there is always a writer, and the end of one is no end of all.
        self.handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._wish = os.open(self._folder / _WISH, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._wish, bytes(_WISHED.size), 0)
        self._rest = b""

    def messages(self) -> list[dict[str, Any]]:
        """What has come since the last time. Lines that are no messages are left out."""
        try:
            while more := os.read(self.handle, _BLOCK):
                self._rest += more
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        found = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                found.append(message)
        return found

    def steps(self) -> dict[int, int]:
        """Steps made so far by each process that has made one, by its pid."""
        found = {}
        for path in self._folder.glob("steps-*"):
            pid, text = path.name.partition("-")[2], path.read_bytes()
            if pid.isdecimal() and len(text) == _STEP.size and (made := _STEP.unpack(text)[0]):
                found[int(pid)] = made
        return found

    def wish(self, number: int, first: int, n_steps: int, name: str) -> None:
        """Have the job's processes profile steps into a folder of the recording. Raises OSError."""
        wished = _WISHED.pack(number, first, n_steps, name.encode())
        # The number goes last: who sees it sees the rest.
        os.pwrite(self._wish, wished[8:], 8)
        os.pwrite(self._wish, wished[:8], 0)

    def answer(self, token: object, **fields: Any) -> None:
        """To a user's request, if the message was one. Raises OSError."""
        if isinstance(token, str) and token.isalnum():
            part = self._folder / f".{token}"
            part.write_text(json.dumps(fields), encoding="utf-8")
            part.replace(self._folder / f"{_ANSWER}{token}")

    def close(self) -> None:
        """Let go of both."""
        os.close(self.handle)
        os.close(self._wish)


def request(folder: str | os.PathLike[str], timeout_s: float = 10.0) -> Path:
    """Ask the recording that goes on in a folder to write a dump; the dump's folder.

    Raises StepscopeError (no recording with a ring goes on there, it takes no more dumps, it does not answer).
    """
    folder = Path(folder)
    hint = "name the folder of a recording that goes on, and was started with --keep"
    job, token = folder / meta.FOLDER, secrets.token_hex(8)
    try:
        handle = os.open(job / _PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        gone = error.errno in {errno.ENOENT, errno.ENXIO, errno.ENOTDIR}
        why = "no recording that keeps its last seconds goes on there" if gone else error.strerror or str(error)
        raise StepscopeError(f"no dump of {folder}: {why}", hint) from None
    with os.fdopen(handle, "wb", 0) as pipe:
        if not stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode):
            raise StepscopeError(f"no dump of {folder}: it is no recording", hint)
        pipe.write((json.dumps({"ask": "request", "token": token}) + "\n").encode())
    answer, deadline = job / f"{_ANSWER}{token}", time.monotonic() + timeout_s
    while not answer.exists():
        if time.monotonic() > deadline:
            raise StepscopeError(f"no dump of {folder}: its recorder does not answer", "see whether it still runs")
        time.sleep(0.02)
    told = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink(missing_ok=True)
    if "refused" in told:
        raise StepscopeError(f"no dump of {folder}: {told['refused']}", told["hint"])
    return folder / str(told["dump"])
