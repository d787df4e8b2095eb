"""What a rule is: one hypothesis about a resource, judged on one pair of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.comparison.model import Evidence, RuledOut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Cause

__all__ = ["Clue", "Judgement", "Missing", "Rule", "Suspect", "clipped", "weigh"]

#: Evidence and by how much it raises the confidence; null where it is not there.
Clue = tuple[float, Evidence] | None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A hypothesis that has its necessary evidence and nothing against it.

    `affected_ns` is the time per cycle by which the work that hangs on the resource became longer, though other work
    may hide it; `cause.explained_ns` is what of it a cycle became longer by.
    """

    cause: Cause
    affected_ns: float


@dataclass(frozen=True, slots=True)
class Missing:
    """A hypothesis that cannot be judged, and the recording or counter that would allow it."""

    category: str
    needs: str


Judgement = Suspect | RuledOut | Missing


@dataclass(frozen=True, slots=True)
class Rule:
    """A category and the function that judges it on one pair."""

    category: str
    judge: Callable[[View], Judgement]


def clipped(value: float, most: float = 0.97) -> float:
    """A confidence: never less than none, never quite certain."""
    return max(0.0, min(value, most))


def weigh(start: float, clues: Sequence[Clue]) -> tuple[float, tuple[Evidence, ...]]:
    """The confidence, from what the necessary evidence gives and the rest adds, and the evidence that is there."""
    there = [clue for clue in clues if clue is not None]
    return clipped(start + sum(weight for weight, _ in there)), tuple(row for _, row in there)
