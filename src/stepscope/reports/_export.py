"""What an export is: a kind that other tools read, made of a run by one function."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.trace import Run

    OpenRun = Callable[[str], Run]


@dataclass(frozen=True, slots=True)
class Export:
    """A form that another tool's users know.

    `run` takes the run, a function that opens another run (for options that name one), then keyword options. It
    returns the whole content of the file.
    """

    name: str
    doc: str
    run: Callable[..., str | bytes]

    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword options of `run`, by name: the command line and the docs are made from them."""
        signature = inspect.signature(self.run, eval_str=True)
        return {n: p for n, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def __call__(self, run: Run, open_run: OpenRun, **options: Any) -> str | bytes:
        """The content for a run. Raises UnknownName (option), and what `run` raises."""
        known = self.options()
        for name in options:
            if name not in known:
                raise UnknownName(f"option of {self.name}", name, known)
        return self.run(run, open_run, **options)
