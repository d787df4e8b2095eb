"""`stepscope show`: one table, in any format."""

from __future__ import annotations

import inspect
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import check_target, complain, emit, renderer_for, screen
from stepscope.cli._run import (
    Capture,
    Counters,
    Dask,
    Force,
    MaxBytes,
    MemoryLimit,
    NoProgress,
    Output,
    Requests,
    Strict,
    With,
    Workers,
    opened,
    parsed,
    ranks_done,
    size_of,
)
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from stepscope.analyses import Analysis

# What is not an option of ours may be one of the analysis. Help waits until the analysis is known.
SETTINGS: dict[str, Any] = {
    "context_settings": {"ignore_unknown_options": True},
    "add_help_option": False,
    "short_help": "Print one table: the result of an analysis, or a part of the trace.",
    "options_metavar": "[OPTIONS] [OPTIONS OF THE TABLE]",
}
ROWS_SHOWN = 50
ROWS_OF_PAGE = 1000
_MOST_ROWS = {"terminal": ROWS_SHOWN, "markdown": ROWS_SHOWN, "html": ROWS_OF_PAGE}


def command(
    ctx: typer.Context,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="The name of the table; 'stepscope tables' lists all.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Trace files, folders or patterns.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help='Show only rows that match, as in "total_ns > 1000000".')
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="COLS", help="Combine rows: counts, durations and bytes add up, averages are dropped."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLS",
            help="Sort: measures largest first, the rest smallest first; -COL is largest first, +COL smallest.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help=f"Show N rows; 0 shows all. Default: {ROWS_SHOWN} (table, md), {ROWS_OF_PAGE:,} (html) or all.",
        ),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="COLS", help="Show only these columns, in this order.")] = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="table|html|csv|csv-raw|json|parquet|md",
            help="Choose the format; table, html and md round numbers.",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    counters: Counters = None,
    capture: Capture = None,
    requests: Requests = None,
    kernel_counters: With = None,
    max_bytes: MaxBytes = None,
    workers: Workers = None,
    memory_limit: MemoryLimit = None,
    dask: Dask = None,
    strict: Strict = False,
    no_progress: NoProgress = False,
    help_wanted: Annotated[
        bool, typer.Option("--help", help="Show this message, with the columns and options of TABLE, and exit.")
    ] = False,
) -> None:
    """Print one table: the result of an analysis, or a table of the trace as it was read.

    Separate the columns in COLS by commas; you may leave out their units. Several traces are stacked, and the first
    column says which rank (or trace) a row comes from.
    """
    from stepscope.core.report import Block
    from stepscope.query import tables
    from stepscope.query.map_files import map_over_files

    if help_wanted:
        _help(ctx, table)
        return
    if table is None or not arguments:
        raise typer.BadParameter(
            "TABLE and PATH are needed, as in 'stepscope show kernels trace.json'; 'stepscope tables' lists the tables"
        )
    analysis = tables.find(table)
    paths, options = parsed(analysis, arguments, f"stepscope show {table} --help")
    if not paths:
        raise typer.BadParameter(f"PATH is missing, as in 'stepscope show {table} trace.json'")
    renderer = renderer_for(format_name, output, "table")
    if renderer.table is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    chart = None
    memory_bytes = None if memory_limit is None else size_of(memory_limit, option="--memory-limit")
    left_out: list[str] = []

    def tell_left_out(label: str, error: StepscopeError) -> None:
        left_out.append(label)
        complain(f"note: {label} is left out: {error.message}")

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
        each = map_over_files(run, workers=workers, memory_limit=memory_bytes, dask=dask, progress=tell)
        source = next(iter(run)) if renderer.name == "html" and len(run) == 1 else run  # a figure asks a second time
        frame, schema = tables.collect(source, analysis, where=where, on_missing=tell_left_out, each=each, **options)
        if renderer.name == "html":
            chart = tables.drawn(source, analysis, frame, each=each, **options)
    if group_by:
        frame, schema = tables.grouped(frame, schema, _listed(group_by))
    frame = tables.ordered(frame, schema, _listed(sort))
    most = _MOST_ROWS.get(renderer.name)
    n_shown = most if limit is None and most else limit or frame.height
    is_first = bool(most) and frame.height > n_shown
    note = f"{n_shown:,} of {frame.height:,} rows; --limit 0 shows all:" if is_first else ""
    more = shlex.join([*_without_limit(ctx.obj), "--limit", "0"]) if is_first else ""
    frame = tables.chosen(frame.head(n_shown), _listed(columns))
    frame = _with_whole_commands(frame, run.named) if most else frame

    from stepscope.renderers import Screen

    block = Block(analysis.name, schema, frame, more, note, chart)
    text = renderer.table(block, Screen() if output else screen())
    emit(text, output, force=force, renderer=renderer)
    if strict and left_out:
        msg = f"the job is not complete: {left_out[0]} is left out" + (" and others are" if len(left_out) > 1 else "")
        raise StepscopeError(msg, "without --strict, the files that can be read are enough")


def _without_limit(arguments: Sequence[str]) -> list[str]:
    pairs = zip(arguments, ["", *arguments], strict=False)
    return [word for word, before in pairs if before != "--limit" and word.partition("=")[0] != "--limit"]


def _with_whole_commands(frame: pl.DataFrame, arguments: Sequence[str]) -> pl.DataFrame:
    """For people, who paste commands; as data they are words after `stepscope`."""
    if "command" not in frame.columns:
        return frame
    import polars as pl

    from stepscope.core.report import whole_command

    whole = [whole_command(command, arguments) for command in frame["command"].cast(pl.String)]
    return frame.with_columns(command=pl.Series(whole, dtype=pl.String))


def _listed(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _help(ctx: typer.Context, table: str | None) -> None:
    text = ctx.get_help()
    if table is not None:
        from stepscope.query import tables

        text += "\n\n" + described(tables.find(table))
    emit(text + "\n", None)


def described(analysis: Analysis) -> str:
    """The help of one table: its description, options and columns."""
    import textwrap

    text = inspect.getdoc(analysis.run) or analysis.doc
    usage = [option.usage() for option in analysis.options().values()]
    columns = [(c.name, f"{c.doc} [{c.unit}]" if c.unit else c.doc) for c in analysis.output.columns]
    parts = [f"Table {analysis.name}: {analysis.doc}"]
    parts += [] if text == analysis.doc or text.startswith("The frame") else [textwrap.indent(text, "  ")]
    parts += ["Options of the table:\n" + _pairs(usage)] if usage else []
    return "\n\n".join([*parts, "Columns:\n" + _pairs(columns)])


def _pairs(pairs: list[tuple[str, str]]) -> str:
    room = max(len(left) for left, _ in pairs)
    return "\n".join(f"  {left:<{room}}  {right}".rstrip() for left, right in pairs)
