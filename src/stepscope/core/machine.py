"""What this process may use of the machine: cores, memory, and a folder on its disk where the cache is."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import msgspec

from stepscope.core import units
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The variable that tells a worker process how many cores are its own.
SHARE = "STEPSCOPE_THREADS"
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN_BYTES = 4 << 30
#: With fewer rows threads mostly wait for each other (the GIL), which costs what they gain; of more, memory is scarce.
_LEAST_ROWS, _MOST_ROWS = 400_000, 10_000_000
#: How large the cache may be: bytes, and the share of what is free on its disk.
_DEFAULT_BYTES, _DEFAULT_SHARE = 5 * 10**9, 0.1
_NO = ("0", "off", "no", "false")
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
    """Cores for the threads of this process. A worker process of ours has its share of `cores`, in `SHARE`."""
    share = os.environ.get(SHARE, "")
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


def trim() -> None:
    """Return memory that the C library keeps for later to the operating system, if it has such a call."""
    if sys.platform == "linux":
        give = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if give is not None:
            give(0)


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


class CacheFolder(msgspec.Struct, frozen=True):
    """The folder of the cache, and how many bytes it may hold."""

    folder: Path
    limit_bytes: int


class CacheWarning(UserWarning):
    """Says that the cache or an entry of it is not used, and why."""


def is_off() -> bool:
    """Whether STEPSCOPE_CACHE switches the cache off."""
    return os.environ.get("STEPSCOPE_CACHE", "").lower() in _NO


def cache_folder() -> CacheFolder | None:
    """The folder of the cache; None if the cache is switched off, or if other users could write into its folder.

    STEPSCOPE_CACHE_DIR names the folder and STEPSCOPE_CACHE_SIZE its limit. The default limit is 5 GB, or a tenth of
    the free space on that disk if that is less. Raises StepscopeError (not a size).
    """
    if is_off():
        return None
    named = os.environ.get("STEPSCOPE_CACHE_DIR")
    folder = Path(named) if named else _usual_folder()
    if distrust := distrust_of(folder, stat.S_ISDIR):
        advice = "name a folder of your own with STEPSCOPE_CACHE_DIR, or make this one private with chmod 700"
        # Always from this line, so that Python shows it once.
        warnings.warn(f"the cache is not used: {folder} {distrust}; {advice}", CacheWarning, stacklevel=1)
        return None
    size = os.environ.get("STEPSCOPE_CACHE_SIZE")
    if size:
        try:
            return CacheFolder(folder, units.parse_size(size))
        except StepscopeError as error:
            raise StepscopeError(f"STEPSCOPE_CACHE_SIZE: {error.message}", error.hint) from None
    return CacheFolder(folder, min(_DEFAULT_BYTES, int(_DEFAULT_SHARE * _free_disk_bytes(folder))))


def _usual_folder() -> Path:
    """The user's cache folder. Source: XDG Base Directory Specification; on macOS and Windows their own rules."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "stepscope" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "stepscope"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else home / ".cache") / "stepscope"


def _free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of the folder, which need not exist yet."""
    for there in (folder, *folder.parents):
        try:
            return shutil.disk_usage(there).free
        except OSError:
            continue
    return 0


def distrust_of(path: Path, is_kind: Callable[[int], bool]) -> str:
    """Why a file or folder is not to be trusted; empty if only this user can have written it, or if it is missing."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not is_kind(status.st_mode):
        return "is not a folder" if is_kind is stat.S_ISDIR else "is not a regular file"
    if os.name != "posix":
        return ""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written to by other users" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
