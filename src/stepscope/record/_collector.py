"""The recorder's end of the collector of scheduling events: started before the job, told its pid, waited for."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.record import _meta, _tracefs

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Collector", "started"]

_READY_S, _END_S = 10.0, 20.0


@dataclass(slots=True)
class Collector:
    """The process that collects, or None of it where scheduling is not recorded."""

    process: subprocess.Popen[bytes] | None

    def send(self, pid: int) -> None:
        """Tell it the job."""
        if self.process is None or self.process.stdin is None:
            return
        try:
            os.write(self.process.stdin.fileno(), b"%d\n" % pid)
        except BrokenPipeError:  # it has ended, which its exit code will tell
            return

    def end(self, *, tell_it: bool = False) -> list[str]:
        """Wait for its end, which the job's end or (`tell_it`) a signal brings. In words, what went wrong."""
        if self.process is None:
            return []
        if tell_it and self.process.poll() is None:
            self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        problems = [told["error"] for line in output.splitlines() if "error" in (told := json.loads(line))]
        code = self.process.returncode
        if code:
            _tracefs.remove_leftovers()
            if not problems:
                how = "signal" if code < 0 else "exit code"
                problems.append(f"the collector of scheduling events ended early ({how} {abs(code)})")
        return problems


def started(folder: Path, *, wanted: bool) -> Collector:
    """Start it if it is wanted, and wait until it is ready; what it cannot record becomes an issue in meta.json.

    Raises OSError if that cannot be written.
    """
    if not wanted:
        return Collector(None)
    # -P and our own PYTHONPATH: what lies in the job's folder is not imported.
    process = subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", "stepscope.record._sched", json.dumps({"folder": str(folder)})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    told = _first_line(process)
    if told.get("issue"):
        _meta.merge(folder, [told["issue"]])
    return Collector(process)


def _first_line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What it says first; nothing if it does not say it in time. No more is read: what follows is for the end."""
    text = b""
    if process.stdout is None:
        return {}
    output = process.stdout.fileno()
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([output], [], [], _READY_S)
        more = os.read(output, 1) if ready else b""
        if not more:
            return {}
        text += more
    found = json.loads(text)
    return found if isinstance(found, dict) else {}
