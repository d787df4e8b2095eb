"""Asks a job that stands still now: what each of its processes does, and the flight recorder's dumps that it offers.

Nothing of the job is changed. py-spy pauses a process for some milliseconds while it reads its stacks. A dump is only
asked for through the pipe that the job itself opened for that purpose.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.record.counters import gpus
from stepscope.record.stacks import py_spy
from stepscope.record.system import meta
from stepscope.record.system.proc import descendants, is_alive, process_stat, read_once

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SCHEMA = "stepscope.processes/1"
PROCESSES = "processes.json"
#: How long processes are watched for the time that they use.
_WATCHED_S = 1.0
_STACK_S = 30.0
#: A job answers through its pipe within some seconds, or does not.
_DUMP_S = 8.0
_MOST_STACKS = 8
_LIST = "list the job's processes: pgrep -af python"
_TICKS = os.sysconf("SC_CLK_TCK")
#: Steps made, and when the last one ended: the begin of what `_stepscope_step_messages` shares.
_STEP = struct.Struct("<qq")
#: Which processes are of one job: these are equal in all of them.
_JOB = ("MASTER_ADDR", "MASTER_PORT")
_NUMBERS = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "local_world_size": "LOCAL_WORLD_SIZE",
}
#: Where dumps go, with the rank at the end; names of PyTorch 2.4 to today.
_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
_USUAL_DUMPS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")  # noqa: S108  PyTorch's own default
_DUMP_NAME = re.compile(r"(nccl|comm_lib)_trace_rank_")


def ask_job(pids: Sequence[int], folder: Path, *, ranks: Collection[int] | None = None) -> tuple[Path, int, int]:
    """Write what the processes of a job do, and copies of its dumps, into a new folder.

    The job is each of the processes, their descendants, and all processes of this machine with the same master address
    and port. Without `pids` it is the only job of this machine whose processes have ranks. `ranks` are those to ask;
    None: all. Returns the folder, the number of processes and that of dumps. Raises StepscopeError (no such process,
    no Python among them, no such rank, several jobs, the folder cannot be written).
    """
    for pid in pids:
        if not is_alive(pid):
            raise StepscopeError(f"there is no process {pid}", _LIST)
    members = _members_of(pids) if pids else _only_job()
    if not members:
        raise StepscopeError(f"no Python runs in process {pids[0]} or below it", _LIST)
    if ranks is not None:
        members = {pid: env for pid, env in members.items() if _number(env.get("RANK")) in ranks}
        if not members:
            raise StepscopeError("none of these ranks runs on this machine", "ask all of them: --ranks all")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise StepscopeError(f"cannot write {folder}: {error.strerror}", "name another folder with -o") from None
    began = time.time_ns()
    document = {
        "schema": SCHEMA,
        "host": socket.gethostname(),
        "taken_unix_ns": began,
        "processes": _watched(members),
        **_devices(),
    }
    n_dumps = _copy_dumps(members, folder, began)
    (folder / PROCESSES).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return folder, len(members), n_dumps


def _devices() -> dict[str, Any]:
    """What the accelerators of this machine report now, as rows of metric, unit, device and value, and their errors."""
    makers, issues = gpus.opened()
    rows: list[Any] = []
    for maker in makers:
        rows += [*maker.quick(), *maker.slow()]
        issues += maker.issues()
        maker.close()
    return {"counters": rows, "issues": issues}


class HangWatch:
    """Asks a recorded job when no step has ended for `limit_s`, once for each time that it stands still.

    The start-up hook in the job writes the end of each step into memory that is shared through `.job/steps-PID`. The
    folders are called `hang-0001` and so on, inside the recording.
    """

    def __init__(self, folder: Path, pid: int, limit_s: float) -> None:
        self._folder, self._pid, self._limit_ns = folder, pid, int(limit_s * 1e9)
        self._asked_at = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        #: What was learnt, or why it was not: issues for meta.json.
        self.issues: list[dict[str, Any]] = []
        self._thread.start()

    def end(self) -> list[dict[str, Any]]:
        """Watch no longer; a job that is being asked is asked to the end. Returns the issues."""
        self._over.set()
        self._thread.join()
        return self.issues

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._limit_ns / 4e9)):
            last = last_step_ns(self._folder)
            if last > self._asked_at and time.monotonic_ns() - last > self._limit_ns:
                self._asked_at = last
                self._ask()

    def _ask(self) -> None:
        name = f"hang-{len(self.issues) + 1:04}"
        text = f"no step ended for {self._limit_ns / 1e9:g} s"
        try:
            ask_job([self._pid], self._folder / name)
            self.issues.append(meta.issue("hang", f"{text}: see stepscope report {name}"))
        except StepscopeError as error:
            self.issues.append(meta.issue("hang", f"{text}, and the job could not be asked: {error.message}"))


def last_step_ns(folder: Path) -> int:
    """When the last step of any process of a recorded job ended, on the monotonic clock; 0 before the first two."""
    last = 0
    for path in (folder / meta.FOLDER).glob("steps-*"):
        try:
            n_steps, ended_ns = _STEP.unpack_from(path.read_bytes())
        except (OSError, struct.error):  # it ended just now, or has only begun
            continue
        last = max(last, ended_ns if n_steps > 1 else 0)
    return last


def _members_of(pids: Sequence[int]) -> dict[int, dict[str, str]]:
    """The Python processes of a job with their environments: ranks if there are any, else all Pythons."""
    tree = list(dict.fromkeys(pid for root in pids for pid in descendants(root)))
    environments = {pid: _environment(pid) for pid in tree if py_spy.is_python(pid)}
    jobs = {tuple(env.get(name, "") for name in _JOB) for env in environments.values() if env.get("RANK")}
    for name in os.listdir("/proc") if jobs else ():  # noqa: PTH208  names alone
        pid = int(name) if name.isdecimal() else None
        if pid is not None and pid not in environments and py_spy.is_python(pid):
            environment = _environment(pid)
            if environment.get("RANK") and tuple(environment.get(key, "") for key in _JOB) in jobs:
                environments[pid] = environment
    with_rank = {pid: env for pid, env in environments.items() if env.get("RANK")}
    if not with_rank:
        return environments
    # A rank's own children (loader workers) inherit its environment: the one that is no child of another counts.
    return {pid: env for pid, env in with_rank.items() if not _has_parent_among(pid, with_rank)}


def _only_job() -> dict[int, dict[str, str]]:
    """The processes with ranks of the one job of this machine. Raises StepscopeError (none, or several jobs)."""
    jobs: dict[tuple[str, ...], list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  names alone
        if name.isdecimal() and py_spy.is_python(int(name)) and (env := _environment(int(name))).get("RANK"):
            jobs.setdefault(tuple(env.get(key, "") for key in _JOB), []).append(int(name))
    if not jobs:
        raise StepscopeError("no process of this machine has a rank", f"name one with --pid; {_LIST}")
    if len(jobs) > 1:
        first = ", ".join(str(pids[0]) for pids in jobs.values())
        raise StepscopeError(f"{len(jobs)} jobs run on this machine", f"name a process of one: --pid {first}")
    return _members_of(next(iter(jobs.values())))


def _has_parent_among(pid: int, members: Mapping[int, Mapping[str, str]]) -> bool:
    rank = members[pid].get("RANK")
    parent = _stat_of(pid)[1]
    while parent > 1:
        if parent in members and members[parent].get("RANK") == rank:
            return True
        parent = _stat_of(parent)[1]
    return False


def _environment(pid: int) -> dict[str, str]:
    text = read_once(f"/proc/{pid}/environ") or ""
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _stat_of(pid: int) -> tuple[str, int, int]:
    """State, parent, and clock ticks of own work of a process; state "X" if it is gone."""
    text = read_once(f"/proc/{pid}/stat")
    stat = None if text is None else process_stat(text.encode())
    if text is None or stat is None:
        return "X", 0, 0
    return text[text.rfind(")") + 2 :][:1], stat.parent, stat.ticks


def _watched(members: Mapping[int, Mapping[str, str]]) -> list[dict[str, Any]]:
    """What each process does: its state, the cores that it used for a second, and the stacks of its threads."""
    before = {pid: _stat_of(pid)[2] for pid in members}
    began = time.monotonic()
    time.sleep(_WATCHED_S)
    after = {pid: _stat_of(pid) for pid in members}
    seconds = time.monotonic() - began
    with ThreadPoolExecutor(_MOST_STACKS) as pool:
        stacks = dict(zip(members, pool.map(_stacks_of, members), strict=True))
    processes = []
    for pid, environment in members.items():
        state, _, ticks = after[pid]
        threads, problem = stacks[pid]
        processes.append({
            "pid": pid,
            **{name: _number(environment.get(variable)) for name, variable in _NUMBERS.items()},
            "command": (read_once(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()[:400],
            "state": state,
            "wait_channel": (read_once(f"/proc/{pid}/wchan") or "").strip("0 \n") or None,
            "cores_used": round((ticks - before[pid]) / _TICKS / seconds, 3) if state != "X" else None,
            "threads": threads,
            "problem": problem,
        })  # fmt: skip
    return sorted(processes, key=lambda one: (one["rank"] is None, one["rank"] or 0, one["pid"]))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _stacks_of(pid: int) -> tuple[list[dict[str, Any]], str | None]:
    """The stacks of a process by thread, with native code where py-spy can read it; or why there are none."""
    spy = py_spy.program()
    if spy is None:
        return [], py_spy.INSTALL
    if py_spy.denied(pid):
        return [], f"its memory may not be read: {py_spy.remedy(pid)}"
    problem = "py-spy gave no answer"
    for native in (["--native"], []):
        command = [spy, "dump", "--json", "--full-filenames", *native, "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_STACK_S, check=False)  # noqa: S603  py-spy
            if done.returncode == 0 and isinstance(threads := json.loads(done.stdout), list):
                return threads, None
            problem = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or problem
        except subprocess.TimeoutExpired:
            problem = f"py-spy gave no answer in {_STACK_S:.0f} s"
        except (OSError, ValueError) as error:
            problem = f"py-spy failed: {error}"
    return [], problem


def _copy_dumps(members: Mapping[int, Mapping[str, str]], folder: Path, began_ns: int) -> int:
    """Copy the dumps of the ranks, fresh ones where the job offers them. Dumps of an earlier job do not count."""
    asked = [rank for pid, env in members.items() if (rank := env.get("RANK")) and _ask_for_dump(rank, env)]
    until = time.monotonic() + _DUMP_S * bool(asked)
    copied = 0
    for pid, environment in members.items():
        rank = environment.get("RANK")
        if rank is None:
            continue
        paths = [Path(_expanded(start, environment) + rank) for start in _starts(environment)]
        while rank in asked and time.monotonic() < until and not any(_is_newer(path, began_ns) for path in paths):
            time.sleep(0.1)
        known = [path for path in paths if _is_newer(path, _started_ns(pid))]
        for path in sorted(known, key=lambda path: path.stat().st_mtime_ns)[-1:]:
            name = path.name if _DUMP_NAME.match(path.name) else f"nccl_trace_rank_{rank}"
            try:
                shutil.copy2(path, folder / name)
                copied += 1
            except OSError as error:
                raise StepscopeError(f"cannot copy {path}: {error.strerror}", "check its owner and mode") from None
    return copied


def _starts(environment: Mapping[str, str]) -> tuple[str, ...]:
    named = tuple(environment[name] for name in _DUMPS if environment.get(name))
    return named or _USUAL_DUMPS


def _expanded(start: str, environment: Mapping[str, str]) -> str:
    return start.replace("~", environment.get("HOME", "~"), 1) if start.startswith("~") else start


def _ask_for_dump(rank: str, environment: Mapping[str, str]) -> bool:
    """Ask for a dump through the pipe that the job opened for that, as PyTorch does; whether there is one."""
    for name in _PIPES:
        if not (start := environment.get(name)):
            continue
        try:
            handle = os.open(f"{start}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO, errno.EACCES):
                continue
            raise
        try:
            os.write(handle, b"1")
        finally:
            os.close(handle)
        return True
    return False


def _is_newer(path: Path, since_ns: int) -> bool:
    try:
        return path.is_file() and path.stat().st_mtime_ns >= since_ns
    except OSError:
        return False


def _started_ns(pid: int) -> int:
    """When a process started, as Unix time in ns; 0 if it is gone."""
    stat = process_stat((read_once(f"/proc/{pid}/stat") or "").encode())
    boot = re.search(r"^btime (\d+)$", read_once("/proc/stat") or "", re.MULTILINE)
    return 0 if stat is None or boot is None else int(boot[1]) * 10**9 + stat.start_ticks * 10**9 // _TICKS
