"""The public verbs as functions: load, report, compare, show and so on. The command line calls them too."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stepscope.api import display
from stepscope.core.errors import StepscopeError
from stepscope.core.machine import cores_at_most
from stepscope.core.trace import Run, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import polars as pl

    from stepscope.comparison import Comparison
    from stepscope.core.report import Report
    from stepscope.timing import Bench

    PathLike = str | Path
    Source = Trace | Run | PathLike


def load(
    path: PathLike,
    *,
    counters: PathLike | None = None,
    capture: PathLike | None = None,
    requests: PathLike | None = None,
    kernel_counters: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Read one file, or a folder with one trace, with the counters recorded with it (or in the file `counters`).

    `capture` is a trace in which replayed graphs were captured, or a folder of such traces. `requests` is a file or
    folder of what requests to the engine took. Without them those in the folder of the file are taken.
    `kernel_counters` is a trace or file with hardware counters of single kernels, as Nsight Compute measures them; they
    are joined to the kernels of this timeline. `max_bytes` limits the unpacked size of a file. `progress` is called
    with the number of bytes read so far.

    Raises UnknownFormat, CorruptInput, UnsupportedVersion, StepscopeError (unreadable, unpacks to more than allowed),
    MissingTable (`kernel_counters` and no kernels).

    >>> trace = load("examples/demo-cpu-decode/rank0.pt.trace.json.gz")
    >>> trace.meta.framework, trace.steps.height, trace.spans["name"].n_unique() > 20
    ('PyTorch', 12, True)
    """
    from stepscope.api.loading import loaded
    from stepscope.readers import SideFiles

    side = SideFiles.of(counters, capture, requests)
    return loaded(path, side=side, kernel_counters=kernel_counters, max_bytes=max_bytes, progress=progress)


def load_run(
    paths: PathLike | Iterable[PathLike],
    *,
    counters: PathLike | None = None,
    capture: PathLike | None = None,
    requests: PathLike | None = None,
    kernel_counters: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Run:
    """The traces of one job: files, folders, patterns. Iterating reads each, and keeps none in memory.

    `counters`, `capture`, `requests`, `kernel_counters` and `max_bytes` are those of `load`; a file of kernel counters
    is read once.
    `progress` is called with the file and the bytes read of it. Raises StepscopeError if there is no file.

    >>> [trace.rank for trace in load_run("examples/demo-cpu-2ranks")]
    [0, 1]
    """
    from stepscope.api.loading import FileOpener, named_as
    from stepscope.readers import SideFiles, expand

    names = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = expand([os.fspath(name) for name in names])
    if kernel_counters is not None and not isinstance(kernel_counters, Trace):
        kernel_counters = os.fspath(kernel_counters)
    opener = FileOpener(SideFiles.of(counters, capture, requests), kernel_counters, max_bytes, progress)
    return Run(tuple(files), opener, named_as([os.fspath(name) for name in names], files, opener))


def report(
    source: Source,
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    dask: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Where the time went and what to do about it: print it, or hand it to a renderer.

    `source` is a trace, a run, or what `load_run` takes. Worker processes summarise the files of a run: as many as
    there are cores, or fewer so that they fit into `memory_limit` ('8GB'; by default 80 % of the free memory). One big
    file is decoded by as many. `workers` sets their number; 0 is this process alone. `dask` is the address (or file)
    of a Dask scheduler to use instead, or `local`. The result is the same. `progress` is called with the number of
    files that workers have done and the number of all files. The report names files that cannot be read. The report of
    a case of LatencyPrism (folders normal… and abnormal… with its results) begins with the verdict that `compare`
    gives.

    Raises MissingExtra (dask), StepscopeError.
    """
    from stepscope.query.map_files import map_over_files

    opened = _opened(source)
    each = map_over_files(opened, workers=workers, memory_limit=memory_limit, dask=dask, progress=progress)
    with cores_at_most(workers):
        return reported(opened, each)


def reported(source: Trace | Run, each: Any = None) -> Report:
    """The report of a source, whose files `each` summarises. Raises StepscopeError."""
    from stepscope.reports.overview import overview

    made = overview(source, each=each)
    if isinstance(source, Run) and len(source) > 1:
        from stepscope.api import comparing  # the report of one file needs nothing of comparison

        halves = comparing.case_of_results(source)
        if halves is not None:
            from stepscope.reports.comparison import with_verdict

            made = with_verdict(made, comparing.compare_two_runs(*halves))
    named = (source.meta.path,) if isinstance(source, Trace) else source.named or source.paths
    return display.with_display(replace(made, arguments=named))


def compare(
    base: Source | Iterable[PathLike],
    other: Source | Iterable[PathLike] | None = None,
    *,
    counters: PathLike | None = None,
    anchor: str | None = None,
) -> Comparison:
    """Whether two runs differ, by how much and how surely, where the difference is, and what caused it.

    Each of the two is a trace, a run, or what `load_run` takes: a file, a folder of ranks, several repeats. With
    `base` alone, it is a folder that holds folders normal… and abnormal…. `anchor` names the function, range or kernel
    whose calls mark the cycles; the default is steps, else what repeats. Print the result, or read `verdict`,
    `step_time`, `parts`, `effects`, `causes`. Units: ns.

    Raises StepscopeError (nothing to compare, no cycles), MissingTable.

    >>> found = compare("examples/demo-cpu-2ranks", "examples/demo-cpu-2ranks")
    >>> found.verdict, found.causes
    ('no_difference', ())
    """
    from stepscope.api.comparing import compare_two_runs, split_case

    if other is None:
        run = _as_run(base) if isinstance(base, (Trace, Run)) else load_run(base, counters=counters)
        runs = split_case(run)
        if runs is None:
            hint = "name two runs, the base first, or a folder that holds a folder normal… and a folder abnormal…"
            raise StepscopeError("one run alone: there is nothing to compare it with", hint)
        return display.with_display_of_comparison(compare_two_runs(*runs, anchor=anchor))

    def run_of(side: Source | Iterable[PathLike]) -> Run:
        return _as_run(side) if isinstance(side, (Trace, Run)) else load_run(side, counters=counters)

    return display.with_display_of_comparison(compare_two_runs(run_of(base), run_of(other), anchor=anchor))


def compare_report(base: Run, other: Run) -> Report:
    """The comparison of two runs as a report: what `stepscope compare` shows. Raises StepscopeError, MissingTable."""
    from stepscope.api.comparing import compare_two_runs
    from stepscope.reports.comparison import comparison

    return display.with_display(comparison(compare_two_runs(base, other)))


def show(
    source: Source,
    name: str,
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    dask: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> pl.DataFrame:
    """The result of an analysis, or a raw table, as a frame; `options` are the analysis' own.

    Of several traces the results are stacked, `rank` first (or `trace`, from the file's name, where ranks are missing
    or not unique). Files are read as `report` reads them, by processes or Dask. A warning names what is left out.
    Raises UnknownName (table, option), MissingTable, MissingExtra (dask), StepscopeError.
    """
    from stepscope.query import tables
    from stepscope.query.map_files import map_over_files

    opened = _opened(source)
    each = map_over_files(opened, workers=workers, memory_limit=memory_limit, dask=dask, progress=progress)
    with cores_at_most(workers):
        frame, _ = tables.collect(opened, tables.find(name), on_missing=_warn, each=each, **options)
    return frame


def predict(
    source: Source,
    changes: str | Iterable[str] = (),
    *,
    measured_step: str | None = None,
    on_missing: Callable[[str, StepscopeError], None] | None = None,
) -> pl.DataFrame:
    """How long a step would take with the changes, made together, as in ['class gemm: 2x', 'loader: hidden'].

    Without changes the rows are the standard questions, largest gain first. There is a row for each rank; ranks that
    share collectives are replayed together, and 'ranks: no stragglers' needs them. `measured_step` is the length of a
    step without the profiler, as in '1.9ms', to which all times are scaled. `on_missing` is called for each trace that
    is left out (by default it warns). Units: ns.

    Raises StepscopeError (no such change, or nothing that it changes), MissingTable (nothing recorded of the host).

    >>> predict("examples/demo-cpu-decode", ["op ~ aten::linear: 2x"]).columns[:4]
    ['scenario', 'step_ns', 'predicted_ns', 'gain_ratio']
    """
    from stepscope.api.predicting import predictions_of

    texts = (changes,) if isinstance(changes, str) else tuple(changes)
    return predictions_of(_opened(source), texts, measured_step, on_missing or _warn)


def tables() -> pl.DataFrame:
    """The tables that `show` and `sql` know: a row for each, with its kind and description.

    >>> tables().columns
    ['name', 'kind', 'doc']
    """
    import polars as pl

    from stepscope.query.tables import find, names

    rows = [(name, kind, find(name).doc) for name, kind in names()]
    return pl.DataFrame(rows, schema={"name": pl.String, "kind": pl.String, "doc": pl.String}, orient="row")


def schema_of(name: str) -> pl.DataFrame:
    """The columns of a table: a row for each, with its type, unit and meaning. Raises UnknownName.

    `kind` is 'key' for columns that identify a row, 'measure' for the others.

    >>> schema_of("idle").filter(unit="ns")["name"].first()
    'ts_ns'
    """
    import polars as pl

    from stepscope.query.tables import find

    columns = find(name).output.columns
    rows = [(c.name, "key" if c.key else "measure", str(c.dtype), c.unit, c.doc) for c in columns]
    return pl.DataFrame(rows, schema=dict.fromkeys(("name", "kind", "type", "unit", "doc"), pl.String), orient="row")


def plot(source: Source, name: str = "steps", **options: Any) -> Any:
    """The figure of a table, as a `plotly.graph_objects.Figure`.

    Tables with one are steps, operators, kernels, communication, memory, timeline, device-utilisation, roofline,
    utilisation, python-stacks; and diff, of two traces.
    `options` are the analysis' own; those that the figure needs (by="time" of memory) are set. Raises
    UnknownName (table, option; or a table without figure), MissingTable, StepscopeError (nothing to draw).

    >>> figure = plot("examples/demo-cpu-decode", "operators")
    >>> figure.data[0].type
    'bar'
    """
    return display.plot(_opened(source), name, options, on_missing=_warn)


def sql(
    source: Source,
    query: str,
    *,
    timeout_s: float | None = None,
    memory_limit: str | int | None = None,
    on_missing: Callable[[str, StepscopeError], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_start: Callable[[Callable[[], None]], None] | None = None,
) -> pl.DataFrame:
    """The rows of a SELECT over the tables of all traces of a source, as a frame.

    Tables are called as in `show`, with _ for -, and have the columns `rank` and `trace`; `traces` has a row for each
    trace. The query reads these and nothing else: no files, no network, no settings. `timeout_s` limits its time (300 s
    by default), `memory_limit` (as in '4GB') its memory. `on_missing` is called for each trace that is left out (by
    default it warns). Files that are not in the cache are first read into it, many of them by several processes:
    `progress` is called with the number of files done and of all. `on_start` is called when the query begins, with a
    function that stops it from another thread.

    Raises UnknownName (table, column), MissingTable, StepscopeError (anything but a SELECT, too slow, too big).

    >>> sql("examples/demo-cpu-2ranks", "SELECT rank, count(*) AS n FROM spans GROUP BY rank ORDER BY rank").rows()
    [(0, 22350), (1, 22350)]
    """
    from stepscope.core import units
    from stepscope.query.sql import TIMEOUT_S, run

    opened = _opened(source)
    return run(
        opened,
        query,
        timeout_s=TIMEOUT_S if timeout_s is None else timeout_s,
        memory_bytes=None if memory_limit is None else units.parse_size(memory_limit),
        on_missing=on_missing or _warn,
        prepare=partial(_open_once, opened, progress),
        on_start=on_start,
    )


def _open_once(source: Trace | Run, progress: Callable[[int, int], None] | None) -> None:
    """Let several processes read files into the cache, if there are enough files to be worth it."""
    from stepscope import readers
    from stepscope.api.loading import FileOpener
    from stepscope.query import workers as cluster

    if isinstance(source, Trace) or not isinstance(source.open_trace, FileOpener):
        return

    unread = [path for path in source.paths if not readers.is_at_hand(path, max_bytes=source.open_trace.max_bytes)]
    how = cluster.plan(unread)
    if how.n_workers > 1:
        cluster.mapped(partial(_open_into_cache, source.open_trace), unread, how=how, on_done=progress)


def _open_into_cache(open_trace: Callable[[str], Trace], path: str) -> None:
    """Open a file so that it is in the cache. Errors are ignored here: the next reader reports them."""
    from stepscope import store
    from stepscope.core.errors import StepscopeError

    try:
        open_trace(path)
    except StepscopeError:
        return
    store.wait_until_written()


def bench(
    function: Callable[..., object] | str,
    *,
    against: Callable[..., object] | str | None = None,
    sweep: Mapping[str, Any] | PathLike | None = None,
    arguments: Mapping[str, Any] | None = None,
    warmup: int = 3,
    repeats: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    tolerances: Mapping[str, tuple[float, float]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Bench:
    """Time a function, and compare its time and result with those of the function `against`: print it, or its frame.

    Functions are callables or 'module:function'. `sweep` is a table as in docs/bench.md, or the .toml or .json file
    that holds it; `arguments` are passed in every case and override the sweep. {"shape": [16, 32], "dtype":
    "float32", "seed": 0} becomes an array of the library that the function uses, on `device` (without it, on
    the accelerator if the library sees one). Other objects are passed as they are: both functions get the same.

    `repeats` are measured of each function and case, or as many as fit into `seconds` (1 if neither is given), after
    `warmup` calls. `tolerances` are (relative, absolute) by element type, in place of those of
    torch.testing.assert_close. `progress` is called with the number of cases done and of all cases.

    Units: ns; a speedup above 1 is faster than the reference.
    Raises StepscopeError (functions, sweep, arguments, results of different shape), FunctionFailed (with what the
    function raised as its cause).

    >>> found = bench(sorted, arguments={"0": [3, 1, 2]}, repeats=20)
    >>> found.frame.select("function", "n_repeats").rows()
    [('builtins:sorted', 20)]
    """
    from stepscope import timing

    where = "sweep"
    document: Mapping[str, Any] = {}
    if isinstance(sweep, (str, os.PathLike)):
        where = os.fspath(sweep)
        document = timing.read_sweep(where)
    elif sweep is not None:
        document = sweep
    budget = timing.Budget(warmup, repeats, seconds)
    measured = timing.bench(
        timing.resolve(function),
        None if against is None else timing.resolve(against),
        cases=timing.cases_of(document, arguments or {}, where=where),
        budget=budget,
        tolerances=tolerances,
        device=device,
        progress=progress,
    )
    return replace(measured, to_text=display.bench_text)


def export(source: Source, to: str, *, output: PathLike | None = None, **options: Any) -> str | bytes:
    """The run in the format of another tool, as the content of a file.

    `to` is the kind (`stepscope export --help` lists them), `options` are its own. Of a kind that is a folder
    (parquet), `output` is that folder or its URL, which must not exist yet, and is returned. Raises UnknownName (kind,
    option), MissingTable, WouldOverwrite, StepscopeError.
    """
    from stepscope import exports
    from stepscope.core.errors import StepscopeError

    kind = exports.find(to)
    if kind.folder != (output is not None):
        hint = f"export(source, {to!r}" + (", output=folder)" if kind.folder else ")")
        raise StepscopeError(f"{to} is {'a folder' if kind.folder else 'the content of a file'}", hint)
    context = exports.Context(load_run, lambda note: warnings.warn(note, stacklevel=5))
    content = kind(_as_run(source), context, **options)
    if isinstance(content, exports.Folder):
        target = os.fspath(output or "")
        content.write(target, force=False)
        return target
    return "".join(content.pieces) if isinstance(content, exports.Stream) else content


def _as_run(source: Source) -> Run:
    opened = _opened(source)
    return opened if isinstance(opened, Run) else Run((opened.meta.path,), lambda _: opened)


def _opened(source: Source) -> Trace | Run:
    return source if isinstance(source, (Trace, Run)) else load_run(source)


def _warn(label: str, error: StepscopeError) -> None:
    warnings.warn(f"{label} is left out: {error.message}", stacklevel=4)
