"""`stepscope` and `python -m stepscope`: the command as a process of its own."""

# ruff: noqa: E402
from __future__ import annotations

import gc

# Imports make few cycles: to search each 700 new objects for them, as usual, costs 45 ms. A report imports 110,000
# objects: to search them once takes 30 ms, 6 % of a small report.
gc.set_threshold(200_000, 20, 20)

import atexit
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, NoReturn

from stepscope.cli import RUNS_CODE, complain_of, main

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Callers of `run`, at most: a module, and what `python -m` runs it with.
_MOST_OUTER = 3


def run() -> NoReturn:
    """Run the command and end with the exit code of `main`."""
    arguments = sys.argv[1:]
    sys.excepthook = lambda *crash: complain_of("".join(traceback.format_exception(*crash)))
    code = main(arguments)
    if _may_leave_at_once(arguments):
        atexit._run_exitfuncs()  # noqa: SLF001
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
        except OSError:  # Python says what is wrong
            sys.exit(code)
        os._exit(code)
    sys.exit(code)


def _may_leave_at_once(arguments: Sequence[str]) -> bool:
    """Whether Python need not take apart what was imported, which takes 20 to 100 ms: no code of others waits for it.

    That may be code that was measured, threads, or what this runs in: a debugger or a profiler, whose frames are
    further out than this module and those of `python -m`.
    """
    frame, n_outer = sys._getframe(1), 0  # noqa: SLF001
    while frame.f_back is not None:
        frame, n_outer = frame.f_back, n_outer + 1
    return (
        n_outer <= _MOST_OUTER
        and sys.gettrace() is None
        and sys.getprofile() is None
        and not sys.flags.inspect
        and not any(verb in arguments[:1] for verb in RUNS_CODE)
        and all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    )


if __name__ == "__main__":
    run()
