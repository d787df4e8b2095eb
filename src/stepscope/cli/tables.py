"""`stepscope tables`: lists the tables that can be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import check_target, emit, renderer_for, screen
from stepscope.cli._run import Force, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.report import Block

SETTINGS: dict[str, Any] = {"short_help": "List all tables, or the columns of one."}
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="table|csv|csv-raw|json|md", help="Choose the format.", show_default=False),
]


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="List the columns and options of this table.", show_default=False),
    ] = None,
    format_name: Format = None,
    output: Output = None,
    force: Force = False,
) -> None:
    """List the tables that can be shown; with NAME, the columns, units and options of one."""
    block = _all() if name is None else _one(name)
    write(block, format_name, output, force=force)


def write(block: Block, format_name: str | None, output: str | None, *, force: bool) -> None:
    """Write a small table in the requested format."""
    from stepscope.renderers import Screen

    renderer = renderer_for(format_name, output, "table")
    if renderer.table is None:
        raise typer.BadParameter(f"a table is not written as {renderer.name}", param_hint="--format")
    check_target(output, (), force=force)
    text = renderer.table(block, Screen() if output else screen())
    emit(text, output, force=force, renderer=renderer)


def _all() -> Block:
    from stepscope.api import verbs

    note = "stepscope show NAME PATH... shows one; stepscope tables NAME lists its columns and options"
    return block_of("tables", ("name", "kind", "doc"), verbs.tables().rows(), note)


def _one(name: str) -> Block:
    from stepscope.api import verbs
    from stepscope.query.tables import find

    analysis = find(name)
    rows: list[tuple[str | None, ...]] = list(verbs.schema_of(name).rows())
    for option in analysis.options().values():
        default = None if option.default is None else f"default: {option.default}"
        rows.append((option.flag, "option", option.values or "switch", None, default))
    return block_of(analysis.name, ("name", "kind", "type", "unit", "doc"), rows, analysis.doc)


def block_of(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str | None, ...]], note: str) -> Block:
    """Rows of text as a Block, so that every renderer can write them."""
    import polars as pl

    from stepscope.core.report import Block
    from stepscope.core.table import Column, Table

    table = Table(title, note, tuple(Column(name, pl.String(), name) for name in columns))
    frame = pl.DataFrame(rows, schema=dict(table.dtypes), orient="row")
    return Block(title, table, frame, note=note)
