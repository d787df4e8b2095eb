"""Every output format by name and by file suffix. Renderers see a Report or a Block, never a Trace.

To add one: a file here with `RENDERER`, a line in `_MODULES` and in `_SUFFIXES`, a test, a docs line. Other packages
offer theirs in the entry-point group `stepscope.renderers`, each entry loading to a `Renderer`.
"""

from __future__ import annotations

import importlib
from pathlib import PurePath
from typing import TYPE_CHECKING

from stepscope.core.errors import UnknownName
from stepscope.renderers.renderer import Renderer, Screen

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Renderer", "Screen", "by_suffix", "find"]

_GROUP = "stepscope.renderers"
_MODULES = {
    "terminal": "stepscope.renderers.terminal",
    "markdown": "stepscope.renderers.markdown",
    "json": "stepscope.renderers.json",
    "html": "stepscope.renderers.html",
    "csv": "stepscope.renderers.csv",
    "parquet": "stepscope.renderers.parquet",
}
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
    name = _ALIASES.get(name, name)
    if name in _MODULES:
        found = importlib.import_module(_MODULES[name]).RENDERER
    else:
        others = _others()
        if name not in others:
            raise UnknownName("format", name, [*_MODULES, *others])
        found = others[name].load()
    if not isinstance(found, Renderer):
        msg = f"{name}: the entry point gives {type(found).__name__}, not a Renderer"
        raise TypeError(msg)
    return found


def by_suffix(path: str) -> Renderer:
    """The renderer that a file's suffix asks for. Raises UnknownName."""
    suffix = PurePath(path).suffix.lower()
    if suffix in _SUFFIXES:
        return find(_SUFFIXES[suffix])
    others = {s: entry.name for entry in _others().values() for s in find(entry.name).suffixes}
    if suffix not in others:
        raise UnknownName("output format for a file", PurePath(path).name, [*_SUFFIXES, *others])
    return find(others[suffix])


def _others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=_GROUP)}
