"""Folded stacks: a line for each stack and its number of samples, which flame graphs are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analyses.program.python_stacks import python_stacks
from stepscope.core.errors import MissingTable
from stepscope.core.report import printable
from stepscope.exports import Export, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.core.trace import Run
    from stepscope.exports import Context


def flamegraph(run: Run, context: Context, *, gil: bool = False, idle: bool = False) -> Stream:
    """Python stacks of all traces as folded text: rank (if there is one), process, thread, then frames, by `;`.

    Threads that hardly ran are left out unless `idle`, except the main thread. `gil` counts only samples in which a
    thread held the interpreter's lock. Units: number of samples.
    Source: the input of FlameGraph's flamegraph.pl, which speedscope opens too.
    Raises MissingTable if no trace has Python stacks.
    """
    lines = list(_lines(run, context, gil=gil, idle=idle))
    if not lines:
        hint = "record with stepscope record --stacks"
        raise MissingTable("Python stacks", needed_by="export to flamegraph", hint=hint)
    return Stream(iter(lines))


def _lines(run: Run, context: Context, *, gil: bool, idle: bool) -> Iterator[str]:
    for trace in run:
        try:
            stacks = python_stacks(trace.stack_samples, trace.stacks, trace.tracks, gil=gil, idle=idle)
        except MissingTable as error:
            context.tell(f"{trace.meta.path} is left out: {error.message}")
            continue
        for rank, pid, thread, stack, samples in stacks.drop("share_ratio").iter_rows():
            root = "" if rank is None else f"rank {rank};"
            if samples:
                line = printable(f"{root}process {pid};{(thread or 'thread').replace(';', ',')};{stack} {samples}")
                yield f"{line}\n"


EXPORT = Export(
    name="flamegraph",
    doc="Python stacks as folded text, for flamegraph.pl and speedscope (-o stacks.folded).",
    run=flamegraph,
)
