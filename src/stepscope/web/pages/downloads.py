"""A table as a file to keep: CSV, JSON, Parquet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from stepscope import renderers
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.report import Block

if TYPE_CHECKING:
    import polars as pl

    from stepscope.core.schema import Table

__all__ = ["FORMATS", "attachment", "known_format"]

#: Ends of names, each with what it is called and its type.
FORMATS = {
    "csv": ("CSV", "text/csv; charset=utf-8"),
    "json": ("JSON", "application/json"),
    "parquet": ("Parquet", "application/vnd.apache.parquet"),
}
_MOST_TEXT_ROWS = 1_000_000


def known_format(suffix: str) -> str:
    """The end of a name, if it is one of ours. Raises UnknownName."""
    if suffix not in FORMATS:
        raise UnknownName("format", suffix, FORMATS)
    return suffix


async def attachment(name: str, suffix: str, frame: pl.DataFrame, table: Table) -> Response:
    """All rows as a file called after `name`. Raises UnknownName (format), StepscopeError (too long to be text)."""
    render = renderers.find(known_format(suffix)).table
    if render is None:
        raise UnknownName("format", suffix, FORMATS)
    if suffix != "parquet" and frame.height > _MOST_TEXT_ROWS:
        raise StepscopeError(f"{frame.height:,} rows are too many for {suffix}", "filter them, or take Parquet")
    content = await asyncio.to_thread(render, Block(name, table, frame), renderers.Screen())
    file = f"{''.join(c if c.isalnum() or c in '-_' else '-' for c in name)}.{suffix}"
    headers = {"content-disposition": f'attachment; filename="{file}"', "cache-control": "no-store"}
    return Response(content, media_type=FORMATS[suffix][1], headers=headers)
