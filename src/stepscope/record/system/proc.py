"""Files of the kernel, mostly in /proc: reading them often, parsing them, and listing processes and threads.

The parsers are pure functions of bytes. Formats: proc(5) and Linux's own documentation.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK = 1 << 16
#: Files that are left for other uses when the limit of open ones is reached.
_SPARE = 64
_SECTOR = 512
_KIB = 1024
#: What may follow the name on a line that counts something, and how long such a line is at most.
_AFTER_NAME, _LONGEST = (b":", b" ", b"\t"), 64


class Texts(dict[str, bytes]):
    """The contents of files, by path, with the `read` of `OpenFiles`."""

    read = dict.get


class OpenFiles:
    """Files that stay open and are read from their start each time. A missing one reads as None, and is tried again."""

    def __init__(self, most: int | None = None) -> None:
        self._open: dict[str, int] = {}
        self._most = _raised_limit() - _SPARE if most is None else most

    def read(self, path: str) -> bytes | None:
        """The first 64 KiB of the file as it is now; None if it cannot be read."""
        try:
            handle = self._open.get(path)
            if handle is None:
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if len(self._open) >= self._most:  # a job of very many threads
                    with os.fdopen(handle, "rb", 0) as file:
                        return file.read(_BLOCK)
                self._open[path] = handle
            return os.pread(handle, _BLOCK, 0)
        except OSError:
            self.drop(path)
            return None

    def read_all(self, paths: Iterable[str]) -> Texts:
        """The files as they are now, without those that cannot be read."""
        texts, opened = Texts(), self._open
        for path in paths:
            handle = opened.get(path)
            try:
                text = self.read(path) if handle is None else os.pread(handle, _BLOCK, 0)
            except OSError:
                self.drop(path)
                text = self.read(path)
            if text is not None:
                texts[path] = text
        return texts

    def drop(self, path: str) -> None:
        """Close a file that is not needed any more."""
        handle = self._open.pop(path, None)
        if handle is not None:
            os.close(handle)

    def drop_below(self, folder: str) -> None:
        """Close all files of a folder, such as that of a process that ended."""
        for path in [path for path in self._open if path.startswith(folder)]:
            self.drop(path)

    def close(self) -> None:
        """Close all."""
        self.drop_below("")

    def __len__(self) -> int:
        return len(self._open)


def _raised_limit() -> int:
    """How many files we may have open, after raising the limit as far as allowed (but to 64 Ki at most)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 1 << 16 if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def read_once(path: str) -> str | None:
    """The text of a small file, or None if it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with os.fdopen(handle, "rb", 0) as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return None


class ProcessStat(NamedTuple):
    """Of /proc/PID/stat: parent, faults, threads, clock ticks of own work, and when it started, in ticks after boot."""

    parent: int
    minor_faults: int
    major_faults: int
    n_threads: int
    ticks: int
    start_ticks: int


def core_times(text: bytes) -> dict[str, tuple[int, int]]:
    r"""Busy and all clock ticks of `host` and each core, from /proc/stat. Time of guests is busy; iowait is not.

    >>> core_times(b"cpu  10 0 5 80 5 0 0 0 0 0\ncpu0 10 0 5 80 5 0 0 0 0 0\nintr 1")
    {'host': (15, 100), 'cpu0': (15, 100)}
    """
    times = {}
    for line in text.split(b"\n"):
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        ticks = [int(field) for field in fields[:8]]
        idle = ticks[3] + ticks[4]
        times["host" if name == b"cpu" else name.decode()] = (sum(ticks) - idle, sum(ticks))
    return times


def meminfo_bytes(text: bytes) -> dict[str, int]:
    """MemAvailable, Dirty, SwapFree … of /proc/meminfo, in bytes."""
    sizes = {}
    for line in text.split(b"\n"):
        name, colon, rest = line.partition(b":")
        fields = rest.split()
        if colon and len(fields) == 2:
            sizes[name.decode()] = int(fields[0]) * _KIB
    return sizes


def disk_bytes(text: bytes) -> dict[str, tuple[int, int, int]]:
    """Bytes read and written and ms in which requests were open, of each whole disk, from /proc/diskstats."""
    disks: dict[str, tuple[int, int, int]] = {}
    for line in text.split(b"\n"):
        fields = line.split()
        if len(fields) < 14:
            continue
        name = fields[2].decode()
        if name.startswith(("loop", "ram", "dm-", "zram", "md")) or _is_partition(name, disks):
            continue
        disks[name] = (int(fields[5]) * _SECTOR, int(fields[9]) * _SECTOR, int(fields[12]))
    return disks


def _is_partition(name: str, disks: dict[str, tuple[int, int, int]]) -> bool:
    return any(name.startswith(disk) and name != disk and name[len(disk) :].lstrip("p").isdigit() for disk in disks)


def net_bytes(text: bytes) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by each interface, from /proc/net/dev."""
    interfaces = {}
    for line in text.split(b"\n")[2:]:
        name, colon, rest = line.partition(b":")
        fields = rest.split()
        if colon and len(fields) >= 9:
            interfaces[name.strip().decode()] = (int(fields[0]), int(fields[8]))
    return interfaces


def pressure_us(text: bytes) -> dict[str, int]:
    r"""Microseconds in which some, or all, work waited for the resource, from /proc/pressure/*.

    >>> pressure_us(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 total=20\n")
    {'some': 1500, 'full': 20}
    """
    totals = {}
    for line in text.split(b"\n"):
        kind, _, rest = line.partition(b" ")
        _, is_there, total = rest.partition(b"total=")
        if is_there:
            totals[kind.decode()] = int(total)
    return totals


def process_stat(text: bytes) -> ProcessStat | None:
    """The line of /proc/PID/stat, whose second field, the name, may hold anything. None if it is cut short."""
    rest = text[text.rfind(b")") + 1 :].split()
    if len(rest) < 20:
        return None
    return ProcessStat(
        parent=int(rest[1]),
        minor_faults=int(rest[7]),
        major_faults=int(rest[9]),
        n_threads=int(rest[17]),
        ticks=int(rest[11]) + int(rest[12]),
        start_ticks=int(rest[19]),
    )


def n_threads(text: bytes) -> int:
    """Of the line of /proc/PID/stat, the number of threads alone; 0 if it is cut short.

    >>> n_threads(b"7 (a b) S" + b" 0" * 16 + b" 3 0 5 0")
    3
    """
    fields = text[text.rfind(b")") + 1 :].split(None, 18)
    return int(fields[17]) if len(fields) > 18 else 0


def schedstat_ns(text: bytes) -> tuple[int, int]:
    """Time on a core and time waiting for one of a thread, from /proc/PID/task/TID/schedstat. Units: ns."""
    on_core, waiting, _ = text.split()
    return int(on_core), int(waiting)


def cgroup_cpu_stats(text: str) -> list[str]:
    r"""Files that may have a process' CPU limits, best first, from its /proc/PID/cgroup: version 2, then 1.

    In a container the group's own path may not be visible: then the root of what is visible is the container's.

    >>> cgroup_cpu_stats("0::/user.slice/job.scope\n")
    ['/sys/fs/cgroup/user.slice/job.scope/cpu.stat', '/sys/fs/cgroup/cpu.stat']
    """
    paths = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths += [f"/sys/fs/cgroup{folder}/cpu.stat" for folder in (path.rstrip("/"), "")]
        elif "cpu" in controllers.split(","):
            paths += [f"/sys/fs/cgroup/{controllers}{folder}/cpu.stat" for folder in (path.rstrip("/"), "")]
    return list(dict.fromkeys(paths))


def switches(text: bytes) -> tuple[int, int]:
    """Voluntary and involuntary context switches of a thread, from its status file."""
    counts = counted_lines(text, b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches")
    return counts[0], counts[1]


def counted_lines(text: bytes, *names: bytes) -> list[int]:
    """The number after each name, of lines such as `name: 5` or `name 5`; 0 for a name that is not there."""
    lines = b"\n" + text
    return [_number_after(lines, b"\n" + name) for name in names]


def _number_after(lines: bytes, start: bytes) -> int:
    # Files of a hundred lines are read for two of them many times a second, so only those lines are parsed.
    at = lines.find(start)
    while at >= 0:
        rest = lines[at + len(start) : at + len(start) + _LONGEST]
        word = rest.partition(b"\n")[0].lstrip(b": \t")
        if rest[:1] in _AFTER_NAME and (digits := word.split()) and digits[0].isdigit():
            return int(digits[0])
        at = lines.find(start, at + 1)
    return 0


def descendants(root: int) -> list[int]:
    """The process and its children, theirs and so on, as they are now; the root first. Empty if it is gone."""
    if not is_alive(root):
        return []
    pids, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        pids.append(pid)
        try:
            tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  the same
        except OSError:
            continue
        for tid in tids:
            children = read_once(f"/proc/{pid}/task/{tid}/children") or ""
            queue += [int(child) for child in children.split()]
    return pids


def is_alive(pid: int) -> bool:
    """Whether the process runs (or sleeps); one that only waits to be reaped does not."""
    text = read_once(f"/proc/{pid}/stat")
    return text is not None and text[text.rfind(")") + 2 :][:1] not in ("Z", "X", "")


def threads_of(root: int) -> dict[int, int]:
    """The process of each thread of a process and its descendants."""
    processes = {}
    for pid in descendants(root):
        try:
            processes.update({int(tid): pid for tid in os.listdir(f"/proc/{pid}/task")})  # noqa: PTH208  names alone
        except OSError:  # it is gone
            continue
    return processes
