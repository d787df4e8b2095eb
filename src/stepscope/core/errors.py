"""The errors of stepscope: each says what was wrong, where, and what to do next."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class StepscopeError(Exception):
    """Anything stepscope refuses to do: a message (what and where) and a hint (what to do next)."""

    exit_code: int = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take other arguments than the message, so unpickling must not call their constructors.
        return _revived, (type(self), self.__dict__)


def _revived(kind: type[StepscopeError], state: dict[str, object]) -> StepscopeError:
    """The unpickled error, as it was in the process that raised it."""
    error = kind.__new__(kind)
    StepscopeError.__init__(error, str(state["message"]), str(state["hint"]))
    error.__dict__.update(state)
    return error


class UnknownFormat(StepscopeError):
    """No reader recognises the input."""


class CorruptInput(StepscopeError):
    """The input is of a known format but damaged beyond salvage, at a known place. `reason` is without that place."""

    def __init__(self, message: str, hint: str = "", *, path: str = "", offset: int | None = None) -> None:
        where = path if offset is None else f"{path} at byte {offset:,}"
        super().__init__(f"{where}: {message}" if where else message, hint)
        self.reason = message
        self.path = path
        self.offset = offset


class UnsupportedVersion(StepscopeError):
    """The input is of a known format in a version that the reader does not know."""


class MissingTable(StepscopeError):
    """An analysis needs data that this trace does not have.

    `topic` is that of the remedies that say how to record it; the hint gets the one for the recorder at hand.
    """

    def __init__(
        self, what: str, *, needed_by: str = "", providers: Sequence[str] = (), hint: str = "", topic: str = ""
    ) -> None:
        reason = (
            f"{needed_by} needs {what}, which this trace does not hold" if needed_by else f"no {what} in this trace"
        )
        if not hint and providers:
            hint = f"recorded by: {', '.join(providers)}"
        super().__init__(reason, hint)
        self.what = what
        self.topic = topic


#: Names that an error offers at most, the nearest first.
_MOST_NAMES = 10


def nearest(name: str, known: Iterable[str]) -> tuple[list[str], int]:
    """At most ten of the known names, the nearest to `name` first, and how many others there are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=_MOST_NAMES, cutoff=0.5)
    offered = [*near, *(n for n in names if n not in near)][:_MOST_NAMES]
    return offered, len(names) - len(offered)


class UnknownName(StepscopeError):
    """A table, column, format or option that does not exist; the nearest existing names are offered.

    `listed_by` is the command that lists all of them.
    """

    exit_code = 2  # a matter of usage, not of the input

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> None:
        offered, n_more = nearest(name, known)
        more = f" and {n_more} more" + (f", which `{listed_by}` lists" if listed_by else "") if n_more else ""
        hint = f"known: {', '.join(offered)}{more}" if offered else "there is none"
        super().__init__(f"no {kind} named {name!r}", hint)
        self.name = name


class MissingExtra(StepscopeError):
    """An optional package is needed; the hint is the line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs a package that is not installed",
            f"install the extra {extra}: pip install '.[{extra}]' in a checkout of stepscope",
        )


class FunctionFailed(StepscopeError):
    """The user's function raised while it was measured; its exception is the `__cause__`."""


class WouldOverwrite(StepscopeError):
    """The output file exists already."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} exists already", "choose another -o FILE, or pass --force to replace it")
