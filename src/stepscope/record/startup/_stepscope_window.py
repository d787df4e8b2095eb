"""A time window's clock: a thread of the job that sees to it that a profile begins and ends near its times."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S = 0.02
#: Functions below which the main thread may be inside of torch: what they call is no place to start a profiler.
_INNER = frozenset(("__torch_dispatch__", "__torch_function__", "__del__", "_find_and_load"))


def run(profile: Any, begin_ns: int, ask: Callable[[], None]) -> None:
    """Have `profile` asked, from its first moment on, when it waits for what no step brings."""

    def clock() -> None:
        time.sleep(max(0, begin_ns - time.monotonic_ns()) * 1e-9)
        while profile.is_timed:
            if profile.waits():
                ask()
            time.sleep(_TICK_S)

    # Not by the module threading: the job finds no more threads there than its own.
    _thread.start_new_thread(clock, ())


def on_main_thread(profile: Any) -> Callable[[], None]:
    """A function that has `profile` asked on the main thread, between two instructions of its code.

    The main thread does so when it next runs Python code: no signal interrupts what it waits for.
    """
    import ctypes

    waiting = []  # type: list[bool]

    def called(_: object) -> int:
        waiting.clear()
        if threading.current_thread() is threading.main_thread() and not _is_inside():
            profile.ask()
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(called)

    def ask() -> None:
        # The queue of such calls is short, and everyone's.
        if not waiting:
            waiting.append(True)
            if ctypes.pythonapi.Py_AddPendingCall(callback, None):
                waiting.clear()

    return ask


def _is_inside() -> bool:
    """Whether the thread is inside an import, or in code that torch called."""
    frame = sys._getframe(1)  # type: Any
    while frame is not None:
        if frame.f_code.co_name in _INNER:
            return True
        frame = frame.f_back
    return False
