"""How values reach the public verbs that are built on them: `trace.report()` is `stepscope.report(trace)`.

Values know nothing of the verbs. `stepscope/__init__` says here where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_finders: list[Callable[[str], Callable[..., Any]]] = []


def use_verbs(finder: Callable[[str], Callable[..., Any]]) -> None:
    """Say what finds a public verb by its name; the last one given counts."""
    _finders[:] = [finder]


def verb(name: str) -> Callable[..., Any]:
    """The public verb of that name."""
    return _finders[0](name)
