"""A py-spy to test with: the real one where it works, or a program that does what it is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from typing import TYPE_CHECKING

import pytest

from stepscope.record.stacks import py_spy

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    {"ph": "B", "ts": 1000, "pid": 7, "tid": 1, "name": "thread (7): MainThread", "args": {"filename": "", "line": 0}},
    {"ph": "B", "ts": 1000, "pid": 7, "tid": 1, "name": "f", "args": {"filename": "/a.py", "line": 3}},
    {"ph": "E", "ts": 9000, "pid": 7, "tid": 1, "name": "f", "args": {"filename": "/a.py", "line": 3}},
    {"ph": "E", "ts": 9000, "pid": 7, "tid": 1, "name": "thread (7): MainThread", "args": {"filename": "", "line": 0}},
]
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
