"""Every kind of export by name: formats of other tools.

To add one: a module here with `EXPORT`, a line below, a test. Other packages offer theirs in the entry-point group
`stepscope.exports`.
"""

from __future__ import annotations

from stepscope.core.registry import Registry
from stepscope.exports.export import Context, Export, Folder, Stream

__all__ = ["EXPORTS", "Context", "Export", "Folder", "Stream", "find", "names"]

EXPORTS = Registry(
    "kind of export",
    Export,
    "EXPORT",
    "stepscope.exports",
    {
        "tensorboard": "stepscope.exports.tensorboard",
        "kernel-table": "stepscope.exports.kernel_table",
        "latencyprism": "stepscope.exports.latencyprism",
        "paddle-summary": "stepscope.exports.paddle_summary",
        "parquet": "stepscope.exports.parquet",
        "chrome": "stepscope.exports.chrome",
        "flamegraph": "stepscope.exports.flamegraph",
    },
)


def names() -> list[str]:
    """All kinds, our own first."""
    return EXPORTS.names()


def find(name: str) -> Export:
    """The export of that kind. Raises UnknownName."""
    return EXPORTS.find(name)
