"""`stepscope report`: where the time went and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepscope.cli._output import check_target, emit, renderer_for, screen
from stepscope.cli._run import Counters, Force, MaxBytes, NoProgress, Output, Paths, With, opened

SETTINGS: dict[str, Any] = {"short_help": "Where the time went and what to do about it."}


def command(
    paths: Paths,
    output: Output = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="terminal|markdown|json|html", help="How to write it.", show_default=False),
    ] = None,
    force: Force = False,
    counters: Counters = None,
    with_: With = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Say where the time went and what to do about it.

    Several files or a folder are the ranks of one job. With -o, the suffix of FILE (.txt .md .json .html) says how to
    write it. HTML is one file with live charts and a timeline of the slowest step, which opens without a server.
    """
    from stepscope import api
    from stepscope.renderers import Screen

    renderer = renderer_for(format_name, output, "terminal")
    if renderer.report is None:
        raise typer.BadParameter(f"a report is not written as {renderer.name}", param_hint="--format")
    with opened(paths, counters=counters, with_=with_, max_bytes=max_bytes, no_progress=no_progress) as run:
        check_target(output, run.paths, force=force)
        if renderer.name == "html":
            from stepscope.web.one_file import report_page

            emit(report_page(run), output, force=force, drawn=False)
            return
        found = api.report(run)
    text = renderer.report(found, Screen() if output else screen())
    emit(text, output, force=force, drawn=renderer.name == "terminal")
