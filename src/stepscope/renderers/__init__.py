"""Every output format by name and by file suffix. Renderers see a Report or a Block, never a Trace.

To add one: a file here with `RENDERER`, a line in `RENDERERS` and in `_SUFFIXES`, a test. Other packages offer theirs
in the entry-point group `stepscope.renderers`.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.errors import UnknownName
from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.report import Block, Report


class Screen(msgspec.Struct, frozen=True):
    """What the output of a text can show. Files and pipes have 100 columns and no colour."""

    width: int = 100
    colour: bool = False
    unicode: bool = True


class Renderer(msgspec.Struct, frozen=True):
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


RENDERERS = Registry(
    "format",
    Renderer,
    "RENDERER",
    "stepscope.renderers",
    {
        "terminal": "stepscope.renderers.terminal",
        "markdown": "stepscope.renderers.markdown",
        "json": "stepscope.renderers.json",
        "html": "stepscope.renderers.html",
        "csv": "stepscope.renderers.csv",
        "csv-raw": "stepscope.renderers.csv:RAW",
        "parquet": "stepscope.renderers.parquet",
    },
)
_ALIASES = {"table": "terminal", "text": "terminal", "md": "markdown"}
_SUFFIXES = {
    ".txt": "terminal",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}


def find(name: str) -> Renderer:
    """The renderer of that name (or its short name: table, md). Raises UnknownName."""
    return RENDERERS.find(_ALIASES.get(name, name))


def by_suffix(path: str) -> Renderer:
    """The renderer that a file's suffix asks for. Raises UnknownName."""
    suffix = PurePath(path).suffix.lower()
    if suffix in _SUFFIXES:
        return find(_SUFFIXES[suffix])
    offered = {s: renderer for renderer in RENDERERS.from_other_packages() for s in renderer.suffixes}
    if suffix not in offered:
        raise UnknownName("output format for a file", PurePath(path).name, [*_SUFFIXES, *offered])
    return offered[suffix]
