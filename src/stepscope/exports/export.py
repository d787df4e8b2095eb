"""What an export is: a format of another tool, which one function makes from a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.core.options import check_options, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from stepscope.core.options import Option
    from stepscope.core.trace import Run

    class WriteFolder(Protocol):
        """Writes a new folder. With `force` it may replace a folder of the same kind."""

        def __call__(self, path: str, *, force: bool) -> None:
            """Raises WouldOverwrite, StepscopeError."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an export may use: `open_run` opens another run that an option names; `tell` shows a note to the user."""

    open_run: Callable[[str], Run]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Folder:
    """Content of several files: `write` makes a folder of it, which appears only when it is complete."""

    write: WriteFolder


@dataclass(frozen=True, slots=True)
class Stream:
    """Content that is made and written piece by piece, so that it need not fit into memory. It can be read once."""

    pieces: Iterator[str]


@dataclass(frozen=True, slots=True)
class Export:
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
