"""A process that records beside the job, as the recorder sees it: started, told the job's pid, waited for."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Beside", "Ended", "begin"]

_READY_S, _END_S = 10.0, 20.0


@dataclass(frozen=True, slots=True)
class Ended:
    """What it said, a document for each line, and how it ended early, in words: by which signal, or exit code."""

    told: tuple[dict[str, Any], ...]
    how: str | None

    @property
    def errors(self) -> list[str]:
        """What it said went wrong."""
        return [document["error"] for document in self.told if document.get("error")]


@dataclass(frozen=True, slots=True)
class Beside:
    """The process, with pipes to its standard input and output."""

    process: subprocess.Popen[bytes]

    def say(self, line: str) -> None:
        """Tell it something, if it still listens: its exit code tells why not."""
        try:
            os.write(_handle(self.process.stdin), line.encode() + b"\n")
        except BrokenPipeError:
            return

    def first_line(self) -> dict[str, Any]:
        """What it says first; nothing if it does not say it in time. No more is read: what follows is for the end."""
        text, output = b"", _handle(self.process.stdout)
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], _READY_S)
            more = os.read(output, 1) if ready else b""
            if not more:
                return {}
            text += more
        found = json.loads(text)
        return found if isinstance(found, dict) else {}

    def end(self, *, tell_it: bool) -> Ended:
        """Wait for its end, which the job's end or (`tell_it`) a signal brings."""
        if tell_it and self.process.poll() is None:
            self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        code = self.process.returncode
        how = f"{'signal' if code < 0 else 'exit code'} {abs(code)}" if code else None
        return Ended(tuple(json.loads(line) for line in output.splitlines()), how)


def begin(module: str, wanted: Mapping[str, Any]) -> Beside:
    """Start a module of this package with what it is to do, as JSON, in a session of its own."""
    # -P and our own PYTHONPATH: what lies in the job's folder is not imported.
    process = subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", f"stepscope.record.{module}", json.dumps(wanted)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    return Beside(process)


def _handle(pipe: IO[bytes] | None) -> int:
    """The number of one of its pipes, both of which there are."""
    if pipe is None:
        raise TypeError
    return pipe.fileno()
