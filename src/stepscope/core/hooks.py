"""How values call the public verbs, which are built on them: `trace.report()` is `stepscope.report(trace)`.

The values do not import the verbs. `stepscope/__init__` registers here how to find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_finders: list[Callable[[str], Callable[..., Any]]] = []


def use_verbs(finder: Callable[[str], Callable[..., Any]]) -> None:
    """Register the function that finds a public verb by name; it replaces the previous one."""
    _finders[:] = [finder]


def verb(name: str) -> Callable[..., Any]:
    """The public verb of that name."""
    return _finders[0](name)
