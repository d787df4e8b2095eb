"""Starts the job and waits for it. Signals, exit code and standard streams pass through, as if we were not there."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Signals that are handed on to the job when someone sends them to us.
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
    signal.SIGWINCH,
)  # fmt: skip
_WATCHED = {*_FORWARDED, signal.SIGCHLD}
#: Python ignores these; the job gets them as the system has them.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


class CannotStart(StepscopeError):
    """The command cannot be run; the exit code is a shell's: 127 not found, 126 not a program."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


def find_program(command: Sequence[str]) -> str:
    """The program file of a command. Raises CannotStart."""
    name = command[0]
    program = shutil.which(name)
    if program is not None:
        return program
    there = os.path.sep in name and os.path.exists(name)  # noqa: PTH110  a name too long is no file, not an error
    if there:
        raise CannotStart(f"cannot run {name}: it is not a program", "make it executable, or name its interpreter", 126)
    raise CannotStart(f"cannot run {name}: no such program", "check the spelling and PATH", 127)


def forwarding() -> set[signal.Signals]:
    """Block signals, so that `wait` gets them one by one. Returns the mask before that, for `start`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    return {number for number in before if isinstance(number, signal.Signals)}


def start(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> int:
    """Run the command with our standard streams and open files. Returns its pid. Raises CannotStart."""
    program = find_program(command)
    try:
        return os.posix_spawn(program, list(command), environment, setsigmask=mask, setsigdef=_RESTORED)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(f"cannot run {command[0]}: {reason}", "check the file and its first line", 126) from None


def wait(pid: int, ours: Mapping[int, Callable[[], None]] | None = None) -> int:
    """Wait until the process has ended. Returns its status as waitpid does. Signals that we get are handed on to it.

    Not handed on are signals of the terminal (Ctrl-C), which sends them to the job too, and those in `ours`, whose
    functions are called.
    """
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        got = signal.sigwaitinfo(_WATCHED)
        if ours is not None and got.si_signo in ours:
            ours[got.si_signo]()
        elif got.si_signo != signal.SIGCHLD and got.si_code <= 0:
            os.kill(pid, got.si_signo)  # it exists, at least as a zombie: nobody but us waits for it


def exit_code_of(status: int) -> int:
    """What a shell would report: the exit code, or 128 and the number of the signal that ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
