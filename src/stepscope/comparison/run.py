"""Two runs set side by side: whether they differ, by how much, where the difference went, and what caused it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.comparison.accounting import part_deltas
from stepscope.comparison.align import align
from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.effects import effects
from stepscope.comparison.matching import matched
from stepscope.comparison.model import Outcome
from stepscope.comparison.verdict import judge, stalls, step_effect, step_times
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Effect, Observation, Pair

__all__ = ["compare_runs"]


def compare_runs(base: Sequence[Sequence[Observation]], other: Sequence[Sequence[Observation]]) -> Outcome:
    """The comparison of two sides, each with its repeats, each of those with its processes.

    Runs that were cut into different kinds of cycle are brought to the coarser kind if their work allows it.
    Raises StepscopeError if no process of one side answers to one of the other, or their cycles are of different kinds
    that cannot be brought together.
    """
    pairs, notes = matched(base, other)
    if not pairs:
        reason = "; ".join(notes) or "no process was recorded"
        raise StepscopeError(f"nothing to compare: {reason}", "name recordings of the same program and ranks")
    pairs = tuple(_aligned(pair) for pair in pairs)
    left, right = step_times(pairs, side="base"), step_times(pairs, side="other")
    step = step_effect(left, right)
    stalled = stalls(left, right) if step is not None else None
    differences = effects(pairs)
    found = diagnose(Case(pairs, differences, step))
    verdict, reason = judge(step, stalled, has_cause=bool(found.causes))
    return Outcome(
        verdict=verdict,
        reason=reason,
        step_time=step,
        pairs=pairs,
        parts=part_deltas(pairs),
        effects=differences,
        causes=found.causes if verdict == "different" else (),
        ruled_out=found.ruled_out,
        notes=_distinct([*notes, *_of_observations(pairs), *_of_effect(step), *found.notes]),
    )


def _aligned(pair: Pair) -> Pair:
    base, other = align(pair.base, pair.other)
    return replace(pair, base=tuple(base), other=tuple(other))


def _of_observations(pairs: Sequence[Pair]) -> list[str]:
    return [note for pair in pairs for run in (*pair.base, *pair.other) for note in run.notes]


def _of_effect(step: Effect | None) -> list[str]:
    if step is None or not step.base:
        return []
    if min(step.n_base, step.n_other) < 2:
        return ["one cycle on a side: nothing is known of how much cycles scatter"]
    return []


def _distinct(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for note in notes if note))
