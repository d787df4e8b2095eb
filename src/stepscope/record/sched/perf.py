"""Context switches of the job's threads from perf events, which need no root: when each thread got and lost a core.

They do not say when a sleeping thread became ready, so waits after a wake-up are not known, but waits after a
preemption are. The kernel's records are stored as they are. Closing the handles, as the end of our process does, ends
the recording.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import struct
from typing import Any

from stepscope.record.system.proc import read_once, threads_of

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "loongarch64": 241, "ppc64le": 319}
_SOFTWARE, _DUMMY = 1, 9
_TID, _TIME, _CPU = 1 << 1, 1 << 2, 1 << 7
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV, _COMM, _TASK, _WATERMARK, _ID_ALL, _USE_CLOCK, _SWITCH = (
    1 << bit for bit in (1, 5, 6, 9, 13, 14, 18, 25, 26)
)
_FLAGS = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV | _COMM | _TASK | _WATERMARK | _ID_ALL | _USE_CLOCK | _SWITCH
_CLOCK_MONOTONIC = 1
#: perf_event_attr of 112 bytes: type, size, config, period, sample type, read format, flags, watermark, then clock id.
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
_CLOEXEC, _SET_OUTPUT = 8, 0x2405
#: For each core a control page and 128 of data: every user may have so many (kernel.perf_event_mlock_kb is 516).
_DATA_PAGES = 128
_HEAD, _TAIL = 1024, 1032
_U64 = struct.Struct("<Q")


def why_not() -> str | None:
    """Why perf events cannot be used, with the remedy; None if they can."""
    try:
        os.close(_open(os.getpid(), -1))
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: OSError) -> str:
    level = (read_once("/proc/sys/kernel/perf_event_paranoid") or "?").strip()
    if error.errno in (errno.EACCES, errno.EPERM):
        if level.lstrip("-").isdigit() and int(level) > 2:
            return "sudo sysctl kernel.perf_event_paranoid=2 (it is " + level + ")"
        return "allow perf_event_open (in a container: --cap-add PERFMON)"
    return f"perf events are not available: {error.strerror or error}"


def _open(pid: int, core: int) -> int:
    """A handle for switches of a thread, and of those that it starts, on a core (-1: on all). Raises OSError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"not known on {platform.machine()}")
    flags = _FLAGS if core >= 0 else _FLAGS & ~_INHERIT
    size = _ATTRIBUTES.size
    watermark = _DATA_PAGES * mmap.PAGESIZE // 4
    attributes = _ATTRIBUTES.pack(
        _SOFTWARE, size, _DUMMY, 0, _TID | _TIME | _CPU, 0, flags, watermark, *(0,) * 6, _CLOCK_MONOTONIC, *(0,) * 4
    )
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    arguments = [ctypes.c_long(value) for value in (number, pid, core, -1, _CLOEXEC)]
    handle = int(call(arguments[0], ctypes.c_char_p(attributes), *arguments[1:]))
    if handle < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return handle


class Switches:
    """Buffers of switches, one for each core."""

    source = "perf"

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._of_core: dict[int, int] = {}
        self._buffers: dict[int, mmap.mmap] = {}

    def facts(self) -> dict[str, Any]:
        """Facts that are needed to decode the records."""
        return {}

    def follow(self, root: int) -> list[tuple[int, int]]:
        """Record switches of all threads of a process and its descendants, and of those that they start.

        (thread, process) of each. Raises OSError.
        """
        threads: dict[int, int] = {}
        while new := {tid: pid for tid, pid in threads_of(root).items() if tid not in threads}:
            for tid in new:
                self._follow(tid)
            threads.update(new)
        return sorted(threads.items())

    def _follow(self, tid: int) -> None:
        for core in range(os.cpu_count() or 1):
            try:
                handle = _open(tid, core)
            except OSError as error:
                if error.errno in (errno.ESRCH, errno.ENODEV):  # the thread is gone, or the core is switched off
                    continue
                raise
            self._handles.append(handle)
            if core in self._of_core:
                fcntl.ioctl(handle, _SET_OUTPUT, self._of_core[core])
            else:
                self._buffers[core] = mmap.mmap(handle, (1 + _DATA_PAGES) * mmap.PAGESIZE)
                self._of_core[core] = handle

    def register(self, poll: select.poll) -> None:
        """Have a poll return when a core's buffer fills up."""
        for handle in self._of_core.values():
            poll.register(handle, select.POLLIN)

    def unregister(self, poll: select.poll) -> None:
        """Undo `register`."""
        for handle in self._of_core.values():
            poll.unregister(handle)

    def read(self) -> list[tuple[int, bytes]]:
        """New records of each core: (core, records)."""
        return [(core, records) for core, buffer in self._buffers.items() if (records := _records(buffer))]

    def new_threads(self, _root: int) -> list[tuple[int, int]]:
        """None: new threads are in the records."""
        return []

    def lost(self) -> dict[int, int]:
        """None: losses are in the records."""
        return {}

    def unread(self) -> int:
        """About how many records are in the buffers."""
        return sum(len(_records(buffer)) for buffer in self._buffers.values()) // 32

    def stop(self) -> None:
        """Nothing to do: the records have their times."""

    def close(self) -> None:
        """End the recording."""
        for buffer in self._buffers.values():
            buffer.close()
        for handle in self._handles:
            os.close(handle)
        self._handles, self._of_core, self._buffers = [], {}, {}


def _records(buffer: mmap.mmap) -> bytes:
    """The records between the buffer's tail and head, which are then removed from the buffer."""
    head, tail = (_U64.unpack_from(buffer, at)[0] for at in (_HEAD, _TAIL))
    size = len(buffer) - mmap.PAGESIZE
    low, high = tail % size, head % size
    start = mmap.PAGESIZE
    if head == tail:
        return b""
    if low < high:
        records = buffer[start + low : start + high]
    else:
        records = buffer[start + low : start + size] + buffer[start : start + high]
    _U64.pack_into(buffer, _TAIL, head)
    return records
