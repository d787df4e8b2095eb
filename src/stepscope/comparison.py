"""Two runs set side by side: whether they differ, by how much, where the difference went, and what caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.compare.accounting import part_deltas
from stepscope.compare.effects import effects
from stepscope.compare.matching import matched
from stepscope.compare.model import Outcome
from stepscope.compare.verdict import judge, stalls, step_effect, step_times
from stepscope.diagnose import Case, diagnose
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.compare.model import Effect, Observation, Pair

__all__ = ["compare_runs"]


def compare_runs(base: Sequence[Sequence[Observation]], other: Sequence[Sequence[Observation]]) -> Outcome:
    """The comparison of two sides, each with its repeats, each of those with its processes.

    Runs that were cut into different kinds of cycle are not compared by step time (`step_time` is null): only what
    does not depend on the cycle, such as resources and times per call, can say something then.
    Raises StepscopeError if no process of one side answers to one of the other.
    """
    pairs, notes = matched(base, other)
    if not pairs:
        reason = "; ".join(notes) or "no process was recorded"
        raise StepscopeError(f"nothing to compare: {reason}", "name recordings of the same program and ranks")
    anchors = [sorted({run.anchor for pair in pairs for run in getattr(pair, side)}) for side in ("base", "other")]
    alike = anchors[0] == anchors[1]
    step, stalled, parts = None, None, part_deltas(pairs if alike else ())
    if alike:
        left, right = step_times(pairs, side="base"), step_times(pairs, side="other")
        step = step_effect(left, right)
        stalled = stalls(left, right) if step is not None else None
    else:
        kinds = " and ".join(", ".join(words) for words in anchors)
        notes = (*notes, f"cycles are of different kinds ({kinds}): their times are not compared")
    differences = effects(pairs)
    found = diagnose(Case(pairs, differences, step))
    verdict, reason = judge(step, stalled, has_cause=bool(found.causes))
    if not alike:
        reason = "cycles of different kinds; other conditions" if found.causes else "cycles of different kinds"
    return Outcome(
        verdict=verdict,
        reason=reason,
        step_time=step,
        pairs=pairs,
        parts=parts,
        effects=differences,
        causes=found.causes if verdict == "different" else (),
        ruled_out=found.ruled_out,
        notes=_distinct([*notes, *_of_observations(pairs), *_of_effect(step), *found.notes]),
    )


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
