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
    from collections.abc import Mapping
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
        return [*self.modules, *sorted(set(entry_points_of(self.group)) - set(self.modules))]

    def find(self, name: str) -> T:
        """The value of that name. Raises UnknownName; TypeError if another package provides some other class."""
        if name in self.modules:
            module, _, constant = self.modules[name].partition(":")
            value: Any = getattr(import_module(module), constant or self.constant)
        else:
            offered = entry_points_of(self.group)
            if name not in offered:
                raise UnknownName(self.what, name, self.names())
            value = offered[name].load()
        if not isinstance(value, self.kind):
            msg = f"{name}: the entry point gives {type(value).__name__}, not {self.kind.__name__}"
            raise TypeError(msg)
        return value

    def __contains__(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self.modules or name in entry_points_of(self.group)

    def from_other_packages(self) -> list[T]:
        """The values that other packages offer, by name."""
        return [self.find(name) for name in sorted(set(entry_points_of(self.group)) - set(self.modules))]


@cache
def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer in a group, by name. They are read once, and not before a name is none of ours."""
    from importlib.metadata import distributions

    entries: dict[str, EntryPoint] = {}
    for package in distributions():
        # Most name no group of ours, and to parse what they say takes four times as long.
        if group in (package.read_text("entry_points.txt") or ""):
            entries = {entry.name: entry for entry in package.entry_points.select(group=group)} | entries
    return entries
