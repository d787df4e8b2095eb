"""Registries of things with names: readers, analyses, renderers, figures and exports.

Ours are listed by module, so that nothing is imported before it is needed. Other packages add theirs as entry points.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stepscope.core.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(msgspec.Struct, Generic[T], frozen=True):
    """Values of one class by name.

    `what` is what error messages call one of them. `modules` has the module of each of ours, where it is a constant
    called `constant`, or the one named after a colon: `package.module:CONSTANT`. `group` is the entry-point group in
    which other packages offer theirs.
    """

    what: str
    kind: type[T]
    constant: str
    group: str
    modules: Mapping[str, str]

    def names(self) -> list[str]:
        """All names: ours in the order of the docs, then those of other packages."""
        return [*self.modules, *sorted(set(self._entry_points()) - set(self.modules))]

    def find(self, name: str) -> T:
        """The value of that name. Raises UnknownName; TypeError if another package provides some other class."""
        if name in self.modules:
            module, _, constant = self.modules[name].partition(":")
            value: Any = getattr(import_module(module), constant or self.constant)
        else:
            offered = self._entry_points()
            if name not in offered:
                raise UnknownName(self.what, name, self.names())
            value = offered[name].load()
        if not isinstance(value, self.kind):
            msg = f"{name}: the entry point gives {type(value).__name__}, not {self.kind.__name__}"
            raise TypeError(msg)
        return value

    def __contains__(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self.modules or name in self._entry_points()

    def from_other_packages(self) -> list[T]:
        """The values that other packages offer, by name."""
        return [self.find(name) for name in sorted(set(self._entry_points()) - set(self.modules))]

    def _entry_points(self) -> dict[str, EntryPoint]:
        # Scanning the installed packages takes some 20 ms, so it waits until a name is not one of ours.
        from importlib.metadata import entry_points

        return _offered(entry_points, self.group)


@cache
def _offered(entry_points: Callable[..., Iterable[EntryPoint]], group: str) -> dict[str, EntryPoint]:
    """The entry points of a group. They are read once: a query in SQL asks for them several times."""
    return {entry.name: entry for entry in entry_points(group=group)}
