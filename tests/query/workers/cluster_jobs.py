"""Functions for workers to call: they are imported there by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat, UnknownName


def length(path: str) -> int | StepscopeError:
    """Bytes of the file, or why it cannot be read."""
    try:
        return Path(path).stat().st_size
    except OSError as error:
        return StepscopeError(f"cannot read {path}: {error.strerror}")


def length_of_the_patient(path: str) -> int | StepscopeError:
    """The same after a while."""
    time.sleep(0.05)
    return length(path)


def fragile(path: str) -> int | StepscopeError:
    """The same, but the process dies on the file 'bomb', and the first time on 'mine'."""
    name = Path(path).name
    if name == "bomb" or (name == "mine" and _is_first(path)):
        os.kill(os.getpid(), signal.SIGKILL)
    return length(path)


def moody(path: str) -> int | StepscopeError:
    """The same, but the file 'busy' cannot be read the first time, and 'broken' never."""
    name = Path(path).name
    if name == "broken":
        return CorruptInput("not JSON", path=path)
    if name == "odd":
        return StepscopeError("tried again") if not _is_first(path) else UnknownFormat("no reader knows it")
    return StepscopeError("too busy") if name == "busy" and _is_first(path) else length(path)


def faulty(path: str) -> int:
    """A fault of our own."""
    sys.stdout.write("this is not a result\n")
    return int(path)


def chatty(path: str) -> int | StepscopeError:
    """Writes to standard output, which carries results."""
    sys.stdout.write("hello\n")
    sys.stdout.flush()
    os.write(1, b"raw bytes")
    return length(path)


def refused(path: str) -> StepscopeError:
    """An error whose class is made of other words than its message."""
    return UnknownName("table", path, ["spans", "steps"])


def _is_first(path: str) -> bool:
    mark = Path(f"{path}.seen")
    if mark.exists():
        return False
    mark.touch()
    return True
