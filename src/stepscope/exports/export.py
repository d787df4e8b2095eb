"""What an export is: a kind that other tools read, made of a run by one function."""

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
        """Writes a folder that does not exist yet; with `force` it may replace one of the same sort."""

        def __call__(self, path: str, *, force: bool) -> None:
            """Raises WouldOverwrite, StepscopeError."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an export may ask for: `open_run` opens another run, named by an option; `tell` takes notes for the user."""

    open_run: Callable[[str], Run]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Folder:
    """Content that does not fit one file: `write` makes a folder of it, which appears whole or not at all."""

    write: WriteFolder


@dataclass(frozen=True, slots=True)
class Stream:
    """Content that is made piece by piece, and written as it comes: it need not fit into memory. It is read once."""

    pieces: Iterator[str]


@dataclass(frozen=True, slots=True)
class Export:
    """A form that another tool's users know.

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
