"""`stepscope cache`: lists and clears the cache of opened files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stepscope.cli._output import complain
from stepscope.cli._run import Force, Output
from stepscope.cli.tables import Format, write

if TYPE_CHECKING:
    from stepscope.core.report import Block
    from stepscope.store import CacheFolder

SETTINGS: dict[str, Any] = {"short_help": "List or clear the cache of opened files."}


def command(
    action: Annotated[
        Literal["show", "clear"],
        typer.Argument(metavar="[clear]", help="clear removes every entry that no process is reading."),
    ] = "show",
    format_name: Format = None,
    output: Output = None,
    force: Force = False,
) -> None:
    """List the opened files that are cached, most recently used first; with clear, remove them.

    STEPSCOPE_CACHE_DIR sets the folder. STEPSCOPE_CACHE_SIZE sets the size (default: 5 GB, or a tenth of the free space
    if that is less). STEPSCOPE_CACHE=0 switches the cache off.
    """
    from stepscope import store
    from stepscope.core import units

    where = store.cache_folder()
    if where is None:
        if store.is_off():  # else a warning said why it is not used
            complain("note: STEPSCOPE_CACHE turns the cache off")
        return
    if action == "clear":
        held = sum(entry.stored_bytes for entry in store.entries(where))
        n_removed, n_left = store.clear(where)
        freed = held - sum(entry.stored_bytes for entry in store.entries(where))
        complain(f"{n_removed} removed, {units.size(freed)} freed" + (f"; {n_left} in use" if n_left else ""))
        return
    write(_block(where), format_name, output, force=force)
    if where.folder.exists() and not os.access(where.folder, os.W_OK):
        complain(f"note: {where.folder} cannot be written, so nothing new is cached")


def _block(where: CacheFolder) -> Block:
    import polars as pl

    from stepscope import store
    from stepscope.core import units
    from stepscope.core.report import Block
    from stepscope.core.table import Column, Table

    table = Table(
        "cache",
        "opened files that are cached",
        (
            Column("file", pl.String(), "its path when it was opened", key=True),
            Column("format", pl.String(), "the reader of its format"),
            Column("file_bytes", pl.Int64(), "its size, unpacked", "bytes"),
            Column("kept_bytes", pl.Int64(), "its size in the cache", "bytes"),
            Column("used", pl.String(), "when it was last opened, UTC"),
        ),
    )
    entries = store.entries(where)
    used = pl.Series([entry.used_unix_ns for entry in entries], dtype=pl.Int64).cast(pl.Datetime("ns"))
    rows = [(e.source, e.format, e.source_bytes, e.stored_bytes) for e in entries]
    frame = pl.DataFrame(rows, schema=list(table.dtypes.items())[:4], orient="row").with_columns(
        used=used.dt.strftime("%Y-%m-%d %H:%M:%S")
    )
    stored = sum(entry.stored_bytes for entry in entries)
    note = f"{where.folder}: {units.size(stored)} of {units.size(where.limit_bytes)}"
    return Block("cache", table, frame, note=note)
