"""py-spy: where it is, how it is called, which rights it needs, and one process of it.

It writes its samples into a pipe whose name is removed before py-spy runs, so that nothing is left, whichever process
dies.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.record.system.proc import read_once

if TYPE_CHECKING:
    from collections.abc import Sequence

INSTALL = "py-spy is not installed: pip install py-spy"
#: Output of all threads: when their stacks changed; of threads that held the GIL: how often each stack was sampled.
CHANGES = ("--format", "chrometrace", "--idle")
HOLDERS = ("--format", "raw", "--gil")
#: Samples descendants too. This costs some percent of a core: py-spy searches /proc ten times a second.
TREE = ("--subprocesses",)
_SYS_PTRACE = 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def program() -> str | None:
    """The py-spy that is installed with our Python, or else the first on PATH; None if there is none."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if os.access(own, os.X_OK) else shutil.which("py-spy")


def record_command(spy: str, pid: int, hz: int) -> list[str]:
    """The command that samples a process, without stopping it, until interrupted; output options are to be added."""
    ways = ["--threads", "--nonblocking", "--full-filenames"]
    return [spy, "record", "--pid", str(pid), "--rate", str(hz), *ways]


def is_python(pid: int) -> bool:
    """Whether a process is a Python, by the name of its program or by a libpython that it has loaded."""
    try:
        name = Path(os.readlink(f"/proc/{pid}/exe")).name  # noqa: PTH115  it may be no path
    except OSError:
        return False
    return name.startswith("python") or "/libpython" in (read_once(f"/proc/{pid}/maps") or "")


def denied(pid: int) -> bool:
    """Whether the system forbids us to read the memory of a process that exists."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def remedy(pid: int) -> str:
    """What the user can do to let py-spy read the memory of that process: a sentence with a command."""
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        owner = os.geteuid()
    if os.geteuid() not in {0, owner}:
        return f"it runs as {_user(owner)}: record as that user, or with sudo"
    in_docker = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    if in_docker or (os.geteuid() == 0 and not _has_ptrace()):
        return "start the container with: docker run --cap-add SYS_PTRACE (Kubernetes: capabilities: add: [SYS_PTRACE])"
    scope = (read_once(_YAMA) or "0").strip()
    if scope == "3":
        return f"{_YAMA} is 3, which forbids it until the next boot with another value"
    if scope == "0" or _has_ptrace():
        return "record with sudo"
    return "sudo sysctl kernel.yama.ptrace_scope=0, or record with sudo"


def _has_ptrace() -> bool:
    for line in (read_once("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _SYS_PTRACE & 1)
    return False


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_END_S = 5.0
#: When the last time was taken, as a share of the way from the pipe's opening to its first byte: measured 0.25 to 0.55.
_LAST_TIME = 0.38
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class PySpyProcess:
    """A py-spy process, from its start until its samples are here, with the Unix time from which its times count.

    Its times count from its start, which it does not report. But at its end it opens the pipe, copies its events, takes
    the time of the last ones, formats everything and writes it. So that time is between the opening of the pipe and the
    first byte, somewhat before the middle; with few events the two are close together. Raises OSError.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._pipe = _pipe(folder)
        self._opened_ns = 0
        self._first_ns = 0
        self._waited_ns = 0
        self._data = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.output = bytearray()
        self.started_ns = time.time_ns()
        self.ready_ns: int | None = None
        self.cpu_seconds = 0.0
        us = os.getpid()

        def prepare() -> None:  # in the child: the kernel ends it when we end, even if we are killed
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != us:
                os._exit(1)

        self._voice, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            self.process = subprocess.Popen(  # noqa: S603  py-spy
                [*command, "--output", f"/proc/self/fd/{self._pipe}"],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                pass_fds=(self._pipe,),
                preexec_fn=prepare,  # noqa: PLW1509  no other thread of ours holds a lock that it needs
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
        except OSError:
            os.close(self._pipe)
            os.close(self._voice)
            raise
        finally:
            os.close(theirs)
        self._reader.start()

    @property
    def handle(self) -> int:
        """The end of the pipe that it writes messages to, for `poll`."""
        return self._voice

    def listen(self) -> bool:
        """Read its new messages: that it samples, and at the end how often. Returns whether it still runs."""
        if not self._opened_ns:
            self._waited_ns = _waited_ns(self._reader.native_id)
        while select.select([self.handle], [], [], 0)[0]:
            said = os.read(self.handle, 1 << 14)
            if not said:
                return False
            self.output += said
            if self.ready_ns is None and b"Sampling process" in self.output:
                self.ready_ns = time.time_ns()
        return True

    def interrupt(self) -> None:
        """Have it write its samples and end. One that has not begun to sample is killed."""
        self._waited_ns = _waited_ns(self._reader.native_id)
        # Popen's own method might reap the process, and the resources that it used would be lost.
        os.kill(self.process.pid, signal.SIGKILL if self.ready_ns is None else signal.SIGINT)

    def end(self) -> bytes:
        """Wait for its end, after an interrupt. Returns what it wrote, empty if that was lost."""
        deadline = time.monotonic() + _END_S
        while self.listen() and time.monotonic() < deadline:
            select.select([self.handle], [], [], max(0.0, deadline - time.monotonic()))
        if time.monotonic() >= deadline:
            os.kill(self.process.pid, signal.SIGKILL)
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_seconds = used.ru_utime + used.ru_stime
        self._unblock()
        self._reader.join()
        self.listen()
        os.close(self._voice)
        os.close(self._pipe)
        return bytes(self._data)

    def zero_ns(self, last_us: int) -> int:
        """The Unix time from which its times count, if the last of them is `last_us`."""
        last_ns = self._opened_ns + int(_LAST_TIME * max(0, self._first_ns - self._opened_ns))
        return min(max(last_ns - last_us * 1000, self.started_ns), self.ready_ns or last_ns)

    def _read(self) -> None:
        handle = os.open(f"/proc/self/fd/{self._pipe}", os.O_RDONLY | os.O_CLOEXEC)  # until py-spy opens it too
        now = time.time_ns()
        # Minus the time for which this thread was ready to run but had no core.
        self._opened_ns = now - max(0, _waited_ns(threading.get_native_id()) - self._waited_ns)
        with os.fdopen(handle, "rb", 0) as file:
            while piece := file.read(1 << 18):
                self._first_ns = self._first_ns or time.time_ns()
                self._data += piece

    def _unblock(self) -> None:
        """Stop the reader from waiting for py-spy, which may have ended without opening the pipe."""
        while self._reader.is_alive():
            try:
                os.close(os.open(f"/proc/self/fd/{self._pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError:  # not reading yet
                time.sleep(0.001)
            self._reader.join(0.02)


def _waited_ns(tid: int | None) -> int:
    """For how long a thread of ours has been ready to run but had no core."""
    times = (read_once(f"/proc/self/task/{tid}/schedstat") or "").split()
    return int(times[1]) if len(times) > 1 else 0


def _pipe(folder: Path) -> int:
    """A handle of a new named pipe, whose name is removed. Raises OSError."""
    for place in (folder, Path(tempfile.gettempdir())):  # some file systems have no pipes
        path = place / f".stacks-{os.getpid()}-{time.monotonic_ns()}"
        try:
            os.mkfifo(path, 0o600)
        except OSError:
            if place != folder:
                raise
            continue
        try:
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        finally:
            path.unlink()
    raise FileNotFoundError(folder)
