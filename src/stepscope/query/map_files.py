"""Applies one function to each file of a run, in this process or in workers, and collects the results."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core import files
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.trace import Results, Run, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

    from stepscope.analyses import Analysis
    from stepscope.analyses.ranks.calls import RankCalls

    OnMissing = Callable[[str, StepscopeError], None]
    #: Applies a function to files, here or in other processes: results in their order.
    Each = Callable[[Callable[[str], Any], Sequence[str]], list[Any]]

#: How many missing ranks are listed by number.
_NAMED = 8


def map_over_files(
    source: Trace | Run,
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    dask: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Each | None:
    """A function that applies another one to the files of a run, with the options of `report`.

    None if there is one trace: the caller then applies its function itself. Raises StepscopeError (memory_limit).
    """
    if isinstance(source, Trace) or (len(source) == 1 and dask is None):
        return None
    from stepscope.core import units
    from stepscope.query import workers as cluster

    limit = None if memory_limit is None else units.parse_size(memory_limit)
    how = cluster.plan(source.paths, workers=workers, memory_limit=limit)
    # Reading in this process reports its own progress, in bytes.
    on_done = progress if dask is not None or how.n_workers else None
    return partial(cluster.mapped, how=how, dask=dask, on_done=on_done)


def calls_of_ranks(
    source: Trace | Run, labels: Sequence[str], *, on_missing: OnMissing, each: Each | None = None
) -> list[RankCalls]:
    """The collective calls of each rank, for analyses of ranks. `labels` are names of the files for messages.

    Only one trace is in memory at a time. A trace is left out and reported to `on_missing` if it cannot be read, has no
    collectives, or repeats another trace's rank; ranks without a file are reported too. Raises the first error if no
    file is left.
    """
    from stepscope.analyses.ranks.groups import missing_of
    from stepscope.analyses.ranks.matching import by_rank

    if isinstance(source, Trace):
        paths: list[str] = [""]
        outcomes: list[RankCalls | StepscopeError] = [_calls_of(source)]
    else:
        paths = list(source.paths)
        read = partial(calls_of_file, source.open_trace)
        outcomes = each(read, paths) if each and len(paths) > 1 else [read(path) for path in paths]
    broken = [(i, outcome) for i, outcome in enumerate(outcomes) if isinstance(outcome, StepscopeError)]
    parts = [outcome for outcome in outcomes if not isinstance(outcome, StepscopeError)]
    if not parts:
        raise broken[0][1] if broken else StepscopeError("no traces given")
    for i, error in broken:
        on_missing(labels[i], error)
    whole, _, left_out = by_rank(parts)
    for label, reason in left_out:
        on_missing(label, StepscopeError(reason))
    there = [*(part.rank for part in parts), *(files.rank_in(paths[i]) for i, _ in broken)]
    world, n_missing, missing = missing_of((r for r in there if r is not None), (part.world_size for part in parts))
    if missing and len(parts) > 1:
        of = f" of {world:,}" if world else ""
        some = ", ".join(map(str, missing[:_NAMED])) + (" …" if n_missing > _NAMED else "")
        who = f"rank {some}{of}" if n_missing == 1 else f"each of {n_missing:,} ranks{of} ({some})"
        on_missing(who, StepscopeError("no file has this rank"))
    return list(whole)


def calls_of_file(open_trace: Callable[[str], Trace], path: str) -> RankCalls | StepscopeError:
    """The collective calls in one file, or the error that says why there are none."""
    try:
        return _calls_of(open_trace(path))
    except StepscopeError as error:
        return error.with_traceback(None)  # its frames would keep the trace alive


def _calls_of(trace: Trace) -> RankCalls | StepscopeError:
    from stepscope.analyses.ranks.calls import rank_calls

    try:
        return rank_calls(trace)
    except StepscopeError as error:
        return error.with_traceback(None)


def results_of(
    source: Trace | Run, analysis: Analysis, options: dict[str, Any], each: Each | None
) -> Iterator[tuple[int | None, pl.DataFrame | StepscopeError]]:
    """Rank and result of each trace. Only one trace is in memory at a time."""
    if isinstance(source, Trace):
        yield _result(source, analysis, options)
        return
    one = partial(_result_of_file, source.open_trace, analysis, options)
    for outcome in each(one, source.paths) if each and len(source.paths) > 1 else map(one, source.paths):
        if isinstance(outcome, _Refused) or (isinstance(outcome, StepscopeError) and len(source.paths) == 1):
            raise outcome.error if isinstance(outcome, _Refused) else outcome
        yield (None, outcome) if isinstance(outcome, StepscopeError) else outcome


class _Refused(msgspec.Struct, frozen=True):
    """An error in the question itself, which no other file would cure."""

    error: StepscopeError


def _result_of_file(
    open_trace: Callable[[str], Trace], analysis: Analysis, options: dict[str, Any], path: str
) -> tuple[int | None, pl.DataFrame | StepscopeError] | StepscopeError | _Refused:
    try:
        trace = open_trace(path)
    except StepscopeError as error:
        return error.with_traceback(None)
    try:
        return _result(trace, analysis, options)
    except StepscopeError as error:
        return _Refused(error.with_traceback(None))


def _result(
    trace: Trace, analysis: Analysis, options: dict[str, Any]
) -> tuple[int | None, pl.DataFrame | StepscopeError]:
    if isinstance(trace, Results) and analysis.name in trace.results:
        if options:
            reason = f"another program computed {analysis.name} of {trace.meta.path}"
            raise StepscopeError(f"{reason}: it takes no options", "choose rows with --where")
        return trace.rank, trace.result(analysis.name)
    try:
        return trace.rank, analysis(trace, **options)
    except MissingTable as error:
        return trace.rank, error.with_traceback(None)  # its frames would keep the trace alive
