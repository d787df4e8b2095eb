"""The public verbs as functions: load, load_run, report, show, bench, record. The command line calls the same ones."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.trace import Run, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from stepscope.errors import StepscopeError
    from stepscope.record import Recorded
    from stepscope.reports.model import Report
    from stepscope.timing import Bench

    PathLike = str | Path
    Source = Trace | Run | PathLike


def load(
    path: PathLike,
    *,
    counters: PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Read one file, with the counters recorded beside it (or in the file `counters`).

    `max_bytes` bounds what it may unpack to; `progress` is told the bytes read so far.

    Raises UnknownFormat, CorruptInput, UnsupportedVersion, StepscopeError (unreadable, unpacks to more than allowed).

    >>> trace = load("examples/demo-cpu-decode/rank0.pt.trace.json.gz")
    >>> trace.meta.framework, trace.steps.height, trace.spans["name"].n_unique() > 20
    ('PyTorch', 12, True)
    """
    from stepscope.readers import open_trace

    side = None if counters is None else os.fspath(counters)
    return open_trace(os.fspath(path), counters=side, max_bytes=max_bytes, progress=progress)


def load_run(
    paths: PathLike | Iterable[PathLike],
    *,
    counters: PathLike | None = None,
    max_bytes: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Run:
    """The traces of one job: files, folders, patterns. Each is read when iterated over, none is kept.

    `progress` is told the file and the bytes read of it. Raises StepscopeError if nothing is there.

    >>> [trace.rank for trace in load_run("examples/demo-cpu-2ranks")]
    [0, 1]
    """
    from stepscope.readers import expand

    words = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = expand([os.fspath(word) for word in words])

    def open_one(path: str) -> Trace:
        tell = partial(progress, path) if progress else None
        return load(path, counters=counters, max_bytes=max_bytes, progress=tell)

    return Run(tuple(found), open_one)


def report(source: Source) -> Report:
    """Where the time went and what to do about it: print it, or hand it to a renderer.

    `source` is a trace, a run, or what `load_run` takes. Raises StepscopeError.
    """
    from stepscope.reports.overview import overview

    return replace(overview(_opened(source)), to_text=_plain)


def show(source: Source, name: str, **options: Any) -> pl.DataFrame:
    """The result of an analysis, or a raw table, as a frame; `options` are the analysis' own.

    Of several traces the results are stacked, `rank` first (or `trace`, from the file's name, where ranks are missing
    or not unique). Raises UnknownName (table, option), MissingTable, StepscopeError.
    """
    from stepscope import views

    frame, _ = views.collect(_opened(source), views.find(name), on_missing=_warn, **options)
    return frame


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


def record(
    command: Sequence[str] | None,
    output: PathLike,
    *,
    pid: int | None = None,
    seconds: float | None = None,
    hz: float = 20.0,
    steps: tuple[int, int] | None = (5, 15),
    force: bool = False,
) -> Recorded:
    """Run a command, or join the process `pid`, and record it into the folder `output`, new or empty.

    Counters are taken `hz` times a second: of a command until it ends, of a process that was joined until it ends or
    `seconds` are over. Of Python jobs that train with torch, steps A up to B are profiled; `steps` None leaves that
    out. With `force`, what an earlier recording left in the folder is replaced. Call it on the main thread: it hands
    signals on.

    Raises StepscopeError (the folder is not empty or cannot be written, the command cannot be run, no such process, not
    Linux).
    """
    from stepscope import record as recording

    if pid is not None:
        return recording.attach(pid, output, seconds=seconds, hz=hz, force=force)
    return recording.run(list(command or ()), output, hz=hz, steps=steps, force=force)


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


def _plain_bench(found: Bench) -> str:
    from stepscope import renderers, timing

    draw = renderers.find("terminal").table
    return timing.text(found, lambda block: str(draw(block, renderers.Screen()))) if draw else repr(found)


def _warn(label: str, error: StepscopeError) -> None:
    warnings.warn(f"{label} is left out: {error.message}", stacklevel=4)
