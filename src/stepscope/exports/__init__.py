"""Every kind of export by name: forms that users of other tools know.

To add one: a module in `reports` with `EXPORT`, a line in `_MODULES`, a test, a docs line. Other packages offer theirs
in the entry-point group `stepscope.exports`, each entry loading to an `Export`.
"""

from __future__ import annotations

import importlib

from stepscope.core.errors import UnknownName
from stepscope.exports.export import Context, Export, Folder, Stream

__all__ = ["Context", "Export", "Folder", "Stream", "find", "names"]

_GROUP = "stepscope.exports"
_MODULES = {
    "tensorboard": "stepscope.exports.tensorboard",
    "kernel-table": "stepscope.exports.kernel_table",
    "latencyprism": "stepscope.exports.latencyprism",
    "paddle-summary": "stepscope.exports.paddle_summary",
    "parquet": "stepscope.exports.parquet",
    "chrome": "stepscope.exports.chrome",
    "flamegraph": "stepscope.exports.flamegraph",
}


def names() -> list[str]:
    """All kinds, our own first."""
    from importlib.metadata import entry_points

    return [*_MODULES, *(entry.name for entry in entry_points(group=_GROUP) if entry.name not in _MODULES)]


def find(name: str) -> Export:
    """The export of that kind. Raises UnknownName; TypeError if an entry point gives something else."""
    from importlib.metadata import entry_points

    if name in _MODULES:
        found = importlib.import_module(_MODULES[name]).EXPORT
    else:
        others = {entry.name: entry for entry in entry_points(group=_GROUP)}
        if name not in others:
            raise UnknownName("kind of export", name, [*_MODULES, *others])
        found = others[name].load()
    if not isinstance(found, Export):
        msg = f"{name}: the entry point gives {type(found).__name__}, not an Export"
        raise TypeError(msg)
    return found
