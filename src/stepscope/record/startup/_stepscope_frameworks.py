"""Runs when torch, paddle or jax has been imported: plans a profile, and watches for steps.

A profile of a time window has a clock: a thread that has the profile begin and end near its times.
"""

from __future__ import annotations

import _thread
import atexit
import importlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_TICK_S = 0.02
#: Functions that call torch. While the main thread is inside one, no profiler may start.
_INNER = frozenset(("__torch_dispatch__", "__torch_function__", "__del__", "_find_and_load"))


def after_import(framework: str, module: ModuleType, log: Any, steps: str, window: str) -> None:
    """Report the framework, and watch the process if a profile is wanted (see `_stepscope_job.start`)."""
    files = _module("profile")
    version = str(getattr(module, "__version__", "?"))
    facts = {framework: version}  # type: dict[str, Any]
    rank = files.rank_of(os.environ)
    if rank is not None:
        facts["rank"] = rank
    # Without a profile steps are timed all the same, and dumps of the recorder ask for profiles later.
    settings = files.Settings.of(steps, window) or files.Settings()
    trigger = os.environ.get("STEPSCOPE_RECORD_TRIGGER", "")
    if framework == "torch" and os.environ.get("STEPSCOPE_RECORD_SNAPSHOTS"):
        _snapshots(module, log, files)
    make = {"torch": _torch, "paddle": _paddle, "jax": _jax}[framework]
    made = make(module, log, settings, files, _ends(log.folder, trigger))
    # Reported last: the recorder explains a missing profile by the last messages.
    log.add(**facts)
    if made is None:
        return
    profile, listener = made
    if listener is None:
        log.issue("profile_left_out", "%s %s does not show when a step ends" % (framework, version))
        return
    _at_the_end(profile)
    _at_the_end(listener)
    log.steps = listener
    os.register_at_fork(after_in_child=listener.in_child)
    if settings.is_window:
        ask = profile.ask if profile.any_thread else _on_main_thread(profile)

        def watch_the_time() -> None:
            _run_clock(profile, settings.start_ns, ask)

        watch_the_time()
        os.register_at_fork(after_in_child=watch_the_time)


def _snapshots(torch: ModuleType, log: Any, files: Any) -> None:
    adapter = _module("torch")
    if not adapter.is_helper():
        snapshots = adapter.MemorySnapshots(torch, log, files)
        snapshots.watch()
        _at_the_end(snapshots)


def _torch(torch: ModuleType, log: Any, settings: Any, files: Any, ends: Any) -> Any:
    adapter = _module("torch")
    if adapter.is_helper():
        return None
    profile = files.Profile(adapter.TorchProfiler(torch, log.folder, files), log, settings, ends)
    steps = _module("steps").Steps(profile, log, _module("step_times").make(log.folder, files))
    return profile, steps if adapter.watch(torch, steps) else None


def _paddle(paddle: ModuleType, log: Any, settings: Any, files: Any, ends: Any) -> Any:
    adapter = _module("paddle")
    profiler = adapter.PaddleProfiler(paddle, log.folder, files)
    profile = files.Profile(profiler, log, settings, ends)
    steps = _module("steps").Steps(profile, log, _module("step_times").make(log.folder, files))
    return profile, steps if adapter.watch(paddle, steps, profiler) else None


def _jax(jax: ModuleType, log: Any, settings: Any, files: Any, ends: Any) -> Any:
    adapter = _module("jax")
    profiler = adapter.JaxProfiler(jax, log.folder, files)
    profile = files.Profile(profiler, log, settings, ends)
    steps = _module("steps").Steps(profile, log, _module("step_times").make(log.folder, files))
    return profile, steps if adapter.watch(jax, steps, profiler) else None


def _ends(folder: str, trigger: str) -> Any:
    """Reports the ends of steps to a recorder that makes dumps; None if it makes none."""
    if not trigger:
        return None
    ends = _module("step_messages").StepEnds(folder, float(trigger))
    os.register_at_fork(after_in_child=ends.open)
    return ends


def _at_the_end(profile: Any) -> None:
    """Have the profile finished when the process ends; forked children of multiprocessing skip atexit."""
    atexit.register(profile.at_exit)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        finalize = util.Finalize
        util.register_after_fork(profile, lambda it: finalize(None, it.at_exit, exitpriority=100))


def _module(name: str) -> ModuleType:
    """A module of this folder, which is on the path while a framework's import ends."""
    return importlib.import_module("_stepscope_" + name)


def _run_clock(profile: Any, begin_ns: int, ask: Callable[[], None]) -> None:
    """From the window's start on, call `ask` whenever the profile waits and no step comes."""

    def clock() -> None:
        time.sleep(max(0, begin_ns - time.monotonic_ns()) * 1e-9)
        while profile.is_timed:
            if profile.waits():
                ask()
            time.sleep(_TICK_S)

    # Not with the module threading: the job must find only its own threads there.
    _thread.start_new_thread(clock, ())


def _on_main_thread(profile: Any) -> Callable[[], None]:
    """A function that has `profile.ask` called on the main thread, between two instructions of its code.

    The main thread does so when it next runs Python code; no signal interrupts its system calls.
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
        # The queue of such calls is short and shared by the whole process.
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
