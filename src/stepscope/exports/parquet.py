"""A run as a folder of Parquet files: for other tools, and for stepscope itself, which opens it at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope import store
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Run  # noqa: TC001  the command line reads the signature at run time
from stepscope.exports.export import Export, Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Trace
    from stepscope.exports.export import Context

_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def parquet(run: Run, context: Context) -> Folder:
    """A folder with one for each trace (`rank0`, or after its file): a Parquet file per table, and meta.json.

    Times are ns from the trace's origin, as everywhere. Source: the tables of the trace, nothing left out. Traces that
    cannot be read are left out, and told. Raises StepscopeError if that is all of them.
    """

    def write(path: str, *, force: bool) -> None:
        store.write_run(_named(run, context), path, force=force)

    return Folder(write)


def _named(run: Run, context: Context) -> Iterator[tuple[str, Trace]]:
    """Each trace, one in memory at a time, under a name that no other has."""
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
        # Names that differ in nothing but case are one on some file systems.
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
