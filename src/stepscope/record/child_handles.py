"""The processes that record while the job runs. The recorder starts them, sends them the job's pid and awaits them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepscope.record.stacks import py_spy
from stepscope.record.system import meta, tracefs

if TYPE_CHECKING:
    from collections.abc import Mapping

_READY_S, _END_S = 10.0, 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a child wrote, one document for each line, and how it ended early (by which signal or exit code), if so."""

    messages: tuple[dict[str, Any], ...]
    early_end: str | None

    @property
    def errors(self) -> list[str]:
        """The errors that it reported."""
        return [message["error"] for message in self.messages if message.get("error")]


@dataclass(frozen=True, slots=True)
class ChildHandle:
    """A child process, with pipes to its standard input and output."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, module: str, request: Mapping[str, Any]) -> ChildHandle:
        """Start a module of this package in a session of its own. `request` says what it is to do, as JSON."""
        # -P and our own PYTHONPATH: no file of the job's folder is imported.
        process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-P", "-m", f"stepscope.record.{module}", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
        )
        return cls(process)

    def send(self, line: str) -> None:
        """Send it a line. If it is gone, nothing happens: its exit code will say why."""
        try:
            os.write(_handle(self.process.stdin), line.encode() + b"\n")
        except BrokenPipeError:
            return

    def first_message(self) -> dict[str, Any]:
        """Its first message; empty if none comes in time. Later ones are left for `end`."""
        text, output = b"", _handle(self.process.stdout)
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], _READY_S)
            more = os.read(output, 1) if ready else b""
            if not more:
                return {}
            text += more
        message = json.loads(text)
        return message if isinstance(message, dict) else {}

    def end(self, *, terminate: bool) -> Outcome:
        """Wait for its end, which the end of the job brings, or (`terminate`) a signal."""
        if terminate and self.process.poll() is None:
            self.process.terminate()
        try:
            output, _ = self.process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
        code = self.process.returncode
        early_end = f"{'signal' if code < 0 else 'exit code'} {abs(code)}" if code else None
        return Outcome(tuple(json.loads(line) for line in output.splitlines()), early_end)


def _handle(pipe: IO[bytes] | None) -> int:
    """The number of a pipe that must be there."""
    if pipe is None:
        raise TypeError
    return pipe.fileno()


@dataclass(frozen=True, slots=True)
class Sampler:
    """The process that samples counters."""

    child: ChildHandle
    #: Its first message, if that was why it cannot sample.
    refusal: str | None

    def send(self, pid: int) -> None:
        """Send it the job's pid."""
        self.child.send(str(pid))

    def dump(self) -> None:
        """Have it write a dump of the last seconds."""
        self.child.send("dump")

    def end(self, *, terminate: bool) -> list[str]:
        """Wait for its end, which the end of the job brings, or (`terminate`) a signal. Returns what went wrong."""
        outcome = self.child.end(terminate=terminate)
        errors = [self.refusal] if self.refusal else outcome.errors
        return errors or ([f"the sampler ended early ({outcome.early_end})"] if outcome.early_end else [])


def start_sampler(folder: Path, hz: float, seconds: float | None, ring: dict[str, Any] | None) -> Sampler:
    """Start the sampler and wait until it is ready, or has said why it cannot sample."""
    request = {"folder": str(folder), "hz": hz, "seconds": seconds, "ring": ring}
    child = ChildHandle.start("counters.sampler", request)
    return Sampler(child, child.first_message().get("error"))


@dataclass(frozen=True, slots=True)
class SchedCollector:
    """The process that collects scheduling events; None where they are not recorded."""

    child: ChildHandle | None

    def send(self, pid: int) -> None:
        """Send it the job's pid."""
        if self.child is not None:
            self.child.send(str(pid))

    def end(self, *, terminate: bool = False) -> list[str]:
        """Wait for its end, which the end of the job brings, or (`terminate`) a signal. Returns what went wrong."""
        if self.child is None:
            return []
        outcome = self.child.end(terminate=terminate)
        if outcome.early_end is None:
            return outcome.errors
        tracefs.remove_leftovers()
        return outcome.errors or [f"the collector of scheduling events ended early ({outcome.early_end})"]


def start_sched_collector(folder: Path, *, wanted: bool) -> SchedCollector:
    """Start it if wanted, and wait until it is ready. What it cannot record is an issue. Raises OSError (meta.json)."""
    if not wanted:
        return SchedCollector(None)
    child = ChildHandle.start("sched.main", {"folder": str(folder)})
    message = child.first_message()
    if message.get("issue"):
        meta.merge(folder, [message["issue"]])
    return SchedCollector(child)


@dataclass(frozen=True, slots=True)
class StackResult:
    """What the stack recorder reports at its end: fields and issues for meta.json."""

    fields: dict[str, Any] = field(default_factory=dict)
    issues: tuple[dict[str, Any], ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user asked for and does not get, as sentences."""
        return tuple(issue["example"] for issue in self.issues if issue["severity"] != "info")


@dataclass(frozen=True, slots=True)
class StackRecorder:
    """The process that records stacks. None if none are wanted, or if none can be had: `issues` then say why."""

    child: ChildHandle | None = None
    issues: tuple[dict[str, Any], ...] = ()

    def environment(self) -> dict[str, str]:
        """What the start-up hook of the job's processes needs to let py-spy read them."""
        return {} if self.child is None else {"STEPSCOPE_RECORD_TRACER": str(self.child.process.pid)}

    def send(self, pid: int) -> None:
        """Send it the job's pid."""
        if self.child is not None:
            self.child.send(str(pid))

    def end(self) -> StackResult:
        """End it, and wait until it has written everything."""
        if self.child is None:
            return StackResult({"n_stack_samples": 0} if self.issues else {}, self.issues)
        outcome = self.child.end(terminate=True)
        if outcome.messages:
            return StackResult(outcome.messages[-1]["fields"], tuple(outcome.messages[-1]["issues"]))
        what = f"the recorder of Python stacks ended early ({outcome.early_end}); stacks end there"
        return StackResult({"n_stack_samples": None}, (meta.issue("stacks_ended", what, severity="error"),))


def start_stack_recorder(folder: Path, hz: int | None) -> StackRecorder:
    """Start it, if stacks are wanted (`hz` times a second)."""
    if hz is None:
        return StackRecorder()
    spy = py_spy.program()
    if spy is None:
        return StackRecorder(issues=(meta.issue("no_stacks", f"no Python stacks: {py_spy.INSTALL}"),))
    return StackRecorder(ChildHandle.start("stacks.main", {"folder": str(folder), "hz": hz, "spy": spy}))
