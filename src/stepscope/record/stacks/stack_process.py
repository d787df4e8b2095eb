"""The recorder's end of the keeper of stacks: started before the job, told its pid, waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.record.stacks import pyspy
from stepscope.record.system import child_handle, meta

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Keeping", "Kept", "begin"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of it: fields and issues for meta.json."""

    fields: dict[str, Any] = field(default_factory=dict)
    issues: tuple[dict[str, Any], ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """In words, what the user asked for and does not get."""
        return tuple(issue["example"] for issue in self.issues if issue["severity"] != "info")


@dataclass(frozen=True, slots=True)
class Keeping:
    """The process that keeps stacks; None where none are wanted, or none can be had, for which `issues` tell why."""

    beside: child_handle.Beside | None = None
    issues: tuple[dict[str, Any], ...] = ()

    def environment(self) -> dict[str, str]:
        """What the start-up hook of the job's processes needs to let us look at them."""
        return {} if self.beside is None else {"STEPSCOPE_RECORD_TRACER": str(self.beside.process.pid)}

    def send(self, pid: int) -> None:
        """Tell it the job."""
        if self.beside is not None:
            self.beside.say(str(pid))

    def end(self) -> Kept:
        """End it and wait until it has written all."""
        if self.beside is None:
            return Kept({"n_stack_samples": 0} if self.issues else {}, self.issues)
        ended = self.beside.end(tell_it=True)
        if ended.told:
            return Kept(ended.told[-1]["fields"], tuple(ended.told[-1]["issues"]))
        what = f"what keeps Python stacks ended early ({ended.how}); stacks end there"
        return Kept({"n_stack_samples": None}, (meta.issue("stacks_ended", what, severity="error"),))


def begin(folder: Path, hz: int | None) -> Keeping:
    """Start it, if stacks are wanted (`hz` times a second)."""
    if hz is None:
        return Keeping()
    spy = pyspy.program()
    if spy is None:
        return Keeping(issues=(meta.issue("no_stacks", f"no Python stacks: {pyspy.INSTALL}"),))
    return Keeping(child_handle.begin("stacks.main", {"folder": str(folder), "hz": hz, "spy": spy}))
