"""The recorder's end of the keeper of stacks: started before the job, told its pid, waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.record import _meta, _pyspy

__all__ = ["Keeping", "Kept", "begin"]

_END_S = 20.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of it: fields and issues for meta.json."""

    fields: dict[str, Any] = field(default_factory=dict)
    issues: tuple[dict[str, Any], ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """In words, what the user asked for and does not get."""
        return tuple(issue["example"] for issue in self.issues if issue["severity"] != "info")


@dataclass(slots=True)
class Keeping:
    """The process that keeps stacks; None where none are wanted, or none can be had, for which `issues` tell why."""

    process: subprocess.Popen[bytes] | None = None
    issues: tuple[dict[str, Any], ...] = ()

    def environment(self) -> dict[str, str]:
        """What the start-up hook of the job's processes needs to let us look at them."""
        return {} if self.process is None else {"STEPSCOPE_RECORD_TRACER": str(self.process.pid)}

    def send(self, pid: int) -> None:
        """Tell it the job."""
        if self.process is None or self.process.stdin is None:
            return
        try:
            os.write(self.process.stdin.fileno(), b"%d\n" % pid)
        except BrokenPipeError:  # it has ended, which its exit code will tell
            return

    def end(self) -> Kept:
        """End it and wait until it has written all."""
        if self.process is None:
            return Kept({"n_stack_samples": 0} if self.issues else {}, self.issues)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        told = [json.loads(line) for line in output.splitlines()]
        if told:
            return Kept(told[-1]["fields"], tuple(told[-1]["issues"]))
        code = self.process.returncode
        how = "signal" if code < 0 else "exit code"
        what = f"what keeps Python stacks ended early ({how} {abs(code)}); stacks end there"
        return Kept({"n_stack_samples": None}, (_meta.issue("stacks_ended", what, severity="error"),))


def begin(folder: Path, hz: int | None) -> Keeping:
    """Start it, if stacks are wanted (`hz` times a second)."""
    if hz is None:
        return Keeping()
    spy = _pyspy.program()
    if spy is None:
        return Keeping(issues=(_meta.issue("no_stacks", f"no Python stacks: {_pyspy.INSTALL}"),))
    wanted = json.dumps({"folder": str(folder), "hz": hz, "spy": spy})
    # -P and our own PYTHONPATH: what lies in the job's folder is not imported.
    process = subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-P", "-m", "stepscope.record._stacks", wanted],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,
    )
    return Keeping(process)
