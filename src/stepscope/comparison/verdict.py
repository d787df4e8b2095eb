"""The verdict on two runs: whether they differ in time, by how much, where the difference went, and its causes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison.diagnosis import Case, diagnose
from stepscope.comparison.effects import CONFIDENCE, effects, part_deltas
from stepscope.comparison.matching import align, matched
from stepscope.comparison.model import Comparison, Effect
from stepscope.comparison.statistics import PRIOR_REACH, differences, exceeding, moments_of, permutation_p
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation, Pair, Verdict
    from stepscope.comparison.statistics import Differences, Floats, Moments
#: Largest relative difference in step time of two healthy runs of one program on one machine, nearly always: 1 to 2 %
#: are usual in repeated benchmarks. If cycles scatter by more than 1 %, runs differ by more as well: see `statistics`.
STEP_DRIFT = 0.02
#: With fewer cycles than this on a side, noise and change look the same, so only a twofold difference counts.
LEAST_CYCLES = 4
_TWOFOLD = 2.0
#: Share of cycles at each end that are set to the nearest remaining value before typical cycles are compared.
_WINSORISED = 0.1
#: Significance of further tests on the same data, which must be stricter than that of the first.
_SECOND_TEST = 0.01
#: A change that is within scatter or drift is called inconclusive only if it is at least this large.
_NOTABLE = 0.1


def compare_runs(base: Sequence[Sequence[Observation]], other: Sequence[Sequence[Observation]]) -> Comparison:
    """The comparison of two runs. Each is a list of its repeats, and each repeat a list of its processes.

    If the runs have different kinds of cycle, the finer ones are grouped into the coarser ones where the work allows.
    Raises StepscopeError if no process of one run matches one of the other, or if their cycles cannot be compared.
    """
    pairs, remarks = matched(base, other)
    if not pairs:
        reason = "; ".join(remarks) or "no process was recorded"
        raise StepscopeError(f"nothing to compare: {reason}", "name recordings of the same program and ranks")
    pairs = tuple(_aligned(pair) for pair in pairs)
    left, right = step_times(pairs, side="base"), step_times(pairs, side="other")
    step = step_effect(left, right)
    stalled = stalls(left, right) if step is not None else None
    changes = effects(pairs)
    diagnosis = diagnose(Case(pairs, changes, step))
    verdict, reason = judge(step, stalled, has_cause=bool(diagnosis.causes))
    of_runs = [remark for pair in pairs for run in (*pair.base, *pair.other) for remark in run.remarks]
    if step is not None and step.base and min(step.n_base, step.n_other) < 2:
        of_runs.append("one cycle on a side: nothing is known of how much cycles scatter")
    return Comparison(
        verdict=verdict,
        reason=reason,
        step_time=step,
        pairs=pairs,
        parts=part_deltas(pairs),
        effects=changes,
        causes=diagnosis.causes if verdict == "different" else (),
        ruled_out=diagnosis.ruled_out,
        notes=tuple(dict.fromkeys(remark for remark in (*remarks, *of_runs, *diagnosis.remarks) if remark)),
    )


def _aligned(pair: Pair) -> Pair:
    base, other = align(pair.base, pair.other)
    return replace(pair, base=tuple(base), other=tuple(other))


@dataclass(frozen=True, slots=True)
class Stalls:
    """Cycles much longer than those of the base. `share` is the other run's share of them less that of the base."""

    share: float
    p_value: float

    @property
    def is_different(self) -> bool:
        """Whether the other run has significantly more of them."""
        return self.share > 0 and self.p_value <= _SECOND_TEST


def step_times(pairs: Sequence[Pair], *, side: str) -> list[Floats]:
    """Durations of the complete cycles of each repeat of a side, in ns; the mean over processes, cycle by cycle.

    If processes have different numbers of cycles, the surplus ones are dropped.
    """
    n_runs = min((len(getattr(pair, side)) for pair in pairs), default=0)
    runs = []
    for i in range(n_runs):
        each = [getattr(pair, side)[i].complete_cycles["dur_ns"].to_numpy().astype(float) for pair in pairs]
        n = min(values.size for values in each)
        runs.append(np.mean([values[:n] for values in each], axis=0))
    return [run for run in runs if run.size]


def step_effect(base: Sequence[Floats], other: Sequence[Floats]) -> Effect | None:
    """The difference of the mean cycle; the lists hold each repeat's cycles, in ns. None if a side has no cycle.

    Runs are different if two conditions hold. Their means (permutation test of the cycles, or Welch's test if there
    are repeats) or their typical cycles (Yuen's test of trimmed means) differ by more than noise. And the interval of
    the difference, which includes the drift of healthy runs, excludes zero.
    """
    if not base or not other:
        return None
    left, right = moments_of(base), moments_of(other)
    test = _differences(left, right)
    p_value = float(test.p_value[0])
    if len(base) == len(other) == 1 and np.isfinite(p_value):
        p_value = max(p_value, permutation_p(base[0], other[0]))
    n_base, n_other = int(left.cycles[0]), int(right.cycles[0])
    mean = float(left.mean[0])
    ratio = float(right.mean[0]) / mean if mean else np.inf
    delta, drift = float(test.delta[0]), float(test.drift[0])
    low, high = float(test.low[0]), float(test.high[0])
    is_different = p_value <= CONFIDENCE and not low <= 0 <= high
    is_different = is_different or _is_typically_different(base, other)
    if min(n_base, n_other) < LEAST_CYCLES:
        is_different = max(ratio, 1 / ratio if ratio else np.inf) >= _TWOFOLD
    return Effect(
        base=mean,
        other=float(right.mean[0]),
        delta=delta,
        low=low,
        high=high,
        p_value=p_value,
        drift=drift,
        detectable=float(test.detectable[0]),
        n_base=n_base,
        n_other=n_other,
        is_different=bool(is_different),
    )


def _differences(left: Moments, right: Moments) -> Differences:
    level = np.fmax(left.mean, right.mean)
    return differences(left, right, STEP_DRIFT * level / PRIOR_REACH)


def _is_typically_different(base: Sequence[Floats], other: Sequence[Floats]) -> bool:
    """Yuen's test: the same test on winsorised cycles, with the variance of a trimmed mean."""
    left = moments_of([_winsorised(run) for run in base])
    right = moments_of([_winsorised(run) for run in other])
    test = _differences(left, right)
    return bool(test.p_value[0] <= _SECOND_TEST and not test.low[0] <= 0 <= test.high[0])


def _winsorised(values: Floats) -> Floats:
    """The values with clipped extremes, scaled so that their mean and its variance are those of the trimmed mean."""
    n = int(_WINSORISED * values.size)
    if not n:
        return values
    ordered = np.sort(values)
    clipped = np.clip(values, ordered[n], ordered[-n - 1])
    scaled: Floats = ordered[n:-n].mean() + (clipped - clipped.mean()) / (1 - 2 * _WINSORISED)
    return scaled


def stalls(base: Sequence[Floats], other: Sequence[Floats]) -> Stalls:
    """Whether single cycles of the other run are much longer, as with something that happens every few steps.

    Much longer means by more than the drift between healthy runs like the base.
    """
    moments = moments_of(base)
    margin = float(_differences(moments, moments).drift[0])
    share, p_value = exceeding(np.concatenate(base), np.concatenate(other), margin)
    return Stalls(share, p_value)


def judge(effect: Effect | None, stalled: Stalls | None, *, has_cause: bool) -> tuple[Verdict, str]:
    """The verdict and its reason. A cause makes the runs different even if its cost is hidden by other work."""
    if effect is None:
        return ("different", "other conditions") if has_cause else ("inconclusive", "no cycles to compare")
    if effect.is_different:
        return "different", "slower" if effect.delta > 0 else "faster"
    if has_cause or (stalled is not None and stalled.is_different):
        same = "same step time, other conditions" if abs(effect.delta) <= effect.drift else "other conditions"
        return "different", same if has_cause else "some cycles stand out"
    few = min(effect.n_base, effect.n_other)
    beyond = abs(effect.delta) > max(effect.drift, _NOTABLE * effect.base)
    if few < 2 or (few < LEAST_CYCLES and beyond):
        return "inconclusive", f"only {few} complete cycle{'s' if few > 1 else ''} on a side"
    return (
        ("inconclusive", "the cycles scatter too much to tell")
        if beyond
        else ("no_difference", "within what healthy runs differ")
    )
