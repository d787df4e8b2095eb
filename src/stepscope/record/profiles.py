"""Which profile and snapshots of memory the job's processes should make, and why there is none in the end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.record.system.meta import FOLDER, issue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: How files of profiles end, as the start-up hook names them: torch, JAX, Paddle.
ENDINGS = (".pt.trace.json.gz", ".jax.trace.json.gz", ".paddle_trace.pb.gz")
#: How snapshots of memory end: the last one, of a failure to allocate, or asked for; a regular expression.
SNAPSHOTS = r"\.memory(\.(oom|asked)-\d+)?\.pickle"
NO_SNAPSHOT = (
    "no snapshot of memory: no process of the job used PyTorch with CUDA and ended by itself, ran out of memory, or "
    "was asked for one by SIGUSR1"
)
#: In the folder of messages: the recorder makes it a byte longer for each snapshot that it asks for.
_REQUESTS = "memory-snapshots"
_FRAMEWORKS = {"torch": "PyTorch", "paddle": "Paddle", "jax": "JAX"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Profile steps A up to B, a window after the job's start in s, or nothing; with `memory`, tensors' memory too.

    With `snapshots`, the history of device memory is recorded.
    """

    steps: tuple[int, int] | None
    window: tuple[float, float] | None
    memory: bool = False
    snapshots: bool = False

    def facts(self) -> dict[str, Any]:
        """For meta.json."""
        return {
            "profiled_steps": self.steps and list(self.steps),
            "profiled_window_s": self.window and list(self.window),
        }

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Variables for the start-up hook of a job that starts now, in addition to the `given` ones."""
        window = ""
        if self.window:
            now = time.monotonic_ns()
            window = ":".join(str(now + int(seconds * 1e9)) for seconds in self.window)
        # Below level 6, Kineto writes to the job's standard error when it starts and stops.
        is_quiet = (self.steps or self.window) and "KINETO_LOG_LEVEL" not in given
        return {
            **({"KINETO_LOG_LEVEL": "6"} if is_quiet else {}),
            "STEPSCOPE_RECORD_STEPS": f"{self.steps[0]}:{self.steps[1]}" if self.steps else "",
            "STEPSCOPE_RECORD_WINDOW": window,
            **({"STEPSCOPE_RECORD_MEMORY": "1"} if self.memory else {}),
            **({"STEPSCOPE_RECORD_SNAPSHOTS": "1"} if self.snapshots else {}),
        }


NOTHING = Wanted(None, None)


def ask_for_snapshots(folder: Path) -> None:
    """Have the job's processes write snapshots of their memory. Raises OSError."""
    with (folder / FOLDER / _REQUESTS).open("ab") as requests:
        requests.write(b"\n")


def why_none(document: Mapping[str, Any], wanted: Wanted) -> list[dict[str, Any]]:
    """An issue that says why there is no profile, and what to do; none if there is one already, or none was wanted."""
    is_explained = any(known["code"].startswith("profile") for known in document["issues"])
    if is_explained or not (wanted.steps or wanted.window):
        return []
    return [issue("profile_missing", f"no profile, only counters: {_why(document, wanted)}", severity="info")]


def _why(document: Mapping[str, Any], wanted: Wanted) -> str:
    processes = document.get("processes") or []
    if not processes:
        return (
            "no process of the job was a Python that ran our start-up hook. If one is, start it without -I, -E or -S, "
            "and let it inherit PYTHONPATH"
        )
    with_framework = [process for process in processes if _FRAMEWORKS.keys() & process.keys()]
    if not with_framework:
        return (
            "no Python process of the job imported torch, paddle or jax. If one did, start it without -I, -E or -S, "
            "and let it inherit PYTHONPATH"
        )
    if wanted.window:
        start, end = wanted.window
        return (
            f"from {start:g} to {end:g} s after the start no process used torch, paddle or jax, or the job had ended; "
            "--window A:B counts from the start of the job"
        )
    first, last = wanted.steps or (0, 0)
    most = max(with_framework, key=lambda process: process.get("steps") or 0)
    done, source = most.get("steps") or 0, most.get("step_source")
    if source is None:
        names = " and ".join(
            _FRAMEWORKS[name] for name in _FRAMEWORKS if any(name in known for known in with_framework)
        )
        return (
            f"{names} was imported, but {_no_steps(with_framework)}. Profile a window of time, as in --window 20s:30s"
        )
    when = "before the number of its steps was known" if "steps" not in most else f"after {done}"
    ask = f"--steps 1:{done}" if done > 1 else "--window 20s:30s"
    return f"steps {first}:{last} were asked for, and the job ended {when} ({source}). Use {ask}"


def _no_steps(processes: list[dict[str, Any]]) -> str:
    if all("jax" in process for process in processes):
        return "no step was marked with jax.profiler.StepTraceAnnotation"
    if all("paddle" in process for process in processes):
        return "no step of an optimizer could be seen"
    return "no step of an optimizer and no call of a model could be seen (code that is compiled as a whole hides them)"
