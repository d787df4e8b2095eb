"""What a reader is: a name, a test of the first bytes, and one function from a source to a Trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import Source


@dataclass(frozen=True, slots=True)
class Reader:
    """One input format. `sniff(path, head)` gives 0..1 from the first unpacked bytes and never raises.

    `mates(path)`, of a format that writes several files, are those that are read together with one; the first stands
    for all.
    `alone` says that `read` looks at nothing but the file itself and that its code is part of stepscope: only then may
    what it gave be kept until the file changes.
    """

    name: str
    doc: str
    sniff: Callable[[str, bytes], float]
    read: Callable[[Source], Trace]
    provides: tuple[str, ...]
    mates: Callable[[str], list[str]] | None = None
    alone: bool = False
