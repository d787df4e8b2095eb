"""Tables of markdown as the published reports have them: columns that look like numbers are told by their cells.

A column whose cells all spell numbers is read, written anew and set by its decimal points; any other stays as it is,
at the left. A number with a comma in it does not count as one.
Source: the rules of tabulate 0.9.0, format `pipe`, found from its output.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Cell = str | int | float

#: A heading has as many blanks more than its text.
_ROOM = 2
_NOT_FINITE = ("inf", "-inf", "nan")


def pipe_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], number: str = "g") -> str:
    """A table in markdown. Numbers that are not whole are written in the format `number`."""
    columns = [_column([row[i] for row in rows], number) for i in range(len(headings))]
    lines: list[list[str]] = [[] for _ in range(len(rows) + 2)]
    for heading, (cells, numeric) in zip(headings, columns, strict=True):
        width = max([len(heading) + _ROOM, *map(len, cells)])
        set_text = str.rjust if numeric else str.ljust
        lines[0].append(f" {set_text(heading, width)} ")
        lines[1].append("-" * (width + 1) + ":" if numeric else ":" + "-" * (width + 1))
        for line, cell in zip(lines[2:], cells, strict=True):
            line.append(f" {set_text(cell, width)} ")
    return "\n".join(f"|{'|'.join(line)}|" for line in lines)


def _column(cells: Sequence[Cell], number: str) -> tuple[list[str], bool]:
    """The cells as text, those of numbers with their points below each other; and whether they are numbers."""
    if not cells or not all(_is_number(cell) for cell in cells):
        return [str(cell).strip() for cell in cells], False
    if all(_is_whole(cell) for cell in cells):
        return [str(cell) for cell in cells], True
    texts = [format(float(cell), number) for cell in cells]
    behind = [_behind_point(text) for text in texts]
    most = max(behind)
    return [text + " " * (most - n) for text, n in zip(texts, behind, strict=True)], True


def _is_whole(cell: Cell) -> bool:
    if isinstance(cell, str):
        try:
            int(cell)
        except ValueError:
            return False
        return True
    return isinstance(cell, int)


def _is_number(cell: Cell) -> bool:
    if not isinstance(cell, str):
        return True
    try:
        value = float(cell)
    except ValueError:
        return False
    return math.isfinite(value) or cell.lower() in _NOT_FINITE


def _behind_point(text: str) -> int:
    """Signs behind the point, or else behind the e; −1 if there is neither, as in whole numbers."""
    text = text.replace(",", "").lower()
    if not _is_number(text) or _is_whole(text):
        return -1
    at = text.rfind(".")
    at = text.rfind("e") if at < 0 else at
    return len(text) - at - 1 if at >= 0 else -1
