"""Every output format by name and by file suffix. Renderers see a Report or a Block, never a Trace.

To add one: a file here with `RENDERER`, a line in `RENDERERS` and in `_SUFFIXES`, a test. Other packages offer theirs
in the entry-point group `stepscope.renderers`.
"""

from __future__ import annotations

from pathlib import PurePath

from stepscope.core.errors import UnknownName
from stepscope.core.registry import Registry
from stepscope.renderers.renderer import Renderer, Screen

__all__ = ["RENDERERS", "Renderer", "Screen", "by_suffix", "find"]

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
