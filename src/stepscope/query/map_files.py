"""What is made of each file of a run, in this process or in others, and put together here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

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

#: Missing ranks that are told by number.
_NAMED = 8

__all__ = ["calls_of_file", "calls_of_ranks", "map_over_files", "results_of"]


def map_over_files(
    source: Trace | Run,
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    dask: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Each | None:
    """What applies a function to the files of a run, in this process or others, as `report` says of these options.

    None where there is one trace: then the function is applied here. Raises StepscopeError (memory_limit).
    """
    if isinstance(source, Trace) or (len(source) == 1 and dask is None):
        return None
    from stepscope.core import units
    from stepscope.query import workers as cluster

    limit = None if memory_limit is None else units.parse_size(memory_limit)
    how = cluster.plan(source.paths, workers=workers, memory_limit=limit)
    # Who reads in this process is told of bytes already.
    on_done = progress if dask is not None or how.n_workers else None
    return partial(cluster.mapped, how=how, dask=dask, on_done=on_done)


def calls_of_ranks(
    source: Trace | Run, labels: Sequence[str], *, on_missing: OnMissing, each: Each | None = None
) -> list[RankCalls]:
    """What analyses of ranks need of each trace; none of these outlives its turn. `labels` says what files are called.

    A trace that cannot be read, holds no exchanges, or is of a rank that another holds at the same time, is reported to
    `on_missing` and left out; so are ranks that no file is for. Raises its error if no file tells anything.
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
    world, missing = missing_of((r for r in there if r is not None), (part.world_size for part in parts))
    if missing and len(parts) > 1:
        of = f" of {world:,}" if world else ""
        some = ", ".join(map(str, missing[:_NAMED])) + (" …" if len(missing) > _NAMED else "")
        who = f"rank {some}{of}" if len(missing) == 1 else f"each of {len(missing):,} ranks{of} ({some})"
        on_missing(who, StepscopeError("no file is for it"))
    return list(whole)


def calls_of_file(open_trace: Callable[[str], Trace], path: str) -> RankCalls | StepscopeError:
    """What analyses of ranks need of one file, or why there is nothing."""
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
    """Rank and result of each trace. No trace outlives its turn: only one is in memory at a time."""
    if isinstance(source, Trace):
        yield _result(source, analysis, options)
        return
    one = partial(_result_of_file, source.open_trace, analysis, options)
    for outcome in each(one, source.paths) if each and len(source.paths) > 1 else map(one, source.paths):
        if isinstance(outcome, _Refused) or (isinstance(outcome, StepscopeError) and len(source.paths) == 1):
            raise outcome.error if isinstance(outcome, _Refused) else outcome
        yield (None, outcome) if isinstance(outcome, StepscopeError) else outcome


@dataclass(frozen=True, slots=True)
class _Refused:
    """What is wrong with the question, and not with a file."""

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
