"""`stepscope sql`: a SELECT over the tables of all traces and the results of analyses."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any

import typer

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import (
    Capture,
    Counters,
    Force,
    MaxBytes,
    NoProgress,
    Output,
    Requests,
    opened,
    ranks_done,
    seconds_of,
    size_of,
)
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

SETTINGS: dict[str, Any] = {"short_help": "Query the tables of all ranks in SQL.", "options_metavar": "[OPTIONS]"}
ROWS_SHOWN = 50
_STDIN = "-"
#: How a query begins that stands where a path is expected.
_QUERY = regex(r"\s*(?:select|with|from)\s", re.IGNORECASE)


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar='PATH... "SELECT ..."', help="Files or folders, then the query; - reads it from stdin."),
    ],
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|csv|csv-raw|json|parquet|md",
            help="Choose the format; table and md round numbers.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help=f"Show N rows; 0 shows all. Default: {ROWS_SHOWN} for table and md, else all."
        ),
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Stop the query after this time (90s, 10m).")] = "5m",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Limit the memory of the query (4GB). Default: 80 % of the memory.", show_default=False
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    counters: Counters = None,
    capture: Capture = None,
    requests: Requests = None,
    max_bytes: MaxBytes = None,
    no_progress: NoProgress = False,
) -> None:
    """Query the tables of all traces, and the results of all analyses, in SQL.

    Tables have the names that 'stepscope tables' lists, with _ for -: spans, operators, step_breakdown. Where an
    analysis and a table have the same name, steps is the analysis and trace.steps the table. traces has a row for each
    file. All tables have the columns rank and trace. The query has no access to files, network or settings.
    """
    from stepscope.api import verbs
    from stepscope.query import tables

    if len(arguments) < 2:
        raise typer.BadParameter("PATH and a query are needed, as in 'stepscope sql DIR \"SELECT * FROM steps\"'")
    if _QUERY.match(arguments[0]):
        raise typer.BadParameter("the query comes last, as in 'stepscope sql DIR \"SELECT * FROM steps\"'")
    *paths, text = arguments
    if text == _STDIN:
        text = sys.stdin.read()
    renderer = renderer_for(format_name, output, "table")
    if renderer.table is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    memory_bytes = None if memory_limit is None else size_of(memory_limit, option="--memory-limit")
    seconds = seconds_of(timeout, option="--timeout")
    if not seconds:
        raise typer.BadParameter("the time must be above 0", param_hint="--timeout")
    with (
        opened(
            paths, counters=counters, capture=capture, requests=requests, max_bytes=max_bytes, no_progress=no_progress
        ) as run,
        ranks_done(wanted=not no_progress) as tell,
    ):
        check_target(output, run.paths, force=force)
        frame = verbs.sql(run, text, timeout_s=seconds, memory_limit=memory_bytes, on_missing=_left_out, progress=tell)
    for_people = renderer.name in ("terminal", "markdown")
    shown = ROWS_SHOWN if limit is None and for_people else limit or frame.height
    note = f"{shown:,} of {frame.height:,} rows; --limit 0 shows all" if for_people and frame.height > shown else ""

    from stepscope.core.report import Block
    from stepscope.renderers import Screen

    block = Block("sql", tables.described("sql", frame), frame.head(shown), note=note)
    content = renderer.table(block, Screen() if output else screen())
    emit(content, output, force=force, renderer=renderer)


def _left_out(label: str, error: StepscopeError) -> None:
    complain(f"note: {label} is left out: {error.message}")
