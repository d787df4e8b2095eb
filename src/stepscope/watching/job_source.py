"""Watches the steps of a recorded job, and asks its recording for causes.

At an alarm the recording, if it keeps the last seconds, dumps them with a profile of the next steps of all ranks, and
`compare` says what caused the difference from the profile of the job's first steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.record import dump
from stepscope.record.system import meta
from stepscope.watching.streams import Cycles
from stepscope.watching.watcher import Wording

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stepscope.record.step_times import RunningJob
    from stepscope.watching.streams import Stream

#: A job has ended when it has no steps for so long, or never had one for the second.
_GONE_S, _NEVER_S = 5.0, 65.0
_DUMP_S, _COMPARE_S = 120.0, 300.0


class JobSource:
    """The steps of the processes of a recorded job."""

    wording = Wording(
        cycle="step",
        stream="process",
        streams="processes",
        stall="one step took {time}",
        slow="the last 20 steps took longer than expected",
        creep="steps have become slower little by little",
        per="",
        nothing="no step ended in the last minute",
    )

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._last, self._has_steps = time.monotonic(), False

    def is_over(self) -> bool:
        """Whether the recording or all processes with steps have ended."""
        idle_s = time.monotonic() - self._last
        return not self._job.is_recorded() or idle_s >= (_GONE_S if self._has_steps else _NEVER_S)

    def read(self, streams: Mapping[str, Stream]) -> list[Cycles]:
        """The steps that each living process did since its stream was read."""
        rows = self._job.steps({stream.epoch: stream.n for stream in streams.values()})
        if rows:
            self._last = time.monotonic()
            self._has_steps = self._has_steps or any(row.n for row in rows)
        names = (f"rank {row.rank}" if row.rank >= 0 else f"process {i}" for i, row in enumerate(rows, 1))
        return [Cycles(name, row.pid, row.n, row.times_ns, row.counts) for name, row in zip(names, rows, strict=True)]

    def status(self) -> str:
        """Nothing: a job says no more than its steps."""
        return ""

    def cause(self, _: dict[str, Any]) -> dict[str, Any]:
        """The cause by a dump and its comparison with the job's first steps: takes minutes."""
        try:
            folder = dump(self._job.folder)
        except StepscopeError as error:
            return {"text": f"cause unknown: {error.message}", "causes": []}
        deadline = time.monotonic() + _DUMP_S
        while _is_open(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        return {**_compared(self._job.folder, folder), "dump": str(folder)}


def _is_open(folder: Path) -> bool:
    try:
        return json.loads((folder / meta.NAME).read_text(encoding="utf-8"))["end_unix_ns"] is None
    except (OSError, ValueError, KeyError):  # it is being replaced
        return True


def _compared(base: Path, other: Path) -> dict[str, Any]:
    """Verdict and causes of a dump against the recording, from a process of its own that gives way to the job."""
    command = ["nice", sys.executable, "-m", "stepscope", "compare", str(base), str(other), "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMPARE_S, check=False)  # noqa: S603  ourselves
        result = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {"text": f"cause unknown: the comparison failed; see stepscope report {other}", "causes": []}
    fields = ("category", "certainty", "statement", "rank", "explained_ns", "gain", "evidence", "advice")
    causes = [{name: one[name] for name in fields} for one in result["causes"]]
    if causes:
        text = f"cause, {causes[0]['certainty']}: {causes[0]['category']}: {causes[0]['statement']}"
    else:
        is_over = result["verdict"] == "no_difference"
        text = "cause unknown: the next steps took their usual time" if is_over else "cause unknown"
    return {"text": f"{text}; see stepscope compare {base} {other}", "causes": causes, "verdict": result["verdict"]}
