"""Whether two runs differ in the time of a cycle: by how much, how sure, and what would have been missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison.effects import CONFIDENCE, PRIOR_REACH, complete_cycles
from stepscope.comparison.model import Effect
from stepscope.comparison.statistics import differences, exceeding, moments_of, permutation_p

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Pair, Verdict
    from stepscope.comparison.statistics import Differences, Floats, Moments

__all__ = ["LEAST_CYCLES", "STEP_DRIFT", "Stalls", "judge", "stalls", "step_effect", "step_times"]

#: Two healthy runs of one program on one machine differ by up to this much in step time, nearly always: what people
#: see when they repeat a benchmark (1 % to 2 %). Where cycles scatter more than 1 %, so do runs: see `_statistics`.
STEP_DRIFT = 0.02
#: Fewer cycles a side cannot tell noise from change; only a twofold difference is believed then.
LEAST_CYCLES = 4
_TWOFOLD = 2.0
#: Share of cycles set to the largest (smallest) of the others before the typical cycle is compared.
_WINSORISED = 0.1
#: The typical cycle is a second look at the same data, so it must be surer.
_SECOND_LOOK = 0.01
#: A change that cannot be told from scatter or drift is worth saying so only if it is as large as this.
_NOTABLE = 0.1
_WITHIN = "within what healthy runs differ"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Cycles of the other run that stand out from those of the base. `share` is how many more of them there are."""

    share: float
    p_value: float

    @property
    def is_different(self) -> bool:
        """Whether they are too many for luck."""
        return self.share > 0 and self.p_value <= _SECOND_LOOK


def step_times(pairs: Sequence[Pair], *, side: str) -> list[Floats]:
    """Durations of the complete cycles of each run of a side, in ns. Of several processes that turn together, the mean.

    Processes with different numbers of cycles are cut to the shortest.
    """
    n_runs = min((len(getattr(pair, side)) for pair in pairs), default=0)
    runs = []
    for i in range(n_runs):
        each = [complete_cycles(getattr(pair, side)[i])["dur_ns"].to_numpy().astype(float) for pair in pairs]
        n = min(values.size for values in each)
        runs.append(np.mean([values[:n] for values in each], axis=0))
    return [run for run in runs if run.size]


def step_effect(base: Sequence[Floats], other: Sequence[Floats]) -> Effect | None:
    """The difference of the mean cycle; the lists hold each run's cycles, in ns. None if a side has no cycle.

    Different are runs whose means (permutation test of the cycles, Welch's where there are repeats) or typical cycles
    (Yuen's test of trimmed means) differ by more than noise, and by so much that the interval, which has the drift of
    healthy runs in it, leaves out zero.
    """
    if not base or not other:
        return None
    left, right = moments_of(base), moments_of(other)
    found = _differences(left, right)
    p_value = float(found.p_value[0])
    if len(base) == len(other) == 1 and np.isfinite(p_value):
        p_value = max(p_value, permutation_p(base[0], other[0]))
    n_base, n_other = int(left.cycles[0]), int(right.cycles[0])
    mean = float(left.mean[0])
    ratio = float(right.mean[0]) / mean if mean else np.inf
    delta, drift = float(found.delta[0]), float(found.drift[0])
    low, high = float(found.low[0]), float(found.high[0])
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
        detectable=float(found.detectable[0]),
        n_base=n_base,
        n_other=n_other,
        is_different=bool(is_different),
    )


def _differences(left: Moments, right: Moments) -> Differences:
    level = np.fmax(left.mean, right.mean)
    return differences(left, right, STEP_DRIFT * level / PRIOR_REACH)


def _is_typically_different(base: Sequence[Floats], other: Sequence[Floats]) -> bool:
    """Yuen's test: the same on winsorised cycles, whose scatter is scaled as that of a trimmed mean."""
    left = moments_of([_winsorised(run) for run in base])
    right = moments_of([_winsorised(run) for run in other])
    found = _differences(left, right)
    return bool(found.p_value[0] <= _SECOND_LOOK and not found.low[0] <= 0 <= found.high[0])


def _winsorised(values: Floats) -> Floats:
    """Extremes set to the nearest of the others, and spread so that the variance is that of the trimmed mean."""
    cut = int(_WINSORISED * values.size)
    if not cut:
        return values
    ordered = np.sort(values)
    kept = np.clip(values, ordered[cut], ordered[-cut - 1])
    middle = ordered[cut:-cut].mean()
    found: Floats = middle + (kept - kept.mean()) / (1 - 2 * _WINSORISED)
    return found


def stalls(base: Sequence[Floats], other: Sequence[Floats]) -> Stalls:
    """Whether single cycles of the other stand out, as with something that comes every few steps.

    They stand out by more than another run like the base would differ from it.
    """
    alone = moments_of(base)
    share, p_value = exceeding(np.concatenate(base), np.concatenate(other), float(_differences(alone, alone).drift[0]))
    return Stalls(share, p_value)


def judge(effect: Effect | None, stalled: Stalls | None, *, has_cause: bool) -> tuple[Verdict, str]:
    """The verdict and its reason. A cause that was found is a difference even where the host hides its cost."""
    if effect is None:
        return ("different", "other conditions") if has_cause else ("inconclusive", "no cycles to set side by side")
    if effect.is_different:
        return "different", "slower" if effect.delta > 0 else "faster"
    if has_cause or (stalled is not None and stalled.is_different):
        same = "same step time, other conditions" if abs(effect.delta) <= effect.drift else "other conditions"
        return "different", same if has_cause else "some cycles stand out"
    few = min(effect.n_base, effect.n_other)
    beyond = abs(effect.delta) > max(effect.drift, _NOTABLE * effect.base)
    if few < 2 or (few < LEAST_CYCLES and beyond):
        return "inconclusive", f"only {few} complete cycle{'s' if few > 1 else ''} on a side"
    return ("inconclusive", "the cycles scatter too much to tell") if beyond else ("no_difference", _WITHIN)
