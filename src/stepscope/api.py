"""The public verbs as functions: load, load_run, report, show. The command line calls these same ones."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.trace import Run, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import polars as pl

    from stepscope.errors import StepscopeError
    from stepscope.reports.model import Report

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


def _warn(label: str, error: StepscopeError) -> None:
    warnings.warn(f"{label} is left out: {error.message}", stacklevel=4)
