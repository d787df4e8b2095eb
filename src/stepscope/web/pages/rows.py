"""A frame as a page shows it, with sortable columns and a link to the events of each row, or as a file to download."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import polars.selectors as cs
from starlette.responses import Response

from stepscope import renderers
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.names import shorten, shorten_column
from stepscope.core.patterns import regex
from stepscope.core.report import Block
from stepscope.renderers.cells import cells, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.table import Table


_LONGEST = 2_000
#: Letters of a name where there is room, in one of two columns of the page, and where the page is narrow.
_NAME, _HALF, _NARROW = 52, 27, 22
_FRAME = 44  # characters of a frame in a stack
#: A function with its parameters, as in 'reduce(float*, int)'.
_FUNCTION = regex(r"[\w:~]+\(")


class Head(msgspec.Struct, frozen=True):
    """A column: its name in addresses and for people, what it means, whether it holds numbers, its sorting now."""

    name: str
    label: str
    doc: str
    number: bool
    order: str = ""


class Cell(msgspec.Struct, frozen=True):
    """A value as text, the raw one to sort by, the share to draw of a ratio.

    `full` is the whole of a shortened name, `half` the name in half a page, `short` that on narrow pages; '' if they
    are the text.
    """

    text: str
    number: bool
    raw: float | None = None
    share: float | None = None
    full: str = ""
    half: str = ""
    short: str = ""


class Sheet(msgspec.Struct, frozen=True):
    """Rows of a table ready to be drawn. `hidden` are columns in which no value is known.

    `depths` has how deep each row is, if the rows are a tree in its order: each is followed by those inside it.
    """

    heads: tuple[Head, ...]
    rows: tuple[tuple[tuple[Cell, ...], str | None], ...]
    n_rows: int
    hidden: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()


def sheet(
    frame: pl.DataFrame,
    table: Table,
    *,
    link: Callable[[Mapping[str, Any], Sequence[str]], str | None] | None = None,
    offset: int = 0,
    limit: int | None = None,
    sort: Sequence[str] = (),
    columns: Sequence[str] = (),
    keep_empty: bool = False,
) -> Sheet:
    """Rows `offset` and on, at most `limit`, of the frame; `columns` are those shown (all if none are named).

    `link` makes the address of a row's events from all columns. Columns without values are hidden unless `keep_empty`.
    """
    shown = frame.slice(offset, limit)
    hidden = (
        [] if keep_empty or not frame.height else [s.name for s in frame.iter_columns() if s.null_count() == len(s)]
    )
    if "device" in frame.columns and "device_id" in frame.columns and not keep_empty:
        hidden.append("device_id")
    visible = shown.select(c for c in columns or frame.columns if c not in hidden)
    docs = {column.name: column for column in table.columns}
    numbers = set(visible.select(cs.numeric()).columns)
    order = {word.lstrip("+-"): word[:1] if word[:1] in "+-" else "·" for word in sort}
    heads = []
    for name, label in zip(visible.columns, labels(visible.columns), strict=True):
        column = docs.get(name)
        unit = f" [{column.unit}]" if column is not None and column.unit else ""
        doc = (column.doc if column is not None else "") + unit
        heads.append(Head(name, label, doc, name in numbers, order.get(name, "")))
    made_columns = []
    for series, texts in zip(visible.iter_columns(), cells(visible, table), strict=True):
        column = docs.get(series.name)
        is_ratio = column is not None and column.unit == "ratio"
        number = series.name in numbers
        raw: list[Any] = series.to_list() if number else []
        if series.name == "stack":
            made_columns.append([_stack_cell(text) for text in texts])
        else:
            made_columns.append(_number_cells(texts, raw, is_ratio) if number else _text_cells(texts))
    made = list(zip(*made_columns, strict=True)) if made_columns else []
    targets = [link(row, shown.columns) for row in _plain(shown).iter_rows(named=True)] if link else [None] * len(made)
    depths = shown["depth"].to_list() if {"path", "depth"} <= set(frame.columns) and not sort else ()
    return Sheet(tuple(heads), tuple(zip(made, targets, strict=True)), frame.height, tuple(hidden), tuple(depths))


def _stack_cell(stack: str) -> Cell:
    """Frames from the innermost on: calls differ there, and long cells lose their end. Long frames are shortened."""
    frames = stack.split(";")[::-1]
    whole, text = (" ← ".join(some)[:_LONGEST] for some in (frames, (shorten(one, _FRAME) for one in frames)))
    return Cell(text, number=False, full=whole if whole != text else "")


def _number_cells(texts: Sequence[str], raw: Sequence[Any], is_ratio: bool) -> list[Cell]:  # noqa: FBT001  a fact
    values = [value if value is None or math.isfinite(value) else None for value in raw]
    return [
        Cell(text, number=True, raw=value, share=value if is_ratio and value is not None and 0 <= value <= 1 else None)
        for text, value in zip(texts, values, strict=True)
    ]


def _text_cells(texts: Sequence[str]) -> list[Cell]:
    """Names of kernels are shortened to what differs in this column; the page shortens sentences and stacks."""
    whole = [text if len(text) <= _LONGEST else text[:_LONGEST] + "…" for text in texts]
    names = [text for text in whole if _is_name(text)]
    rooms = (_NAME, _HALF, _NARROW)
    wide, half, narrow = (dict(zip(names, shorten_column(names, room), strict=True)) for room in rooms)
    return [_text_cell(text, wide.get(text, text), half.get(text, ""), narrow.get(text, "")) for text in whole]


def _text_cell(whole: str, text: str, half: str, short: str) -> Cell:
    full, half, short = (other if other != text else "" for other in (whole, half, short))
    return Cell(text, number=False, full=full, half=half, short=short)


def _is_name(text: str) -> bool:
    if " ← " in text or " ~ " in text:  # a stack, a change of predict
        return False
    is_name = "::" in text or "<" in text or " " not in text or _FUNCTION.match(text) is not None
    return is_name and not text.startswith(("[", "→"))


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns((cs.categorical() | cs.enum()).cast(pl.String))


#: Ends of names, each with what it is called and its type.
FORMATS = {
    "csv": ("CSV", "text/csv; charset=utf-8"),
    "json": ("JSON", "application/json"),
    "parquet": ("Parquet", "application/vnd.apache.parquet"),
}
_MOST_TEXT_ROWS = 1_000_000


def known_format(suffix: str) -> str:
    """The suffix, if it is a known format. Raises UnknownName."""
    if suffix not in FORMATS:
        raise UnknownName("format", suffix, FORMATS)
    return suffix


async def attachment(name: str, suffix: str, frame: pl.DataFrame, table: Table) -> Response:
    """All rows as a file named `name`. Raises UnknownName (format), StepscopeError (too long for text)."""
    render = renderers.find(known_format(suffix)).table
    if render is None:
        raise UnknownName("format", suffix, FORMATS)
    if suffix != "parquet" and frame.height > _MOST_TEXT_ROWS:
        raise StepscopeError(f"{frame.height:,} rows are too many for {suffix}", "filter them, or take Parquet")
    content = await asyncio.to_thread(render, Block(name, table, frame), renderers.Screen())
    file = f"{''.join(c if c.isalnum() or c in '-_' else '-' for c in name)}.{suffix}"
    headers = {"content-disposition": f'attachment; filename="{file}"', "cache-control": "no-store"}
    return Response(content, media_type=FORMATS[suffix][1], headers=headers)
