"""Watches the steps of a recorded job, and asks its recording for causes.

At an alarm the recording, if it keeps the last seconds, dumps them with a profile of the next steps of all ranks, and
`compare` says what caused the difference from the profile of the job's first steps. Without a profiler, it compares the
slow steps with those right before them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.record import dump
from stepscope.record.counters.writer import NAME as COUNTERS
from stepscope.record.stacks.stack_file import NAME as STACKS
from stepscope.record.system import meta
from stepscope.watching import core_waits, slow_part, stack_samples
from stepscope.watching.alarms import SLOW_CYCLES, SLOW_MOST
from stepscope.watching.streams import Cycles
from stepscope.watching.watcher import Wording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.record.step_times import RunningJob, TimedStep
    from stepscope.watching.streams import Stream

#: A job has ended when it has no steps for so long, or never had one for the second.
_GONE_S, _NEVER_S = 5.0, 65.0
#: Causes that belong to the machine and its other work, and come again; those that only say when. Others are faults.
_OF_THE_MACHINE = ("cpu_contention", "cpu_frequency", "gpu_contention", "gpu_frequency")
_ONLY_WHEN = ("none", "slow_tail", "periodic_work")
_DUMP_S, _COMPARE_S = 120.0, 300.0
#: Bytes without which a disk is full.
_ROOM = 4096
_FIELDS = ("category", "certainty", "statement", "rank", "explained_ns", "gain", "evidence", "advice")
#: Steps that are looked at, of each process; how many of them are the slow ones of each kind of alarm.
_HISTORY, _SLOW = 8192, {"stall": 1, "slow": SLOW_MOST, "creep": 64}


class JobSource:
    """The steps of the processes of a recorded job."""

    #: Steps are written about once a second, and are then read soon.
    every_s = 0.5
    wording = Wording(
        cycle="step",
        stream="process",
        streams="processes",
        stall="one step took {time},",
        slow=f"{SLOW_MOST} of the last {SLOW_CYCLES} steps took at least",
        creep="steps have become slower little by little,",
        per="",
        nothing="no step ended in the last minute",
    )

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._has_steps = False
        #: When a reading first found no process; until one is found, when the watch began.
        self._gone_since: float | None = time.monotonic()
        self._gone_s = 0.0
        #: Process and number of marks so far of each stream.
        self._marks: dict[str, tuple[int, int]] = {}
        self._healthy = stack_samples.HealthyStacks(job.folder)

    def is_over(self) -> bool:
        """Whether the recording or all processes with steps have ended."""
        if not self._job.is_recorded():
            return True
        # Readings tell, and not the clock: a watch that got no core for a while knows nothing of that time.
        return self._gone_s >= (_GONE_S if self._has_steps else _NEVER_S)

    def read(self, streams: Mapping[str, Stream]) -> list[Cycles]:
        """The steps that each living process did since its stream was read."""
        rows = self._job.steps({stream.epoch: stream.n for stream in streams.values()})
        now = time.monotonic()
        self._gone_since = None if rows else self._gone_since or now
        self._gone_s = now - (self._gone_since or now)
        self._has_steps = self._has_steps or any(row.n for row in rows)
        names = (f"rank {row.rank}" if row.rank >= 0 else f"process {i}" for i, row in enumerate(rows, 1))
        cycles = [Cycles(name, row.pid, row.n, row.times_ns, row.counts) for name, row in zip(names, rows, strict=True)]
        self._marks |= {one.stream: (one.epoch, one.n) for one in cycles}
        self._healthy.see((one.epoch, one.n) for one in cycles)
        return cycles

    def status(self) -> str:
        """That the disk of the recording is full, if it is: a job keeps its steps until there is room."""
        try:
            is_full = shutil.disk_usage(self._job.folder).free < _ROOM
        except OSError:
            return ""
        return f"the disk of {self._job.folder} is full, so its steps cannot be read" if is_full else ""

    def waits_for_a_core(self, alarm: dict[str, Any]) -> bool:
        """Whether the process waited for a core, by the counters of the recording as they are now."""
        pid, n = self._marks[alarm["stream"]]
        steps, slow = self._steps_of(alarm, pid, n)
        if not slow:
            return False
        times = slow[0].begin_s, slow[-1].end_s
        stretches = core_waits.stretches_of(self._job.folder / COUNTERS, pid, steps, *times)
        return stretches is not None and core_waits.cause_of(*stretches) is not None

    def _steps_of(self, alarm: dict[str, Any], pid: int, n: int) -> tuple[list[TimedStep], list[TimedStep]]:
        """Last steps of a process, and the slow ones of an alarm among its first `n` marks. None if they are gone."""
        first, steps = self._job.last_steps(pid, _HISTORY)
        known = steps[: max(n - first, 0)]
        if alarm["kind"] == "stall":
            return steps, ([one for one in known if one.time_ns == alarm["step_ns"]] or known)[-1:]
        return steps, known[-_SLOW[alarm["kind"]] :]

    def cause(self, alarm: dict[str, Any]) -> dict[str, Any]:
        """The cause by a dump, and its comparison with the minute before and the job's first steps: takes minutes."""
        read = dict(self._marks)
        pid, n = read[alarm["stream"]]
        try:
            with tempfile.TemporaryDirectory(meta.PART, ".stacks-", self._job.folder) as stacks:
                # The counters of the dump are to cover the time of the stacks.
                if not stack_samples.has_profiler(self._job.folder):
                    stack_samples.sample(Path(stacks), pid)
                folder = dump(self._job.folder)
                if Path(stacks, STACKS).exists():
                    Path(stacks, STACKS).replace(folder / STACKS)
        except StepscopeError as error:
            return {"text": f"cause unknown: {error.message}", "causes": []}
        except OSError as error:
            return {"text": f"cause unknown: cannot write into {self._job.folder}: {error.strerror}", "causes": []}
        deadline = time.monotonic() + _DUMP_S
        while _is_open(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        steps, slow = self._steps_of(alarm, pid, n)
        if not slow:
            return {"text": "cause unknown: the times of its steps are gone", "causes": [], "dump": str(folder)}
        from_s, until_s = slow[0].begin_s, slow[-1].end_s
        compared: tuple[Path, Path] | None = self._job.folder, folder
        if not slow_part.has_profile(folder):
            until_s = slow_part.slow_until(steps, from_s, until_s)
            pids = [each for each, _ in read.values()]
            try:
                compared = slow_part.divided(self._job, folder, pids, pid, from_s, until_s)
            except OSError as error:
                return {"text": f"cause unknown: cannot write beside {folder}: {error.strerror}", "causes": []}
        stretches = core_waits.stretches_of(folder / COUNTERS, pid, steps, from_s, until_s)
        waits = stretches and core_waits.cause_of(*stretches)
        where_it_went = f": {core_waits.sentence_of(*stretches)}" if stretches else ""
        if compared != (self._job.folder, folder) and not (folder / STACKS).exists():
            where_it_went += "; with py-spy (pip install py-spy) stacks show where"
        fields = (
            _named(waits, f"see stepscope report {folder}", where_it_went)
            if compared is None
            else _compared(*compared, folder, waits, where_it_went)
        )
        return {**fields, "dump": str(folder)}


def _is_open(folder: Path) -> bool:
    try:
        return json.loads((folder / meta.NAME).read_text(encoding="utf-8"))["end_unix_ns"] is None
    except (OSError, ValueError, KeyError):  # it is being replaced
        return True


def _compared(
    base: Path, other: Path, folder: Path, waits: dict[str, Any] | None, where_it_went: str
) -> dict[str, Any]:
    """Verdict and causes of slow steps against others, and the page that shows them, beside the dump in `folder`.

    `waits` is the cause that is known already; it is the first. `where_it_went` is said of an unknown one.
    """
    done = _compare(base, other, "--format", "json")
    try:
        result = json.loads(done.stdout)
    except ValueError:
        why = next((line for line in done.stderr.splitlines() if line.startswith("error: ")), "the comparison failed")
        return _named(waits, f"see stepscope report {folder}", f": {why.removeprefix('error: ')}")
    path = folder.with_name(f"{folder.name}.html")
    page = str(path) if _compare(base, other, "--output", str(path), "--force").returncode == 0 else None
    where = f"see {page}" if page else f"see stepscope compare {base} {other}"
    is_over = result["verdict"] == "no_difference"
    why_unknown = ": the next steps took their usual time" if is_over else where_it_went
    named = [{name: one[name] for name in _FIELDS} for one in result["causes"]]
    return {**_named(waits, where, why_unknown, named), "verdict": result["verdict"], "page": page}


def _named(
    waits: dict[str, Any] | None, where: str, why_unknown: str, compared: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The fields of a cause: that of the waits for a core is the first of all."""
    known = [waits] if waits else []
    causes = [*known, *(one for one in compared if not waits or one["category"] != waits["category"])]
    first = causes[0] if causes else {"category": "none"}
    text = (
        f"cause, {first['certainty']}: {first['category']}: {first['statement']}" if causes
        else f"cause unknown{why_unknown}"
    )  # fmt: skip
    is_usual = None if first["category"] in _ONLY_WHEN else first["category"] in _OF_THE_MACHINE
    return {"text": f"{text}; {where}", "causes": causes, "verdict": None, "page": None, "is_usual": is_usual}


def _compare(base: Path, other: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Compare in a process of its own that gives way to the job. An attempt that takes too long has failed."""
    command = ["nice", sys.executable, "-m", "stepscope", "compare", str(base), str(other), *options]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMPARE_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, -1, "", f"error: {error}")
