"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN_BYTES = 4 << 30
#: Work on fewer rows is done before another thread would have begun; of more rows, memory is what is scarce.
_LEAST_ROWS, _MOST_ROWS = 100_000, 10_000_000
_MOST: ContextVar[int | None] = ContextVar("most cores", default=None)


@contextmanager
def cores_at_most(n: int | None) -> Iterator[None]:
    """In the block `cores` is at most n, and at least 1; None changes nothing."""
    before = _MOST.set(_MOST.get() if n is None else max(n, 1))
    try:
        yield
    finally:
        _MOST.reset(before)


def cores() -> int:
    """Cores that this process may use: those it may run on, a container's share, or what the caller allows."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    mine = min(mine, _MOST.get() or mine)
    quota, _, period = _limit("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period):
        return max(1, min(mine, round(int(quota) / int(period))))
    return mine


def cores_for_threads() -> int:
    """Cores for the threads of this process. A worker process of ours has its share of `cores`."""
    share = os.environ.get("POLARS_MAX_THREADS", "")
    return max(1, min(cores(), int(share))) if share.isdecimal() else cores()


class Start(Protocol):
    """Begins `function(...)`. What it returns is called for the result, once, and raises what the function raised."""

    def __call__(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Callable[[], _T]:
        """Where the result is to be had."""


@contextmanager
def threads_for(n_rows: int) -> Iterator[Start]:
    """What runs functions at the same time as the block, whose end waits for them; NumPy and Polars let it.

    With one core, few rows or very many each function runs when its result is asked for: each holds memory of its own.
    """
    if not _LEAST_ROWS <= n_rows <= _MOST_ROWS or (n := cores_for_threads()) < 2:
        yield partial
        return
    with ThreadPoolExecutor(n - 1) as pool:

        def begun(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Callable[[], _T]:
            return pool.submit(function, *args, **kwargs).result

        yield begun


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
