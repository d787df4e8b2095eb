"""py-spy: where it is, how it is called, and what we lack if it may not look into a process."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from pathlib import Path

from stepscope.record.system.files import read_once

__all__ = ["CHANGES", "HOLDERS", "INSTALL", "TREE", "denied", "is_python", "look_command", "program", "remedy"]

INSTALL = "py-spy is not installed: pip install 'stepscope[record]'"
#: When the stack of any thread changed; or how often each stack of threads that held the GIL was seen.
CHANGES = ("--format", "chrometrace", "--idle")
HOLDERS = ("--format", "raw", "--gil")
#: And at all that descend from it. Costs some percent of a core: it searches /proc ten times a second.
TREE = ("--subprocesses",)
_SYS_PTRACE = 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def program() -> str | None:
    """The program that comes with our Python, or else the first on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def look_command(spy: str, pid: int, hz: int) -> list[str]:
    """Looks at a process without stopping it, until interrupted; what is to be written is for more words to say."""
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
    """Whether the system does not let us read the memory of a process that is there."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def remedy(pid: int) -> str:
    """What to do so that py-spy may read the memory of that process: a sentence with a command."""
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
