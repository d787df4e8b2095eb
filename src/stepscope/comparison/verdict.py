"""The verdict on two runs: whether they differ in time, by how much, where the difference went, and its causes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from stepscope.comparison.arrivals import without_waits
from stepscope.comparison.diagnosis import OF_TIMES, Case, diagnose, views
from stepscope.comparison.effects import CONFIDENCE, DELTAS, effects, part_deltas
from stepscope.comparison.function_lines import by_line
from stepscope.comparison.kinds import kind_differences, other_hardware
from stepscope.comparison.matching import align, matched
from stepscope.comparison.model import WINDOWS, Comparison, Effect
from stepscope.comparison.statistics import PRIOR_REACH, differences, exceeding, moments_of, permutation_p
from stepscope.comparison.whole_run import n_steps, run_steps, tails_of, without_growth
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Cause, Observation, Pair, Verdict
    from stepscope.comparison.statistics import Floats, Moments
#: Largest relative difference in step time of two healthy runs of one program on one machine, nearly always: 1 to 2 %
#: are usual in repeated benchmarks. If cycles scatter by more than 1 %, runs differ by more as well: see `statistics`.
STEP_DRIFT = 0.02
#: With fewer cycles than this on a side, noise and change look the same, so only a twofold difference counts.
LEAST_CYCLES = 4
_TWOFOLD = 2.0
#: Share of cycles at each end that are set to the nearest remaining value before typical cycles are compared.
_WINSORISED = 0.1
#: Stalls are cycles that stand out: not more than half of them. If most are longer, the mean shows it.
_SOME = 0.5
#: Significance of further tests on the same data, which must be stricter than that of the first.
_SECOND_TEST = 0.01
#: A change of this size matters. If the interval includes zero as well, nothing is known of it.
_NOTABLE = 0.1
#: If the interval of a smaller change reaches this far, the cycles scatter too much to exclude one that matters.
_REACH = 1 / 3


def compare_runs(base: Sequence[Sequence[Observation]], other: Sequence[Sequence[Observation]]) -> Comparison:
    """The comparison of two runs. Each is a list of its repeats, and each repeat a list of its processes.

    If the runs have different kinds of cycle, the finer ones are grouped into the coarser ones where the work allows.
    Raises StepscopeError if no process of one run matches one of the other, or if their cycles cannot be compared.
    """
    pairs, remarks = matched(base, other)
    if not pairs:
        reason = "; ".join(remarks) or "no process was recorded"
        raise StepscopeError(f"nothing to compare: {reason}", "name recordings of the same program and ranks")
    pairs, waits = without_waits([_aligned(pair) for pair in pairs])
    pairs = tuple(by_line(pair) for pair in pairs)
    left, right = step_times(pairs, side="base"), step_times(pairs, side="other")
    if any(run.anchor == WINDOWS for pair in pairs for run in (*pair.base, *pair.other)):
        left, right = [], []  # windows of time say nothing about how long anything takes
    step, typical = step_effect(left, right), typical_effect(left, right)
    whole_left, whole_right = (run_steps(pairs, side=side) for side in ("base", "other"))
    whole_left, whole_right = without_growth(whole_left), without_growth(whole_right)
    whole = step_effect(whole_left, whole_right) if whole_left and whole_right else None
    stalled = stalls(left, right) if step is not None else None
    if whole is not None:
        whole = replace(whole, n_base=n_steps(pairs, side="base"), n_other=n_steps(pairs, side="other"))
        typical = typical_effect(whole_left, whole_right)
        undisturbed = undisturbed_effect(whole_left, whole_right)
        is_open = not whole.is_different and (typical is None or not typical.is_different)
        if is_open and undisturbed.is_different and undisturbed.delta * whole.delta > 0:
            typical = undisturbed
        both = tails_of(pairs[0])
        stalled = None if both is None else Stalls(both.share, both.p_value)
    same = len(left) == len(right) and all(
        a.size > 1 and np.array_equal(a, b) for a, b in zip(left, right, strict=True)
    )
    judged = whole or step
    step_verdict, _ = judge(judged, None, has_cause=False, typical=typical, same=same)
    changes = effects(pairs)
    proof = typical if typical is not None and typical.is_different and whole is not None else judged
    proof = judged if judged is not None and judged.is_different else proof
    case = Case(pairs, changes, proof, step_verdict, whole=_proven(whole, typical))
    all_views = views(case)
    kinds = kind_differences(pairs, all_views)
    diagnosis = diagnose(replace(case, machines=other_hardware(kinds)), all_views)
    has_cause = any(cause.category not in OF_TIMES for cause in diagnosis.causes)
    verdict, reason = judge(judged, stalled, has_cause=has_cause, typical=typical, same=same)
    of_base = dict.fromkeys(remark for pair in pairs for run in pair.base for remark in run.remarks)
    of_other = dict.fromkeys(remark for pair in pairs for run in pair.other for remark in run.remarks)
    of_runs = [remark if remark in of_other else f"in the base, {remark}" for remark in of_base]
    of_runs += [f"in the other run, {remark}" for remark in of_other if remark not in of_base]
    return Comparison(
        verdict=verdict,
        reason=reason,
        kinds=kinds,
        step_verdict=step_verdict,
        step_time=step,
        typical_step=typical,
        whole_run=whole,
        pairs=pairs,
        parts=part_deltas(pairs) if left else DELTAS.empty(),
        effects=changes,
        causes=_per_step(diagnosis.causes, step, whole),
        ruled_out=diagnosis.ruled_out,
        notes=tuple(dict.fromkeys(remark for remark in (*remarks, *waits, *of_runs, *diagnosis.remarks) if remark)),
    )


def _per_step(causes: Sequence[Cause], cycle: Effect | None, step: Effect | None) -> tuple[Cause, ...]:
    """The causes of longer cycles, with what they explain of a step of the whole run, if that was timed.

    A profiler makes the profiled cycles longer, so these hold more time than steps do.
    """
    if cycle is None or step is None or not cycle.base:
        return tuple(causes)
    return tuple(replace(cause, explained_ns=cause.explained_ns * step.base / cycle.base) for cause in causes)


def _aligned(pair: Pair) -> Pair:
    base, other = align(pair.base, pair.other)
    return replace(pair, base=tuple(base), other=tuple(other))


class Stalls(msgspec.Struct, frozen=True):
    """Cycles much longer than those of the base. `share` is the other run's share of them less that of the base."""

    share: float
    p_value: float

    @property
    def is_different(self) -> bool:
        """Whether the other run has significantly more of them, and they are a minority there."""
        return 0 < self.share <= _SOME and self.p_value <= _SECOND_TEST


def step_times(pairs: Sequence[Pair], *, side: str) -> list[Floats]:
    """Durations of the complete cycles of each repeat of a side, in ns; the mean over processes, cycle by cycle.

    If processes have different numbers of cycles, the surplus ones are dropped.
    """
    n_runs = min((len(getattr(pair, side)) for pair in pairs), default=0)
    runs = [cycle_times([getattr(pair, side)[i] for pair in pairs]) for i in range(n_runs)]
    return [run for run in runs if run.size]


def cycle_times(processes: Sequence[Observation]) -> Floats:
    """Durations of the complete cycles of a run, in ns; the mean over its processes, cycle by cycle."""
    each = [process.complete_cycles["dur_ns"].to_numpy().astype(float) for process in processes]
    n = min((values.size for values in each), default=0)
    times: Floats = np.mean([values[:n] for values in each], axis=0) if n else np.empty(0)
    return times


def step_effect(base: Sequence[Floats], other: Sequence[Floats]) -> Effect | None:
    """The difference of the mean cycle; the lists hold each repeat's cycles, in ns. None if a side has no cycle.

    Runs are different if two conditions hold: their means differ by more than noise (permutation test of the cycles, or
    Welch's test if there are repeats), and the interval of the difference, which includes the drift of healthy runs,
    excludes zero.
    """
    if not base or not other:
        return None
    effect = _effect(moments_of(base), moments_of(other), CONFIDENCE)
    if effect.p_value is None or not len(base) == len(other) == 1:
        return effect
    p_value = max(effect.p_value, permutation_p(base[0], other[0]))
    few = min(effect.n_base, effect.n_other) < LEAST_CYCLES
    return replace(effect, p_value=p_value, is_different=effect.is_different and (few or p_value <= CONFIDENCE))


def typical_effect(base: Sequence[Floats], other: Sequence[Floats]) -> Effect | None:
    """The difference of the trimmed mean, which a few stray cycles do not move. None if there are none to trim.

    Source: Yuen 1974, the same test on winsorised cycles with the variance of a trimmed mean.
    """
    if not base or not other or all(_n_clipped(run) == 0 for run in (*base, *other)):
        return None
    left, right = (moments_of([_winsorised(run) for run in runs]) for runs in (base, other))
    return _effect(left, right, _SECOND_TEST)


def undisturbed_effect(base: Sequence[Floats], other: Sequence[Floats]) -> Effect:
    """The difference of the faster halves of the runs' stretches, which phases do not move in which a machine is slow.

    Neighbours on a shared machine, or a clock that falls, slow a program for seconds. They make a mean uncertain, while
    what belongs to the program is in its fastest stretches too.
    """
    left, right = (moments_of([run[run <= np.median(run)] for run in runs]) for runs in (base, other))
    return _effect(left, right, _SECOND_TEST)


def _proven(whole: Effect | None, typical: Effect | None) -> Effect | None:
    """The change of the whole run, which counts as proven too if that of typical steps is, in the same direction."""
    if whole is None or typical is None or not typical.is_different or typical.delta * whole.delta <= 0:
        return whole
    return replace(whole, is_different=True)


def _effect(left: Moments, right: Moments, confidence: float) -> Effect:
    """The difference of the means. With 2 or 3 cycles on a side, only a twofold one counts."""
    level = np.fmax(left.mean, right.mean)
    test = differences(left, right, STEP_DRIFT * level / PRIOR_REACH)
    base, other = float(left.mean[0]), float(right.mean[0])
    low = _known(test.low[0])
    effect = Effect(
        base=base,
        other=other,
        delta=float(test.delta[0]),
        low=None if low is None else max(low, -base),  # no cycle is shorter than nothing
        high=_known(test.high[0]),
        p_value=_known(test.p_value[0]),
        drift=float(test.drift[0]),
        detectable=_known(test.detectable[0]),
        n_base=int(left.cycles[0]),
        n_other=int(right.cycles[0]),
        is_different=False,
    )
    is_sure = effect.p_value is not None and effect.p_value <= confidence
    if min(effect.n_base, effect.n_other) < LEAST_CYCLES:
        is_sure = max(base, other) >= _TWOFOLD * min(base, other)
    return replace(effect, is_different=is_sure and effect.excludes_zero)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _n_clipped(values: Floats) -> int:
    return int(_WINSORISED * values.size)


def _winsorised(values: Floats) -> Floats:
    """The values with clipped extremes, scaled so that their mean and its variance are those of the trimmed mean."""
    n = _n_clipped(values)
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
    margin = _effect(moments, moments, CONFIDENCE).drift
    share, p_value = exceeding(np.concatenate(base), np.concatenate(other), margin)
    return Stalls(share, p_value)


def judge(
    effect: Effect | None,
    stalled: Stalls | None,
    *,
    has_cause: bool,
    typical: Effect | None = None,
    same: bool = False,
) -> tuple[Verdict, str]:
    """The verdict and its reason, from the effect on the mean cycle, stalls, and the effect on the typical cycle.

    The step time is different if the interval of its change excludes zero. It is inconclusive if the interval includes
    zero and a change that matters, or if there is none. A cause outside of the program's own times makes the runs
    different even if other work hides its cost (`has_cause`); stalls do even if the mean hides them. With `same`, every
    cycle of one run is as long as that of the other, to the nanosecond: only copies of one recording are.
    """
    if effect is None:
        return ("different", "other conditions") if has_cause else ("inconclusive", "no cycles to compare")
    decisive = next((e for e in (effect, typical) if e is not None and e.is_different), None)
    if decisive is not None:
        return "different", "slower" if decisive.delta > 0 else "faster"
    verdict, reason = _without_proof(effect) if not same else ("no_difference", "every cycle took the same time")
    if has_cause:
        hidden = verdict == "no_difference"
        return "different", "same step time, other conditions" if hidden else "other conditions"
    if stalled is not None and stalled.is_different:
        return "different", "some cycles stand out"
    return verdict, reason


def _without_proof(effect: Effect) -> tuple[Verdict, str]:
    """Whether a change that is not proven is excluded, or merely not known."""
    few = min(effect.n_base, effect.n_other)
    if effect.low is None or effect.high is None:
        return "inconclusive", f"only {few} complete cycle{'s' if few > 1 else ''} on a side"
    if few < LEAST_CYCLES and abs(effect.delta) > max(effect.drift, _NOTABLE * effect.base):
        return "inconclusive", f"only {few} complete cycles on a side"
    reach = max(-effect.low, effect.high)
    if abs(effect.delta) >= _NOTABLE * effect.base or reach > _REACH * effect.base:
        return "inconclusive", "the cycles scatter too much to tell"
    return "no_difference", "within what healthy runs differ"
