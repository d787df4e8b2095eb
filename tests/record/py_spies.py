"""A py-spy to test with: the real one where it works, a program that does what it is told, or no process at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache
from typing import TYPE_CHECKING

import pytest
from fakes import Clock

from stepscope.record.stacks import py_spy, py_spy_run
from stepscope.record.stacks.py_spy_output import StackSpan
from stepscope.record.stacks.py_spy_run import RunResult

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    {"ph": "B", "ts": 1000, "pid": 7, "tid": 1, "name": "thread (7): MainThread", "args": {"filename": "", "line": 0}},
    {"ph": "B", "ts": 1000, "pid": 7, "tid": 1, "name": "f", "args": {"filename": "/a.py", "line": 3}},
    {"ph": "E", "ts": 9000, "pid": 7, "tid": 1, "name": "f", "args": {"filename": "/a.py", "line": 3}},
    {"ph": "E", "ts": 9000, "pid": 7, "tid": 1, "name": "thread (7): MainThread", "args": {"filename": "", "line": 0}},
]
FRAMES = (("f", "/a.py", 3),)
S = 1_000_000_000
SEEN = StackSpan(1000, 9000, 7, 7, "MainThread", FRAMES)
FOLDED = "thread (7): MainThread;f (/a.py:3) 4\n"
_FAKE = """#!{python} -IS
import signal, sys, time
words = sys.argv
output = words[words.index("--output") + 1]
text = {folded!r} if "--gil" in words else {events!r}
{before}
ended = []
signal.signal(signal.SIGINT, lambda *_: ended.append(1))
print("py-spy> Sampling process 100 times a second.", flush=True)
{ready}
while not ended:
    time.sleep(0.01)
{after}
with open(output, "w") as file:
    file.write(text)
print("py-spy> Wrote it. Samples: 8 Errors: 2", flush=True)
"""


def fake(folder: Path, *, before: str = "", ready: str = "", after: str = "") -> str:
    """A program that pretends; `before`, `ready` and `after` are Python: before it samples, then, and at its end."""
    path = folder / "py-spy"
    path.write_text(
        _FAKE.format(
            python=sys.executable, folded=FOLDED, events=json.dumps(EVENTS), before=before, ready=ready, after=after
        )
    )
    path.chmod(0o755)
    return str(path)


class FakeRun:
    """A run of py-spy that is ready after 50 ms and needs `cost` of a core, in time that stands still."""

    cost = 0.01
    complaint = ""
    is_lost = False
    clock: Clock

    def __init__(self, _spy, _pid, hz: int, _folder, _cpu, *, tree: bool) -> None:
        self.began_s, self.hz, self.tree = self.clock.monotonic(), hz, tree
        self.seconds = self.cpu_seconds = 0.0
        self.size_bytes, self.handle = 100, os.eventfd(0)

    @classmethod
    def put(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it and its clock in place of the real ones."""
        monkeypatch.setattr(cls, "clock", Clock(), raising=False)
        monkeypatch.setattr(py_spy_run, "time", cls.clock)
        monkeypatch.setattr(py_spy_run, "PySpyRun", cls)

    def listen(self) -> bool:
        return not self.complaint

    @property
    def was_ready(self) -> bool:
        return not self.complaint and self.clock.monotonic() >= self.began_s + 0.05

    is_ready = was_ready

    def end(self) -> RunResult | None:
        os.close(self.handle)
        self.seconds = self.clock.monotonic() - self.began_s
        self.cpu_seconds = self.cost * self.seconds
        if self.is_lost or self.complaint:
            return None
        return RunResult(int(self.began_s * S), 9000, self.hz, 10, (SEEN,), (), n_samples=8, n_errors=2, cpu={})


@cache
def _works(spy: str) -> bool:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"]) as job:
        time.sleep(0.3)
        done = subprocess.run(
            [spy, "dump", "--nonblocking", "--pid", str(job.pid)], capture_output=True, check=False, timeout=20
        )
        job.kill()
    return done.returncode == 0


def real() -> str:
    """The real one; skips the test where there is none, or it may not look at processes."""
    spy = py_spy.program()
    if spy is None:
        pytest.skip(py_spy.INSTALL)
    if not _works(spy):
        pytest.skip("py-spy may not read the memory of other processes here")
    return spy
