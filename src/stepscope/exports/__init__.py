"""Every kind of export by name: formats of other tools.

To add one: a module here with `EXPORT`, a line below, a test. Other packages offer theirs in the entry-point group
`stepscope.exports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.core.options import check_options, options_of
from stepscope.core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from stepscope.core.options import Option
    from stepscope.core.trace import Run

    class WriteFolder(Protocol):
        """Writes a new folder. With `force` it may replace a folder of the same kind."""

        def __call__(self, path: str, *, force: bool) -> None:
            """Raises WouldOverwrite, StepscopeError."""


class Context(msgspec.Struct, frozen=True):
    """What an export may use: `open_run` opens another run that an option names; `tell` shows a note to the user."""

    open_run: Callable[[str], Run]
    tell: Callable[[str], None]


class Folder(msgspec.Struct, frozen=True):
    """Content of several files: `write` makes a folder of it, which appears only when it is complete."""

    write: WriteFolder


class Stream(msgspec.Struct, frozen=True):
    """Content that is made and written piece by piece, so that it need not fit into memory. It can be read once."""

    pieces: Iterator[str]


class Export(msgspec.Struct, frozen=True):
    """A format of another tool.

    `run` takes the run, a Context, then keyword options. It returns the whole content of the file, or a
    Stream of it; with `folder` a Folder.
    """

    name: str
    doc: str
    run: Callable[..., str | bytes | Stream | Folder]
    folder: bool = False

    def options(self) -> dict[str, Option]:
        """Keyword options of `run` by name."""
        return options_of(self.run)

    def __call__(self, run: Run, context: Context, **options: Any) -> str | bytes | Stream | Folder:
        """The content for a run. Raises UnknownName (option), and what `run` raises."""
        check_options(self.name, options, self.options())
        return self.run(run, context, **options)


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
