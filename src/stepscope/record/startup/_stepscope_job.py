"""The start-up hook: counts garbage collections, and profiles processes that import torch, paddle or jax."""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import struct
import sys
import time

# Each Python of the job imports this module, so it does not import what takes long (typing, json, importlib.abc).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader  # noqa: F401  named in a comment that types
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

#: Number of finished collections, their time, and when the current one began (0: none runs). Units: ns.
_TOTALS = struct.Struct("<qqq")


_YAMA_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
#: The frameworks that are profiled.
FRAMEWORKS = ("torch", "paddle", "jax")
_ERRORS = (AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)


class HookLog:
    """Messages of this process to the recorder, in `.job/notes`: lines of JSON, appended as a whole."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        #: What counts the steps of a framework, and the times of steps that the job marks itself, if it does.
        self.steps = self.times = None  # type: Any

    def add(self, **fields: Any) -> None:
        """Write a message; nothing happens if the folder is gone or full."""
        fields["pid"] = os.getpid()
        line = ("{%s}\n" % ", ".join('"%s": %s' % (name, _json(value)) for name, value in fields.items())).encode()
        try:
            handle = os.open(os.path.join(self.folder, ".job", "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            return
        try:
            os.write(handle, line)
        except OSError:
            pass
        finally:
            os.close(handle)

    def issue(self, code: str, example: str, severity: str = "warning") -> None:
        """A row of the table `issues`."""
        self.add(code=code, severity=severity, count=1, example=example)


def _json(value: object) -> str:
    """A number, a text, or None as JSON."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return repr(value).lower()
    signs = (sign if " " <= sign <= "~" and sign not in '"\\' else _escaped(sign) for sign in str(value))
    return '"%s"' % "".join(signs)


def _escaped(sign: str) -> str:
    code = ord(sign)
    if code < 1 << 16:
        return "\\u%04x" % code
    return "\\u%04x\\u%04x" % (0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF))


class Collections:
    """Counts garbage collections and their time in a file of 24 bytes, which we and the sampler map into memory."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._memory = None  # type: Any
        self._count = self._taken = self._began = 0
        self.open()

    def open(self) -> None:
        """Create the file of this process; called again in a forked child, which begins at 0."""
        self._count = self._taken = self._began = 0
        self._memory = None
        path = os.path.join(self._folder, ".job", "gc-%d" % os.getpid())
        try:
            with open(path, "w+b") as file:
                file.write(_TOTALS.pack(0, 0, 0))
                file.flush()
                self._memory = mmap.mmap(file.fileno(), _TOTALS.size)
        except OSError:
            return

    def called(self, phase: str, _info: object) -> None:
        """A function for gc.callbacks."""
        if self._memory is None:
            return
        now = time.monotonic_ns()
        if phase == "start":
            self._began = now
        elif self._began:
            self._count += 1
            self._taken += now - self._began
            self._began = 0
        _TOTALS.pack_into(self._memory, 0, self._count, self._taken, self._began)


class AfterImport:
    """A finder and loader that calls a function once after a module has been imported. `calls` has them by module."""

    def __init__(self, calls: dict[str, Any]) -> None:
        self._calls = calls
        self._loaders = {}  # type: dict[str, Any]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec that the other finders give, with us as its loader."""
        if name not in self._calls or name in self._loaders:
            return None
        self._loaders[name] = None
        ours = self  # type: Any
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    self._loaders[name], spec.loader = spec.loader, ours
                return spec
        del self._loaders[name]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        loader = self._loaders[spec.name]  # type: Loader
        return loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, which is restored before the module's code can see us."""
        name = module.__name__
        loader = self._loaders[name]
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        module.__loader__ = loader
        loader.exec_module(module)
        self._calls.pop(name)(module)
        if not self._calls and self in sys.meta_path:
            sys.meta_path.remove(self)


#: What times the steps that the job marks itself, by the folder of the recording.
_own = {}  # type: dict[str, Any]
#: The log of this process, once it is watched.
_watched = []  # type: list[HookLog]


def step() -> None:
    """A turn of the job's own loop begins: what `stepscope.step()` calls."""
    for log in _watched:
        if log.steps is not None:
            log.steps.marked()
        else:
            if log.times is None:
                # Of several threads that begin at once, all get what the first one made.
                log.times = _own.setdefault(log.folder, _own_times(log.folder))
            log.times.ended(3, is_unlike=False)


def _own_times(folder: str) -> Any:
    """Times of steps in a process without a framework, in a file of their own."""
    import atexit

    times = _module("step_times").StepTimes(folder, _module("profile").rank_of(os.environ), ".loop")
    atexit.register(times.flush)
    os.register_at_fork(after_in_child=times.in_child)
    return times


def _module(name: str) -> Any:
    """A module of this folder, which is on the path only meanwhile."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        return importlib.import_module("_stepscope_" + name)
    finally:
        sys.path.remove(here)


def start(folder: str, steps: str, window: str = "") -> None:
    """Start watching this process. `steps` is A:B, `window` two times of the monotonic clock; neither: no profile."""
    log = HookLog(folder)
    _watched.append(log)
    collections = Collections(folder)
    gc.callbacks.append(collections.called)
    os.register_at_fork(after_in_child=collections.open)
    log.add(python="%d.%d.%d" % sys.version_info[:3], executable=sys.executable)
    here = os.path.dirname(os.path.abspath(__file__))

    def after(framework: str) -> Any:
        def call(module: ModuleType) -> None:
            sys.path.insert(0, here)
            try:
                frameworks = importlib.import_module("_stepscope_frameworks")
                frameworks.after_import(framework, module, log, steps, window)
            except _ERRORS as error:  # an unknown version with other functions
                log.issue("profile_failed", "steps of %s cannot be recognised: %r" % (framework, error))
            finally:
                sys.path.remove(here)

        return call

    sys.meta_path.insert(0, AfterImport({name: after(name) for name in FRAMEWORKS}))


def allow_tracer(pid: int, scope: str = _YAMA_SCOPE) -> None:
    """Let a process (the recorder of stacks), and those that it starts, read our memory; forked children do the same.

    Needed where the system (Yama) allows that to a process' parents only.
    """
    try:
        with open(scope, encoding="ascii") as file:
            if file.read().strip() != "1":  # 0 needs nothing, 2 and 3 give nothing
                return
    except OSError:  # a kernel without Yama
        return
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def name() -> None:
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)

    name()
    os.register_at_fork(after_in_child=name)
