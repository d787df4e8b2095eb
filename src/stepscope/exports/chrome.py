"""All ranks on one timeline, in true time: Chrome's trace format, which Perfetto and chrome://tracing show.

One rank at a time is in memory: the first reading of each trace solves the clocks, the second one writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.clocks import Clocks, clocks_of
from stepscope.analyses.ranks.matching import job_of
from stepscope.core.errors import StepscopeError
from stepscope.exports._chrome_events import events
from stepscope.exports.export import Export, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.core.trace import Run, Trace
    from stepscope.exports.export import Context

    Ints = NDArray[np.int64]


def chrome(run: Run, context: Context, *, as_recorded: bool = False) -> Stream:
    """All traces on one timeline: spans, counters, arrows, tracks named by rank.

    Clocks of ranks are put right as `show clock-offsets` says, so that no collective ends on one rank before it has
    begun on another; `as_recorded` leaves them as they are. Ranks that share no exchange with others keep their own
    clock. Rows of a thread that overlap, as exchanges that several threads of a library do, are drawn on lines of their
    own.

    Units: us in the file, as the format has it, with ns as decimals.
    Source: Trace Event Format, Google.
    """
    return Stream(_document(run, context, as_recorded=as_recorded))


def _document(run: Run, context: Context, *, as_recorded: bool) -> Iterator[str]:
    held = run.open_trace(run.paths[0]) if len(run.paths) == 1 else None
    placed = [_Placed(run.paths[0], None, None)] if held is not None else _placed(run, context, as_recorded=as_recorded)
    # Clocks that are behind must not make times negative, which viewers do not show.
    begin = min(int(place(np.zeros(1, np.int64))[0]) for place in placed)
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    used: set[int] = set()
    for place in placed:
        trace = held if held is not None else run.open_trace(place.path)
        for piece in events(trace, _number(trace, used), partial(place, since=begin)):
            yield separator + piece
            separator = ",\n"
        del trace
    yield "\n]}\n"


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where a file's times lie: `shift` ns after the origin, then as its rank's clock says."""

    path: str
    shift: int | None
    clock: tuple[Clocks, int] | None

    def __call__(self, local_ns: Ints, *, since: int = 0) -> Ints:
        """True times, from so long after the origin that all share."""
        shown = local_ns + (self.shift or 0)
        if self.clock is None:
            return shown - since
        clocks, rank = self.clock
        true: Ints = np.rint(clocks.true(np.full(shown.size, rank), shown)).astype(np.int64)
        return true - since


def _placed(run: Run, context: Context, *, as_recorded: bool) -> list[_Placed]:
    """The files that can be read, each with its place in time."""
    read: list[tuple[str, str, int | None]] = []
    parts = []
    for path in run.paths:
        try:
            trace = run.open_trace(path)
        except StepscopeError as error:
            context.tell(f"{path} is left out: {error.message}")
            continue
        read.append((path, trace.meta.path, trace.meta.origin_unix_ns))
        try:
            parts += [] if as_recorded else [rank_calls(trace)]
        except StepscopeError as error:
            context.tell(f"{path} keeps its own clock: {error.message}")
        del trace
    if not read:
        raise StepscopeError("none of the traces can be read", "stepscope report tells what is wrong with each")
    if not parts:
        first = min((origin for *_, origin in read if origin is not None), default=0)
        return [_Placed(path, 0 if origin is None else origin - first, None) for path, _, origin in read]
    job = job_of(parts)
    clocks = clocks_of(job)
    index = {part.label: i for i, part in enumerate(job.parts)}
    placed = []
    for path, label, origin in read:
        rank = index.get(label)
        own = job.shifts[rank] if rank is not None else 0
        known = origin is not None and job.origin_unix_ns is not None
        shift = origin - job.origin_unix_ns if known and origin and job.origin_unix_ns else own
        placed.append(_Placed(path, shift, None if rank is None else (clocks, rank)))
    return placed


def _number(trace: Trace, used: set[int]) -> int:
    """A number for the trace that none has yet: its rank, if free."""
    number = trace.rank if trace.rank is not None and trace.rank not in used else max(used, default=-1) + 1
    used.add(number)
    return number


EXPORT = Export(
    name="chrome",
    doc="All ranks on one timeline in true time, as Chrome trace JSON, for Perfetto (-o merged.json.gz).",
    run=chrome,
)
