"""What a whole process costs: CPU time, wall time, peak memory, as the kernel counts them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes in the unit of ru_maxrss.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """User and system CPU seconds, wall seconds and peak resident bytes of a process; or why it failed."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    failure: str | None = None


def best(
    command: Sequence[str], *, runs: int, timeout_s: float, max_bytes: int | None = None, cores: int | None = None
) -> Cost:
    """The least times and the largest memory of several runs; of a failing command, its first."""
    costs: list[Cost] = []
    for _ in range(runs):
        cost = once(command, timeout_s=timeout_s, max_bytes=max_bytes, cores=cores)
        if cost.failure:
            return cost
        costs.append(cost)
    return Cost(min(c.cpu_s for c in costs), min(c.wall_s for c in costs), max(c.peak_bytes for c in costs))


def once(command: Sequence[str], *, timeout_s: float, max_bytes: int | None = None, cores: int | None = None) -> Cost:
    """Run a command to its end, killed after `timeout_s`; `max_bytes` bounds its address space, `cores` where it runs.

    Memory is that of its largest process. It is at least that of the process that calls this, whose memory the kernel
    counts until the command is loaded: so import nothing big here.
    """
    if max_bytes is not None:
        command = ["/bin/sh", "-c", f"ulimit -v {max_bytes // 1024}; exec {shlex.join(command)}"]
    if cores is not None:
        some = sorted(os.sched_getaffinity(0))[:cores]
        command = ["taskset", "--cpu-list", ",".join(map(str, some)), *command]
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        # Files are to be read, not taken from stepscope's cache of those that were opened before.
        environment = {**os.environ, "STEPSCOPE_CACHE": "0"}
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, env=environment
        )
        late = threading.Event()

        def kill() -> None:
            late.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, kill)
        timer.daemon = True
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except KeyboardInterrupt:  # does not reach the child, which is in a session of its own
            kill()
            raise
        finally:
            timer.cancel()
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped it, not Popen
        errors.seek(0)
        failure = f"not done in {timeout_s:.0f} s" if late.is_set() else why(child.returncode, errors.read())
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * RSS_UNIT, failure)


def why(code: int, errors: bytes) -> str | None:
    """Why a process ended with that code, None if it was well; the last words of its error output if there are any."""
    if code == 0:
        return None
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "")
    return said or f"exit code {code}"
