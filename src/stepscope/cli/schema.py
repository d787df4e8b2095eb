"""`stepscope schema`: the JSON Schema of what a verb prints."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from stepscope.cli._output import emit

SETTINGS: dict[str, Any] = {"short_help": "Print the JSON Schema of a verb's --format json."}


def command(
    verb: Annotated[str, typer.Argument(metavar="VERB", help="A verb that has --format json.")],
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Of show: the table.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON Schema of what a verb prints with --format json; for show, with the columns of TABLE."""
    from stepscope.api.json_schemas import schema

    emit(json.dumps(schema(verb, table), indent=2, ensure_ascii=False) + "\n", None)
