"""How many processes should read a job, from the sizes of its files, the free cores and the free memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core import files
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Plan", "cores", "memory_bytes", "plan"]


#: Measured: memory that a process needs before it reads, and per byte of a trace; bytes that it reads per second.
_BASE_BYTES, _PER_BYTE, _BYTES_PER_S = 130_000_000, 0.9, 90_000_000
#: How many seconds it takes to start a process. This process does any work that takes less.
_START_S = 0.6
#: How many times bigger a file gets when unpacked: a compressed file, a store.
_PACKED, _STORED = 12, 25
#: Objects that other processes do not see.
_MINE = "memory://"
_PACKINGS = (".gz", ".zst", ".xz", ".bz2", ".zip")
_REMOTE_BYTES = 100_000_000
_SHARE = 0.8
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """How many worker processes (0: read in this process only) and how much memory each may take."""

    n_workers: int
    worker_bytes: int


def plan(paths: Sequence[str], *, workers: int | None = None, memory_limit: int | None = None) -> Plan:
    """As many workers as there are cores and files, or fewer so that they fit into memory.

    Memory is `memory_limit`, or 80 % of what is free. `workers` asks for a number, 0 for none; memory still bounds it.
    There are no workers if this process reads all files faster than a worker starts.
    """
    if any(path.startswith(_MINE) for path in paths):
        return Plan(0, _BASE_BYTES)
    sizes = [_unpacked_bytes(path) for path in paths]
    need = int(_BASE_BYTES + _PER_BYTE * max(sizes, default=0))
    limit = int(_SHARE * memory_bytes()) if memory_limit is None else memory_limit
    fitting = max(1, (limit - _BASE_BYTES) // need)  # this process is there as well
    wanted = min(cores(), len(paths)) if workers is None else min(workers, len(paths))
    if workers is None and (wanted < 2 or sum(sizes) / _BYTES_PER_S / 2 < _START_S):
        return Plan(0, need)
    return Plan(min(wanted, fitting), need)


def _unpacked_bytes(path: str) -> int:
    """Roughly how many bytes a trace unpacks to. For an object store it is a guess: asking for each file is slow."""
    if files.is_url(path):
        return _REMOTE_BYTES
    try:
        if files.is_folder(path):
            return _STORED * sum(files.size_of(file) for file in files.files_in(path, deep=False))
        size = files.size_of(path)
    except StepscopeError:  # reading it will say what is wrong
        return 0
    return size * (_PACKED if path.lower().endswith(_PACKINGS) else 1)


def cores() -> int:
    """Cores that this process may run on; a container's share of them, if it has one."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _limit("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(mine, round(int(quota) / int(period))))
    return mine


def memory_bytes() -> int:
    """Memory that is free for this process: of the machine, or what its container has left if that is less."""
    free = _free_bytes()
    most, used = _limit("memory.max"), _limit("memory.current")
    if most.isdecimal() and used.isdecimal():
        return max(0, min(free, int(most) - int(used)))
    return free


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        try:
            return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (AttributeError, OSError, ValueError):  # Windows
            return _UNKNOWN_BYTES
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(facts.get("MemAvailable", facts["MemTotal"]).split()[0]) * 1024


def _limit(name: str) -> str:
    """A limit of the control group that this process is in (version 2), empty if there is none."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mine = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), "")
        inner = _CGROUP / mine / name
        return (inner if inner.exists() else _CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
