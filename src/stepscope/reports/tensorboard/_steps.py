"""The plugin's steps: annotated on the host, prolonged to the end of the device work that they queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that are shown, in order; times in µs. The window of the recording's figures is [start[0], end[-1])."""

    start: Times
    end: Times
    names: list[str]
