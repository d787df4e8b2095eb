"""The public verbs as functions, such as load, report, compare, show. The command line calls these same ones."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError, UnknownName
from stepscope.trace import Run, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import polars as pl

    from stepscope.comparison.model import Outcome
    from stepscope.reports.model import Block, Report
    from stepscope.timing import Bench

    PathLike = str | Path
    Source = Trace | Run | PathLike


def load(
    path: PathLike,
    *,
    counters: PathLike | None = None,
    with_: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Read one file, with the counters recorded beside it (or in the file `counters`).

    `with_` is what measured the hardware counters of single kernels, as Nsight Compute does: they are joined to the
    kernels of this timeline, see `stepscope.stitch`. `max_bytes` bounds what a file may unpack to; `progress` is told
    the bytes read so far.

    Raises UnknownFormat, CorruptInput, UnsupportedVersion, StepscopeError (unreadable, unpacks to more than allowed),
    MissingTable (`with_` and no kernels).

    >>> trace = load("examples/demo-cpu-decode/rank0.pt.trace.json.gz")
    >>> trace.meta.framework, trace.steps.height, trace.spans["name"].n_unique() > 20
    ('PyTorch', 12, True)
    """
    from stepscope.readers import open_trace

    side = None if counters is None else os.fspath(counters)
    trace = open_trace(os.fspath(path), counters=side, max_bytes=max_bytes, progress=progress)
    if with_ is None:
        return trace
    from stepscope.stitch import stitched

    return stitched(trace, with_ if isinstance(with_, Trace) else load(with_, max_bytes=max_bytes))


def load_run(
    paths: PathLike | Iterable[PathLike],
    *,
    counters: PathLike | None = None,
    with_: Trace | PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Run:
    """The traces of one job: files, folders, patterns. Each is read when iterated over, none is kept.

    `counters`, `with_` and `max_bytes` are those of `load`; a file `with_` is read once, at first. `progress` is told
    the file and the bytes read of it. Raises StepscopeError if nothing is there.

    >>> [trace.rank for trace in load_run("examples/demo-cpu-2ranks")]
    [0, 1]
    """
    from stepscope.readers import expand

    words = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = expand([os.fspath(word) for word in words])

    @cache  # of several ranks all are joined to the same
    def joined() -> Trace | None:
        return with_ if with_ is None or isinstance(with_, Trace) else load(with_, max_bytes=max_bytes)

    def open_one(path: str) -> Trace:
        tell = partial(progress, path) if progress else None
        return load(path, counters=counters, with_=joined(), max_bytes=max_bytes, progress=tell)

    return Run(tuple(found), open_one)


def report(source: Source) -> Report:
    """Where the time went and what to do about it: print it, or hand it to a renderer.

    `source` is a trace, a run, or what `load_run` takes. Raises StepscopeError.
    """
    from stepscope.reports.overview import overview

    return replace(overview(_opened(source)), to_text=_plain, to_html=_html, to_figure=_figure)


def compare(
    base: Source | Iterable[PathLike],
    other: Source | Iterable[PathLike] | None = None,
    *,
    counters: PathLike | None = None,
    anchor: str | None = None,
) -> Outcome:
    """Whether two runs differ, by how much and how sure, where the difference went, and what caused it.

    Each side is a trace, a run, or what `load_run` takes: a file, a folder of ranks, several repeats. With one side
    only, it is a folder that holds folders normal… and abnormal…. `anchor` names the function, range or kernel whose
    calls mark the cycles; without it steps do, or what comes again. Print the result, or read `verdict`, `step_time`,
    `parts`, `effects`, `causes`. Units: ns.

    Raises StepscopeError (nothing to compare, no cycles), MissingTable.

    >>> found = compare("examples/demo-cpu-2ranks", "examples/demo-cpu-2ranks")
    >>> found.verdict, found.causes
    ('no_difference', ())
    """
    if other is None:
        run = _as_run(base) if isinstance(base, (Trace, Run)) else load_run(base, counters=counters)
        sides = split_case(run)
        if sides is None:
            hint = "name two runs, the base first, or a folder that holds a folder normal… and a folder abnormal…"
            raise StepscopeError("one run alone: there is nothing to compare it with", hint)
        return compare_sides(*sides, anchor=anchor)

    def run_of(side: Source | Iterable[PathLike]) -> Run:
        return _as_run(side) if isinstance(side, (Trace, Run)) else load_run(side, counters=counters)

    return compare_sides(run_of(base), run_of(other), anchor=anchor)


def split_case(run: Run) -> tuple[Run, Run] | None:
    """The normal and the abnormal runs of a case; None if a side is missing.

    Raises StepscopeError if the files are those of several cases.
    """
    from stepscope.comparison.cases import split

    found = split(run.paths)
    if found is None:
        return None
    return Run(tuple(found[0]), run.open_trace), Run(tuple(found[1]), run.open_trace)


def compare_sides(base: Run, other: Run, *, anchor: str | None = None) -> Outcome:
    """The comparison of two runs. Traces are read one at a time. Raises StepscopeError, MissingTable."""
    from stepscope.compared import compare_runs
    from stepscope.comparison.observe import observe
    from stepscope.comparison.repeats import as_repeats

    left = [observe(trace, anchor=anchor or "auto") for trace in base]
    first = left[0][0]
    if anchor is None and first.source == "detected":
        anchor = first.anchor  # the other run is cut into cycles of the same kind, if it has any
    right = [observe(trace, anchor=anchor or "auto") for trace in other]
    found = compare_runs(as_repeats(left), as_repeats(right))
    facts = {"base": ", ".join(base.paths), "other": ", ".join(other.paths)}
    return replace(found, facts=facts, to_text=_plain_outcome)


def compare_report(base: Run, other: Run) -> Report:
    """The comparison of two runs as a report: what `stepscope compare` shows. Raises StepscopeError, MissingTable."""
    from stepscope.reports.comparison import comparison

    return replace(comparison(compare_sides(base, other)), to_text=_plain, to_html=_html, to_figure=_figure)


def group(source: Source | Iterable[PathLike]) -> Report:
    """Which processes of many do the same, and what sets the others apart. Raises StepscopeError, MissingTable."""
    from stepscope.comparison.observe import observe
    from stepscope.comparison.roles import roles
    from stepscope.reports.roles import roles_report

    run = _as_run(source) if isinstance(source, (Trace, Run)) else load_run(source)
    processes = [process for trace in run for process in observe(trace)]
    return replace(roles_report(roles(processes)), to_text=_plain)


def compare_table(base: Run, other: Run, name: str) -> Block:
    """Any result table of two runs side by side, by its schema's keys; several traces rank by rank.

    Raises UnknownName, MissingTable, StepscopeError.
    """
    from stepscope import views
    from stepscope.comparison.side_by_side import side_by_side
    from stepscope.reports.model import Block

    question = views.find(name)
    (left, table), (right, _) = (views.collect(side, question, on_missing=_warn) for side in (base, other))
    frame, schema = side_by_side(left, right, table)
    return Block(name, schema, frame)


def show(source: Source, name: str, **options: Any) -> pl.DataFrame:
    """The result of an analysis, or a raw table, as a frame; `options` are the analysis' own.

    Of several traces the results are stacked, `rank` first (or `trace`, from the file's name, where ranks are missing
    or not unique). Raises UnknownName (table, option), MissingTable, StepscopeError.
    """
    from stepscope import views

    frame, _ = views.collect(_opened(source), views.find(name), on_missing=_warn, **options)
    return frame


def plot(source: Source, name: str = "steps", **options: Any) -> Any:
    """The chart of a table as a Plotly figure: steps, operators, kernels, communication, memory (by="time"), diff.

    `options` are the analysis' own. Raises UnknownName (table, option; or no chart goes with it), MissingTable.

    >>> figure = plot("examples/demo-cpu-decode", "operators")
    >>> figure.data[0].type
    'bar'
    """
    import plotly.graph_objects as go

    from stepscope import charts

    found = charts.chart_of(name, show(source, name, **options))
    if found is None:
        raise UnknownName("chart", name, charts.NAMES)
    return go.Figure(found)


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
    that holds it; `arguments` are passed in every case, whatever the sweep says of them. {"shape": [16, 32], "dtype":
    "float32", "seed": 0} stands for an array, of the library that the function works with, on `device` (without it, on
    the accelerator if the library sees one). Other objects are passed as they are: both functions get the same.

    `repeats` are measured of each function and case, or as many as fit into `seconds` (1 if neither is given), after
    `warmup` calls. `tolerances` are (relative, absolute) by element type, in place of those of
    torch.testing.assert_close. `progress` is told how many cases are done, and of how many.

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
    found = timing.bench(
        timing.resolve(function),
        None if against is None else timing.resolve(against),
        cases=timing.cases_of(document, arguments or {}, where=where),
        budget=budget,
        tolerances=tolerances,
        device=device,
        progress=progress,
    )
    return replace(found, to_text=_plain_bench)


def export(source: Source, to: str, **options: Any) -> str | bytes:
    """The run in a form that another tool's users know, whole, as the content of a file.

    `to` is the kind (`stepscope export --help` lists them), `options` are its own. Raises UnknownName (kind, option),
    MissingTable, StepscopeError.
    """
    from stepscope import exports

    context = exports.Context(load_run, lambda note: warnings.warn(note, stacklevel=5))
    return exports.find(to)(_as_run(source), context, **options)


def _as_run(source: Source) -> Run:
    opened = _opened(source)
    return opened if isinstance(opened, Run) else Run((opened.meta.path,), lambda _: opened)


def _opened(source: Source) -> Trace | Run:
    return source if isinstance(source, (Trace, Run)) else load_run(source)


def _plain(report: Report) -> str:
    from stepscope import renderers

    render = renderers.find("terminal").report
    return render(report, renderers.Screen()) if render else report.headline


def _html(report: Report) -> str:
    from stepscope.renderers.report_html import fragment

    return fragment(report)


def _figure(report: Report) -> Any:
    import plotly.graph_objects as go

    from stepscope import charts

    return go.Figure(charts.bars([(bar.label, [(p.name, p.ratio) for p in bar.parts]) for bar in report.bars]))


def _plain_outcome(found: Outcome) -> str:
    from stepscope.reports.comparison import comparison

    return _plain(comparison(found))


def _plain_bench(found: Bench) -> str:
    from stepscope import renderers, timing

    draw = renderers.find("terminal").table
    return timing.text(found, lambda block: str(draw(block, renderers.Screen()))) if draw else repr(found)


def _warn(label: str, error: StepscopeError) -> None:
    warnings.warn(f"{label} is left out: {error.message}", stacklevel=4)
