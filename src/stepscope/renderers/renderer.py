"""What a renderer is: names, file suffixes, and pure functions from a Report or a Block to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.report import Block, Report


@dataclass(frozen=True, slots=True)
class Screen:
    """What the output of a text can show. Files and pipes have 100 columns and no colour."""

    width: int = 100
    colour: bool = False
    unicode: bool = True


@dataclass(frozen=True, slots=True)
class Renderer:
    """A way to write things down.

    `report` turns a Report into text, `table` a Block into text, or bytes if it is a binary format; None where the
    format has no such thing. Both get a Screen, which only formats for people look at. Text of an `exact` format goes
    to a pipe with the control characters that names hold; all other text that is shown has escapes in their place.
    """

    name: str
    doc: str
    suffixes: tuple[str, ...] = ()
    report: Callable[[Report, Screen], str] | None = None
    table: Callable[[Block, Screen], str | bytes] | None = None
    exact: bool = False
