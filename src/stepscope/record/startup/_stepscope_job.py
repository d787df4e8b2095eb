"""The start-up hook: Python's garbage collections as a file of totals, and a profile of some steps through torch."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import mmap
import os
import platform
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

#: Collections, time that those took that ended, when the one began that runs now (0 if none does). Units: ns.
_TOTALS = struct.Struct("<qqq")


class Notes:
    """What this process tells the recorder: a line of JSON each, which the system appends whole."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def add(self, **fields: Any) -> None:
        """Tell it; without a word if the folder is gone or full."""
        line = (json.dumps(dict(fields, pid=os.getpid())) + "\n").encode()
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


class Collections:
    """Counts garbage collections and their time in a file that the sampler reads: 24 bytes, in memory of both."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._memory = None  # type: Any
        self._count = self._taken = self._began = 0
        self.open()

    def open(self) -> None:
        """A file of this process' own; again in a forked child, which begins at 0."""
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
        """As gc.callbacks wants it."""
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


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls a function once after a module has been imported, and is gone then."""

    def __init__(self, name: str, call: Any) -> None:
        self._name, self._call = name, call
        self._loader = None  # type: Any

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the others find it, with us as loader."""
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:
                    self._loader, spec.loader = spec.loader, self
                return spec
        sys.meta_path.insert(0, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        loader: importlib.abc.Loader = self._loader
        return loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, which is put back before the module's code can see us."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call(module)


def start(folder: str, steps: str) -> None:
    """Begin to watch this process. `steps` is A:B, or nothing for no profile."""
    notes = Notes(folder)
    collections = Collections(folder)
    gc.callbacks.append(collections.called)
    os.register_at_fork(after_in_child=collections.open)
    notes.add(python=platform.python_version(), executable=sys.executable)

    def on_torch(torch: ModuleType) -> None:
        notes.add(torch=str(getattr(torch, "__version__", "?")), rank=os.environ.get("RANK"))
        trigger = os.environ.get("STEPSCOPE_RECORD_TRIGGER", "")
        if steps or trigger:
            first, last = steps.split(":") if steps else ("0", "0")
            ends = importlib.import_module("_stepscope_steps").Steps(folder, float(trigger or 0))
            os.register_at_fork(after_in_child=ends.open)
            importlib.import_module("_stepscope_torch").watch(torch, notes, int(first), int(last), ends)

    here = os.path.dirname(os.path.abspath(__file__))

    def with_path(torch: ModuleType) -> None:
        sys.path.insert(0, here)
        try:
            on_torch(torch)
        finally:
            sys.path.remove(here)

    sys.meta_path.insert(0, AfterImport("torch", with_path))
