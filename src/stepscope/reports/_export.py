"""What an export is: a kind that other tools read, made of a run by one function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName
from stepscope.signature import keyword_options

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    from stepscope.trace import Run


@dataclass(frozen=True, slots=True)
class Context:
    """What an export may ask for: `open_run` opens another run, named by an option; `tell` takes notes for the user."""

    open_run: Callable[[str], Run]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Export:
    """A form that another tool's users know.

    `run` takes the run, a Context, then keyword options. It returns the whole content of the file.
    """

    name: str
    doc: str
    run: Callable[..., str | bytes]

    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword options of `run`, by name: the command line and the docs are made from them."""
        return keyword_options(self.run)

    def __call__(self, run: Run, context: Context, **options: Any) -> str | bytes:
        """The content for a run. Raises UnknownName (option), and what `run` raises."""
        known = self.options()
        for name in options:
            if name not in known:
                raise UnknownName(f"option of {self.name}", name, known)
        return self.run(run, context, **options)
