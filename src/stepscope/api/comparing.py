"""Compares runs: reads one trace after the other, observes its processes, and compares or groups them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.files import unpacked_bytes
from stepscope.core.machine import cores
from stepscope.core.trace import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import polars as pl

    from stepscope.comparison import Comparison, Observation
    from stepscope.comparison.memory import Snapshot
    from stepscope.comparison.model import Cause, Effect, Evidence
    from stepscope.core.report import Block, Report
    from stepscope.core.trace import Trace

    #: What each process of a trace did.
    Processes = tuple[Observation, ...]


#: A trace that unpacks to more bytes is opened when it is needed, and nothing is held of the one before.
_MOST_AHEAD = 300_000_000
#: What evidence on an operator's own time ends with.
OWN_TIME = ": own time per cycle"


def split_case(run: Run) -> tuple[Run, Run] | None:
    """The normal and the abnormal runs of a case; None if one of them is missing.

    Raises StepscopeError if the files belong to several cases.
    """
    from stepscope.core.cases import split

    halves = split(run.paths)
    return None if halves is None else (Run(tuple(halves[0]), run.open_trace), Run(tuple(halves[1]), run.open_trace))


def case_of_results(run: Run) -> tuple[Run, Run] | None:
    """The normal and the abnormal run if the files are results of LatencyPrism that form one case; None if not."""
    from stepscope.core.cases import is_of_results

    if not all(map(is_of_results, run.paths)):
        return None
    try:
        return split_case(run)
    except StepscopeError:  # several cases: each has a verdict of its own
        return None


def compare_two_runs(base: Run, other: Run, *, anchor: str | None = None) -> Comparison:
    """The comparison of two runs. One trace is held at a time, or two small ones.

    Raises StepscopeError, MissingTable.
    """
    with _opened_ahead((base, other)) as traces:
        # These take a while, and meanwhile the first trace is being opened.
        from stepscope.comparison import compare_runs
        from stepscope.comparison.matching import as_repeats
        from stepscope.comparison.memory import compare_snapshots
        from stepscope.comparison.serving import compare_batches, judged_at_equal_work, of_batches

        left, held_left, batches_left = _observed(islice(traces, len(base)), anchor or "auto")
        if anchor is None and left and left[0][0].source == "detected":
            anchor = left[0][0].anchor  # so that the other run gets the same kind of cycle, if it has any
        right, held_right, batches_right = _observed(traces, anchor or "auto")
    left, right, remarks = _alike((base, other), left, right)
    facts = {"base": ", ".join(base.paths), "other": ", ".join(other.paths)}
    arguments = _arguments(base, other)
    memory = compare_snapshots(held_left, held_right) if held_left and held_right else None
    has_batches = bool(batches_left and batches_right)
    if left and right:
        result = compare_runs(as_repeats(left), as_repeats(right))
        result = replace(result, notes=(*remarks, *result.notes))
        if memory is not None:
            result = replace(result, notes=(*result.notes, memory.reason, *memory.notes), memory=memory.memory)
        if has_batches:
            result = judged_at_equal_work(result, batches_left, batches_right)
        return _with_gains(replace(result, facts=facts, arguments=arguments), other)
    if has_batches:
        return replace(of_batches(compare_batches(batches_left, batches_right)), facts=facts, arguments=arguments)
    if memory is None:
        hint = "name snapshots for both, or recordings of time for both"
        raise StepscopeError("one run has memory snapshots alone, and the other has none", hint)
    return replace(memory, facts=facts, arguments=arguments)


@contextmanager
def _opened_ahead(runs: tuple[Run, Run]) -> Iterator[Iterator[Trace]]:
    """The traces of both runs in turn. A thread opens each small one, the first at once, others while one is used."""
    files = [(run.open_trace, path) for run in runs for path in run.paths]
    with ThreadPoolExecutor(1) as pool:

        def begun(open_trace: Callable[[str], Trace], path: str) -> Callable[[], Trace]:
            # The end of the block waits for the thread, also after an interrupt: with a big trace that would take long.
            if cores() < 2 or unpacked_bytes(path) > _MOST_AHEAD:
                return partial(open_trace, path)
            return pool.submit(copy_context().run, open_trace, path).result

        def traces(result: Callable[[], Trace]) -> Iterator[Trace]:
            for file in files[1:]:
                trace = result()
                result = begun(*file)
                yield trace
                del trace
            yield result()

        yield traces(begun(*files[0]))


def _observed(run: Iterable[Trace], anchor: str) -> tuple[list[Processes], list[Snapshot], list[pl.DataFrame]]:
    """What is compared of each trace, of each memory snapshot, and of the batches of each trace that has some."""
    from stepscope.comparison import observe
    from stepscope.comparison.memory import observe_snapshot
    from stepscope.comparison.serving import observe_batches

    traces, snapshots, batches = [], [], []
    for trace in run:
        if trace.is_memory_snapshot:
            snapshots.append(observe_snapshot(trace))
        else:
            batches.append(observe_batches(trace))
            try:
                traces.append(observe(trace, anchor=anchor))
            except MissingTable:
                raise
            except StepscopeError:  # nothing repeats, but batches are enough
                if batches[-1].is_empty():
                    raise
        del trace  # before the next one is opened
    return traces, snapshots, [one for one in batches if one.height]


def _alike(
    runs: tuple[Run, Run], left: list[Processes], right: list[Processes]
) -> tuple[list[Processes], list[Processes], list[str]]:
    """What is compared of both runs, by one kind of cycle, and remarks.

    Recordings without a profile are left out if both runs have others with one, so that causes can be told. Else all
    are compared by their timed steps, if all have some.
    """
    from stepscope.comparison import observe
    from stepscope.comparison.matching import has_no_profile, with_profiles

    every = [*left, *right]
    n_timed = sum(map(has_no_profile, every))
    if not left or not right or n_timed in (0, len(every)):
        return left, right, []
    if (profiled := with_profiles(left, right)) is not None:
        which = "recording has no profile and is" if n_timed == 1 else "recordings have no profile and are"
        return *profiled, [f"{n_timed} {which} left out"]
    try:
        timed = [[observe(trace, profile=False) for trace in run] for run in runs]
    except MissingTable:
        return left, right, []
    return (timed[0], timed[1], []) if all(map(has_no_profile, [*timed[0], *timed[1]])) else (left, right, [])


def _with_gains(result: Comparison, other: Run) -> Comparison:
    """The comparison with what it is worth to remove each cause from the other run, if that is a single trace."""
    from stepscope.analyses.critical_path.predictions import gains, replayed_program, tables_of

    step = result.step_time
    questions = [] if step is None or result.step_verdict != "different" else [_undone(c, step) for c in result.causes]
    if len(other) != 1 or step is None or not any(questions):
        return result
    trace = next(iter(other))
    try:
        answers = gains(replayed_program(tables_of(trace)), questions, step.other)
    except MissingTable:  # nothing was recorded of the host
        return result
    causes = (replace(cause, gain=gain) for cause, gain in zip(result.causes, answers, strict=True))
    return replace(result, causes=tuple(causes))


def _undone(cause: Cause, step: Effect) -> tuple[str, ...]:
    """The changes, as `predict` takes them, that give the other run the base's values; none if they are not known."""
    known = [row for row in cause.evidence if row.base is not None and row.other]
    if cause.category == "data_loading" and known:
        return (f"loader: {_times(known[0])}",) if known[0].base else ("loader: hidden",)
    if cause.category == "slow_operator":
        own = [row for row in known if row.text.endswith(OWN_TIME)]
        return tuple(f"op ~ ^{re.escape(row.text.removesuffix(OWN_TIME))}$: {_times(row)}" for row in own)
    if cause.category == "cpu_contention" and known and step.other:
        waited = (known[0].other or 0.0) - (known[0].base or 0.0)
        return (f"host: {step.other / max(step.other - waited, 1.0):.6g}x",) if 0 < waited < step.other else ()
    return ()


def _times(row: Evidence) -> str:
    """How many times as fast the base was, as a change; `removed` of what it did not do."""
    return f"{(row.other or 0.0) / row.base:.6f}x" if row.base else "removed"


def _arguments(base: Run, other: Run) -> tuple[str, ...]:
    """Both runs as words of a command line, with the options of the base."""
    (left, options), (right, _) = (split_options(run.named or run.paths) for run in (base, other))
    paths = (*left, *right) if len(left) == len(right) == 1 else ("--base", *left, "--other", *right)
    return (*paths, *options)


def split_options(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paths, and the options after them, of those of a command line."""
    at = next((i for i, word in enumerate(arguments) if word.startswith("--")), len(arguments))
    return arguments[:at], arguments[at:]


def compare_table(base: Run, other: Run, name: str, *, on_missing: Callable[[str, StepscopeError], None]) -> Block:
    """Any result table of two runs, joined by the keys of its schema; several traces are joined rank by rank.

    `on_missing` is called for each trace without the table. Raises UnknownName, MissingTable, StepscopeError.
    """
    from stepscope.comparison.side_by_side import side_by_side
    from stepscope.core.report import Block
    from stepscope.query import tables

    question = tables.find(name)
    (left, table), (right, _) = (tables.collect(side, question, on_missing=on_missing) for side in (base, other))
    frame, schema = side_by_side(left, right, table)
    return Block(name, schema, frame)


def group(run: Run) -> Report:
    """Groups of processes that do the same, and how each group differs from the largest.

    Raises StepscopeError, MissingTable.
    """
    from stepscope.comparison import observe
    from stepscope.comparison.roles import roles
    from stepscope.reports.roles import roles_report

    return roles_report(roles([process for trace in run for process in observe(trace)]))
