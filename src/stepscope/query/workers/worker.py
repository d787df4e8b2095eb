"""A process that does one thing to one file after the other: a function and items come in as pickles, results go out.

It is not a `multiprocessing` one, which would import the user's own script once more.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
from typing import IO, Any

__all__ = ["COMMAND", "serve"]

#: What the interpreter of a worker runs; its argument is the parent's list of places to import from.
COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stepscope.query.workers.worker import main; main()"
)


def main() -> None:
    """Serve standard input. What is printed meanwhile goes to standard error, as results have standard output."""
    # Cycles are searched for between items: to do so all the time costs a tenth of the work.
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, results)


def serve(tasks: IO[bytes], results: IO[bytes]) -> None:
    """Apply the function that comes first to every item that follows, until there are no more."""
    function: Any = _next(tasks)
    while True:
        try:
            item = _next(tasks)
        except EOFError:
            return
        pickle.dump(function(item), results, protocol=pickle.HIGHEST_PROTOCOL)
        results.flush()
        if not gc.isenabled():
            gc.collect()
            gc.freeze()  # what is left is what was imported: it stays, and is not searched again


def _next(tasks: IO[bytes]) -> object:
    return pickle.load(tasks)  # noqa: S301  from the process that started this one
