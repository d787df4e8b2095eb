"""`stepscope formats`: lists the formats that can be read."""

from __future__ import annotations

from typing import Any

from stepscope.cli._run import Force, Output
from stepscope.cli.tables import Format, block_of, write

SETTINGS: dict[str, Any] = {"short_help": "List the formats that can be read."}


def command(format_name: Format = None, output: Output = None, force: Force = False) -> None:
    """List the formats that can be read, and the tables that each provides."""
    from stepscope.readers import readers

    rows = [(r.name, r.doc, ", ".join(r.provides)) for r in readers()]
    write(block_of("formats", ("name", "doc", "provides"), rows, ""), format_name, output, force=force)
