"""A run as a folder of Parquet files: for other tools, and for stepscope itself, which opens it at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope import store
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.trace import Run  # noqa: TC001  the command line reads the signature at run time
from stepscope.exports import Export, Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace
    from stepscope.exports import Context

_ODD = regex(r"[^A-Za-z0-9._-]+")


def parquet(run: Run, context: Context) -> Folder:
    """A folder for each trace (`rank0`, or named after its file), with a Parquet file per table and meta.json.

    Times are ns from the trace's origin, as everywhere. Source: all tables of the trace. Traces that cannot be read are
    left out, with a note. Raises StepscopeError if none can be read.
    """

    def write(path: str, *, force: bool) -> None:
        store.write_run(_named(run, context), path, force=force)

    return Folder(write)


def _named(run: Run, context: Context) -> Iterator[tuple[str, Trace]]:
    """Each trace under a unique name. Only one is in memory at a time."""
    taken: set[str] = set()
    first: StepscopeError | None = None
    for path in run.paths:
        try:
            trace = run.open_trace(path)
        except StepscopeError as error:
            first = first or error.with_traceback(None)
            context.tell(f"{path} is left out: {error.message}")
            continue
        name = _name(trace, path)
        # On some file systems, names that differ only in case are the same.
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name, trace
    if not taken:
        raise first or StepscopeError("no traces given")


def _name(trace: Trace, path: str) -> str:
    if trace.rank is not None:
        return f"rank{trace.rank}"
    stem = re.split(r"[/\\!]", path.rstrip("/\\"))[-1].split(".", 1)[0]
    return _ODD.sub("_", stem).strip(".") or "trace"


EXPORT = Export("parquet", "a folder of Parquet files, one for each table of each trace", parquet, folder=True)
