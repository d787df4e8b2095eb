"""A recording from start to end: the folder, the processes that record, the job, and the outcome in meta.json."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.version import program_version
from stepscope.record import job, profiles
from stepscope.record.child_handles import (
    StackResult,
    start_sampler,
    start_sched_collector,
    start_stack_recorder,
)
from stepscope.record.counters.writer import NAME, CounterFile
from stepscope.record.hang import HangWatch
from stepscope.record.metrics import MetricsScraper, MetricsUrl
from stepscope.record.system import meta
from stepscope.record.system.proc import is_alive, read_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.record.counters.dumps import Ring

_STARTUP = Path(__file__).parent / "startup"
_ENDINGS = "|".join(re.escape(end) for end in profiles.ENDINGS)
#: Signals that end the recording of a process that we have joined.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What --force may remove: what an earlier recording wrote, and nothing else.
_OURS = re.compile(
    rf"(meta\.json|processes\.json|(nccl|comm_lib)_trace_rank_\d+|counters\.csv\.gz|metrics\.prom\.gz|sched\.ring|stacks\.tsv\.gz|pid\d+(\.loop)?\.steps|(rank|pid)\d+.*({_ENDINGS}|{profiles.SNAPSHOTS}))"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished recording: its folder, the job's exit code as a shell reports it (None if we joined it), issues."""

    folder: Path
    exit_code: int | None
    seconds: float
    #: Sentences for the user: what could not be recorded.
    problems: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()
    #: Sentences for the user: what was asked for and is missing, though the recording is good without it.
    remarks: tuple[str, ...] = ()


def run(
    command: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    hz: float = 20.0,
    steps: tuple[int, int] | None = (5, 15),
    window: tuple[float, float] | None = None,
    memory: bool = False,
    memory_snapshots: bool = False,
    sched: bool = False,
    stacks_hz: int | None = None,
    ring: Ring | None = None,
    hang_s: float | None = None,
    metrics: str | None = None,
    force: bool = False,
) -> Recorded:
    """Run a command and record it: counters, and for Python jobs with torch, Paddle or JAX a profile.

    The profile is of steps A up to B, or of a `window` from one time after the start to another; both None: no profile.
    With `memory`, a PyTorch profile has the memory of tensors too. With `memory_snapshots`, PyTorch processes write
    the history of their device memory at their end, when SIGUSR1 comes, and when a device is out of memory.
    `sched` records when each thread had a core or waited for one. `stacks_hz` is how often a second py-spy samples the
    stacks of Python processes (None: not). With a `ring` only counters of the last seconds are kept, and SIGUSR1 dumps
    them instead of being handed on. When no step ends for `hang_s`, all ranks are asked what they do, into a folder
    `hang-0001`, and so on. `metrics` is the address of a server's metrics on this machine, which are scraped while the
    job runs. The command keeps our standard input, output and error; other signals that
    we get are handed on to it. Must be called on the main thread. Units: hz, samples a second; window, s.
    Raises StepscopeError (the folder is not empty or cannot be written, the command cannot be run, not Linux, metrics
    of another machine).
    """
    _check_system()
    job.find_program(command)
    metrics_url = None if metrics is None else MetricsUrl.of(metrics)
    wanted = profiles.Wanted(None if window else steps, window, memory, memory_snapshots)
    target = _prepared(Path(folder), force=force)
    mask = job.forwarding()
    try:
        with _notices_of_disk():
            about: dict[str, Any] = {"command": list(command), "cwd": str(Path.cwd()), "stacks_hz": stacks_hz}
            _begin(target, hz, mode="run", ring=ring and asdict(ring), **about, **wanted.facts())
            collector = start_sched_collector(target, wanted=sched)
        stack_recorder = start_stack_recorder(target, stacks_hz)
        sampler, start = start_sampler(target, hz, None, None if ring is None else ring.wanted(steps)), time.monotonic()
        environment = _environment(target, wanted) | stack_recorder.environment()
        # The hook reports steps if any multiple of the usual time is wanted; 0 calls no step slow.
        environment |= {} if hang_s is None else {"STEPSCOPE_RECORD_TRIGGER": "0"}
        environment |= {} if ring is None else ring.environment()
        try:
            pid = job.start(command, environment, mask)
        except StepscopeError:
            sampler.child.process.kill()
            sampler.end(terminate=False)
            collector.end()
            stack_recorder.end()
            raise
        collector.send(pid)
        sampler.send(pid)
        stack_recorder.send(pid)

        watch = None if hang_s is None else HangWatch(target, pid, hang_s)
        scraper = None if metrics_url is None else MetricsScraper(metrics_url, target)

        def ask() -> None:
            if ring is not None:
                sampler.dump()
            if memory_snapshots:
                profiles.ask_for_snapshots(target)

        status = job.wait(pid, {} if ring is None and not memory_snapshots else {signal.SIGUSR1: ask})
        seconds = time.monotonic() - start
        missing = [] if scraper is None else scraper.end()
        hangs = [] if watch is None else watch.end()
        stack_result = stack_recorder.end()
        problems = sampler.end(terminate=False)
        sched_errors = collector.end()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = job.exit_code_of(status)
    about = {"exit_code": code, "pid": pid}
    problems += _ended(target, problems, sched_errors, stack_result, wanted=wanted, issues=[*hangs, *missing], **about)
    remarks = (*stack_result.remarks, *(issue["example"] for issue in missing))
    return Recorded(target, code, seconds, tuple(problems), _traces(target), remarks)


def attach(
    pid: int,
    folder: str | os.PathLike[str],
    *,
    seconds: float | None = None,
    hz: float = 20.0,
    sched: bool = False,
    stacks_hz: int | None = None,
    ring: Ring | None = None,
    metrics: str | None = None,
    force: bool = False,
) -> Recorded:
    """Record counters of a running process and its descendants until it ends, `seconds` are over, or SIGINT or SIGTERM.

    `sched` records when each thread had a core or waited for one. `stacks_hz` is how often a second py-spy samples the
    stacks of Python processes (None: not). With a `ring` only counters of the last seconds are kept, and SIGUSR1 dumps
    them. `metrics` is the address of a server's metrics on this machine. Must be called on the main thread.
    Units: s; hz, samples a second.
    Raises StepscopeError (no such process, the folder is not empty or cannot be written, not Linux, metrics of another
    machine).
    """
    _check_system()
    if not is_alive(pid):
        raise StepscopeError(f"there is no process {pid}", "`ps -e` lists the running processes")
    metrics_url = None if metrics is None else MetricsUrl.of(metrics)
    target = _prepared(Path(folder), force=force)
    command = (read_once(f"/proc/{pid}/cmdline") or "").rstrip("\0").split("\0")
    issues = []
    if read_once(f"/proc/{pid}/io") is None:
        what = f"bytes that process {pid} reads and writes: run as its user, or as root (sudo)"
        issues.append(meta.issue("no_io_counters", what, severity="info"))
    mask = job.forwarding()
    try:
        with _notices_of_disk():
            about: dict[str, Any] = {"command": command, "pid": pid, "stacks_hz": stacks_hz}
            _begin(target, hz, mode="attach", issues=issues, ring=ring and asdict(ring), **about)
            collector = start_sched_collector(target, wanted=sched)
        stack_recorder = start_stack_recorder(target, stacks_hz)
        sampler, start = (
            start_sampler(target, hz, seconds, None if ring is None else ring.wanted(None)),
            time.monotonic(),
        )
        collector.send(pid)
        sampler.send(pid)
        stack_recorder.send(pid)
        scraper = None if metrics_url is None else MetricsScraper(metrics_url, target)
        stopped = False
        while sampler.child.process.poll() is None and not stopped:
            got = signal.sigtimedwait({*_ENDS, signal.SIGUSR1, signal.SIGCHLD}, 1.0)
            stopped = got is not None and got.si_signo in _ENDS
            if got is not None and got.si_signo == signal.SIGUSR1 and ring is not None:
                sampler.dump()
        passed = time.monotonic() - start
        missing = [] if scraper is None else scraper.end()
        stack_result = stack_recorder.end()
        problems = sampler.end(terminate=stopped)
        sched_errors = collector.end(terminate=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    problems += _ended(target, problems, sched_errors, stack_result, issues=missing)
    remarks = (*stack_result.remarks, *(issue["example"] for issue in missing))
    return Recorded(target, None, passed, tuple(problems), remarks=remarks)


def _check_system() -> None:
    if not sys.platform.startswith("linux"):
        raise StepscopeError(
            f"recording works on Linux only, not on {platform.system()}", "record on the machine that runs the job"
        )


def _prepared(folder: Path, *, force: bool) -> Path:
    """Create the folder, or (`force`) remove an earlier recording from it. Raises StepscopeError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.iterdir())
        if files and not force:
            hint = "name a new folder, or pass --force to replace what an earlier recording left in it"
            raise StepscopeError(f"{folder} is not empty", hint)
        dumps = [dump for pattern in (meta.DUMPS, meta.HANGS) for dump in folder.glob(pattern)]
        for file in [*files, *(file for dump in dumps for file in dump.iterdir())]:
            if _OURS.fullmatch(file.name) and file.is_file():
                file.unlink()
        for dump in dumps:
            if dump.is_dir() and not any(dump.iterdir()):
                dump.rmdir()
    except OSError as error:
        raise StepscopeError(
            f"cannot write into {folder}: {error.strerror or error}", "name another folder with -o DIR"
        ) from None
    return folder.resolve()


@contextmanager
def _notices_of_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or "the folder"
        raise StepscopeError(
            f"cannot write {where}: {error.strerror or error}", "name another folder with -o DIR"
        ) from None


def _begin(
    folder: Path,
    hz: float,
    *,
    issues: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> None:
    """Write what is known before anything runs, so that the folder can be read even if we are killed right after."""
    meta.remove_leftovers(folder)
    CounterFile(folder / NAME).close()
    (folder / meta.FOLDER).mkdir(exist_ok=True)
    document = {
        "recorder": "stepscope",
        "stepscope_version": program_version(),
        **fields,
        "hz": hz,
        **meta.this_host(),
        "start_unix_ns": time.time_ns(),
        "end_unix_ns": None,
        "clocks": meta.clocks(),
        "issues": issues or [],
    }
    meta.write(folder, document)


def _environment(folder: Path, wanted: profiles.Wanted) -> dict[str, str]:
    """Our environment, changed so that all Python processes of the job run the start-up hook first."""
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **wanted.environment(os.environ),
        "PYTHONPATH": f"{_STARTUP}{os.pathsep}{before}" if before else str(_STARTUP),
        "STEPSCOPE_RECORD_DIR": str(folder),
    }


def _ended(
    folder: Path,
    problems: list[str],
    sched_errors: list[str],
    stack_result: StackResult,
    *,
    wanted: profiles.Wanted = profiles.NOTHING,
    issues: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> list[str]:
    """Complete meta.json after the job's end. Returns what went wrong with that, or with scheduling events."""
    issues = [*issues]
    issues += [meta.issue("counters_ended", problem, severity="error") for problem in problems]
    issues += [meta.issue("sched_ended", problem, severity="error") for problem in sched_errors]
    meta.remove_leftovers(folder)
    try:
        document = json.loads((folder / meta.NAME).read_text(encoding="utf-8"))
        known = {issue["example"] for issue in document["issues"]}
        issues = [issue for issue in (*issues, *stack_result.issues) if issue["example"] not in known]
        if document["end_unix_ns"] is None:
            fields["end_unix_ns"] = time.time_ns()
        if not _traces(folder):
            issues += profiles.why_none(document, wanted)
        if wanted.snapshots and not any(folder.glob("*.memory*.pickle")):
            issues.append(meta.issue("memory_snapshot_missing", profiles.NO_SNAPSHOT, severity="info"))
        meta.merge(folder, issues, **stack_result.fields, **fields)
    except OSError as error:
        problem = f"cannot write {folder / meta.NAME}: {error.strerror or error}"
        return sched_errors or ([problem] if not problems else [])
    return sched_errors


def _traces(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for end in profiles.ENDINGS for path in folder.glob(f"*{end}")))
