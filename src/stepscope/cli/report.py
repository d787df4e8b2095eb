"""`stepscope report`: where the time went and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import check_target, emit, renderer_for, screen
from stepscope.cli._run import (
    Capture,
    Counters,
    Dask,
    Force,
    MaxBytes,
    MemoryLimit,
    NoProgress,
    Output,
    Paths,
    Requests,
    Strict,
    With,
    Workers,
    opened,
    ranks_done,
    size_of,
)
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.core.report import Report

SETTINGS: dict[str, Any] = {"short_help": "Say where the time went and what to do about it."}


def command(
    paths: Paths,
    output: Output = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="terminal|markdown|json|html", help="Choose the format.", show_default=False),
    ] = None,
    force: Force = False,
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    dask: Dask = None,
    strict: Strict = False,
    counters: Counters = None,
    capture: Capture = None,
    requests: Requests = None,
    kernel_counters: With = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Say where the time went and what to do about it.

    Several files or a folder are the ranks of one job. With -o, the suffix of FILE (.txt .md .json .html) says how to
    write it. HTML is one file with live charts and a timeline of the slowest step, which opens without a server. Files
    that cannot be read are left out and named.
    """
    from stepscope.api import verbs
    from stepscope.renderers import Screen

    renderer = renderer_for(format_name, output, "terminal")
    if renderer.report is None:
        raise typer.BadParameter(f"a report is not written as {renderer.name}", param_hint="--format")
    limit = None if memory_limit is None else size_of(memory_limit, option="--memory-limit")
    with (
        opened(
            paths,
            counters=counters,
            capture=capture,
            requests=requests,
            kernel_counters=kernel_counters,
            max_bytes=max_bytes,
            no_progress=no_progress,
        ) as run,
        ranks_done(wanted=not no_progress) as tell,
    ):
        check_target(output, run.paths, force=force)
        if renderer.name == "html":
            from stepscope.web.pages.single_file import report_page

            emit(report_page(run), output, force=force)
            return
        result = verbs.report(run, workers=workers, memory_limit=limit, dask=dask, progress=tell)
    text = renderer.report(result, Screen() if output else screen())
    emit(text, output, force=force, renderer=renderer)
    if strict:
        _check_whole(result)


def _check_whole(report: Report) -> None:
    kinds = (("n_missing_ranks", "missing"), ("left_out", "not readable"), ("duplicates", "duplicate"))
    facts = [(report.meta.get(key), what) for key, what in kinds]
    counts = [(len(n) if isinstance(n, list) else n, what) for n, what in facts if isinstance(n, (int, list))]
    gaps = [f"{n:,} {what}" for n, what in counts if n]
    if gaps:
        hint = "without --strict, the files that can be read are enough"
        raise StepscopeError(f"the job is not complete: {', '.join(gaps)}", hint)
