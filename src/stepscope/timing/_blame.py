"""What the user's own code raises is told as its own, with its own traceback, and not as a fault of ours."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import FunctionFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

#: Frames of these files stand between our call and the user's code.
_OURS = (str(Path(__file__).parent), contextlib.__file__, str(importlib.__file__), "<frozen importlib")


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Whatever is raised within becomes a FunctionFailed, `what` before it and the exception as its cause.

    So does SystemExit: a function that leaves the process would leave no result and, perhaps, exit code 0.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n", 1)[0]
        raise FunctionFailed(
            f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""),
            "the fault is in that code; what it raised is the cause of this error, with its own traceback",
        ) from error


def own_traceback(error: FunctionFailed) -> str:
    """The traceback of what was raised, without our own frames above it; empty if there is no cause."""
    cause = error.__cause__
    if cause is None:
        return ""
    found = cause.__traceback__
    while found is not None and _ours(found):
        found = found.tb_next
    return "".join(traceback.format_exception(type(cause), cause, found))


def _ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)
