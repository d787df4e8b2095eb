"""Lines of text set as columns: aligned, wrapped headers, squeezed to a width by shortening names first."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from stepscope.core import names
from stepscope.renderers.cells import width

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2
MIN_TEXT = 14
_THEN = " → "
_APPLIED = re.compile(r"_kernel\w*<(\w+)>?")
_NOISE = re.compile(
    r"^CUDAFunctor(?:OnSelf|OnOther)?_|^triton_(?=\w)|(?:_kernel)?(?:_cuda|_impl)$|Functor$|_kernel$|Ops$"
)
_LONGEST = 20_000  # letters of a sequence that are looked at


@dataclass(frozen=True, slots=True)
class Column:
    """A header, its cells, and how they are set where room is short: `squeeze` shortens texts, `wrap` breaks lines.

    The higher `spare`, the sooner the column is left out; among equals the one furthest right goes first.
    """

    header: str
    cells: Sequence[str]
    right: bool = False
    squeeze: bool = False
    wrap: bool = False
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Lines of the header, lines of the body, and the headers of columns that found no room."""

    head: tuple[str, ...]
    body: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def fit(text: str, room: int) -> str:
    """The text in no more than `room` columns: names of kernels (one, or in a sequence) by their telling part."""
    if width(text) <= room:
        return text
    if _THEN in text:
        text = _sequence(text[:_LONGEST].split(_THEN), room)
    elif "::" in text or "<" in text or " " not in text:
        text = names.shorten(text, room)
    while width(text) > room:
        text = text[: max(len(text) - max(width(text) - room, 1) - 1, 0)].rstrip("…") + "…"
        if text == "…":
            break
    return text


def _sequence(parts: Sequence[str], room: int) -> str:
    """Names of kernels in a sequence, each perhaps several times (×3): in short, or if that is too much in a word."""
    split = [part.partition(" ×") for part in parts]
    short = [(names.shorten(name, 4 * room), times + n) for name, times, n in split]
    text = _THEN.join(name + times for name, times in short)
    return text if width(text) <= room else _THEN.join(_gist(name) + times for name, times in short)


def _gist(name: str) -> str:
    """What a kernel does, in a word: of a generic kernel the function that it applies."""
    inner = _APPLIED.search(name)
    word = inner[1] if inner else name.rpartition("::")[2]
    return _NOISE.sub("", word) or word


def pad(text: str, room: int, *, right: bool = False) -> str:
    """The text filled with blanks up to `room` columns."""
    blanks = " " * (room - width(text))
    return blanks + text if right else text + blanks


def grid(columns: Sequence[Column], room: int) -> Grid:
    """The columns side by side in `room`. Text shrinks before columns are left out; the first stays in any case."""
    kept, left_out = list(columns), []
    widths = [_natural(column) for column in kept]
    while not _squeeze(kept, widths, room) and len(kept) > 1:
        _, at = max((column.spare, i) for i, column in enumerate(kept) if i > 0)
        left_out.append(kept.pop(at).header)
        widths = [_natural(column) for column in kept]
    heads = [_wrapped(c.header, w) for c, w in zip(kept, widths, strict=True)]
    height = max((len(h) for h in heads), default=0)
    raised = [[""] * (height - len(h)) + h for h in heads]
    head = [_line(kept, widths, texts) for texts in zip(*raised, strict=True)]
    broken = [[_broken(c, text, w) for text in c.cells] for c, w in zip(kept, widths, strict=True)]
    rows = [texts for row in zip(*broken, strict=True) for texts in zip_longest(*row, fillvalue="")]
    body = [_line(kept, widths, texts) for texts in rows]
    return Grid(tuple(head), tuple(body), tuple(c.header for c in columns if c.header in left_out))


def _broken(column: Column, text: str, room: int) -> list[str]:
    if not column.wrap:
        return [fit(text, room)]
    return textwrap.wrap(text, room, break_on_hyphens=False) or [""]


def _natural(column: Column) -> int:
    """The widest cell or the widest word of the header, which may wrap at blanks."""
    return max((width(text) for text in [*column.cells, *column.header.split()]), default=0)


def _squeeze(columns: Sequence[Column], widths: list[int], room: int) -> bool:
    """Narrow the widest texts in place until all fits; False if it cannot."""
    over = sum(widths) + GAP * (len(widths) - 1) - room
    least = max(MIN_TEXT, room // 4)  # a name cut to less tells less than a column further right
    while over > 0:
        able = [(widths[i], i) for i, c in enumerate(columns) if (c.squeeze or c.wrap) and widths[i] > least]
        if not able:
            return False
        wide, at = max(able)
        # Down to the next widest at once, so that texts of like width end alike.
        next_wide = max([w for w, i in able if i != at] + [least])
        cut = min(over, max(wide - next_wide, 1))
        widths[at] -= cut
        over -= cut
    return True


def _wrapped(header: str, room: int) -> list[str]:
    lines = [""]
    for word in header.split():
        joined = f"{lines[-1]} {word}".strip()
        if width(joined) <= room or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    return [fit(line, room) for line in lines]


def _line(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> str:
    cells = (pad(text, w, right=c.right) for text, w, c in zip(texts, widths, columns, strict=True))
    return (" " * GAP).join(cells).rstrip()
