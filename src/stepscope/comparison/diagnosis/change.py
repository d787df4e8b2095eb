"""How one quantity differs between two runs, and whether the difference counts.

A difference counts (`is_real`) if it is more than the noise of the cycles and more than healthy runs drift. Rules ask
for a handful of quantities that they name beforehand, so each is tested by itself, at `SURE`; what the effects table
found among all quantities, corrected for their number, counts too. What comes only every few cycles (a checkpoint, a
collection) drowns in a mean: there the share of cycles that stand out is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from stepscope.comparison.model import Evidence
from stepscope.comparison.statistics import PRIOR_REACH, differences, exceeding, moments_of
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


#: Chance of a difference by luck below which a quantity named beforehand counts. Sixteen causes look at a handful of
#: quantities each: about a hundred, so that less than one in ten comparisons has one by luck, and none has the two or
#: three different ones that a cause needs.
SURE = 0.001
#: The same for cycles that a gap as wide as the drift parts, which is rare by itself.
_APART = 0.03
#: Share of cycles that must stand out, of what does not come in every cycle.
_LEAST_SHARE = 0.04
#: Cycles beyond twice anything in the base that are no hiccup, and the chance that all of them are on one side.
_FEW, _FAR = 3, 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """Typical values (means over cycles) of a quantity in the base and in the other; null where it is unknown."""

    base: float | None
    other: float | None
    is_real: bool = False
    unit: str | None = None

    @property
    def delta(self) -> float:
        """Other less base; what is absent counts as 0."""
        return (self.other or 0.0) - (self.base or 0.0)

    @property
    def ratio(self) -> float | None:
        """Other over base; null unless both are there and the base is not 0."""
        return self.other / self.base if self.base and self.other is not None else None

    @property
    def is_known(self) -> bool:
        """Whether both sides have it."""
        return self.base is not None and self.other is not None

    def rose(self, *, by: float = 0.0, times: float = 1.0) -> bool:
        """Whether it is really larger: by more than `by` (its unit), and at least `times` as large."""
        return self.is_real and self.delta > by and (self.other or 0.0) >= times * (self.base or 0.0)

    def fell(self, *, to: float = 1.0) -> bool:
        """Whether it is really smaller: `to` times the base at most."""
        return self.is_real and self.ratio is not None and self.ratio <= to


#: Of a quantity that nobody recorded.
ABSENT = Change(None, None)


def changed(
    base: Sequence[Floats], other: Sequence[Floats], *, relative: float, absolute: float = 0.0, unit: str | None = None
) -> Change:
    """The change of a quantity from its values by cycle, an array for each run of a side.

    Healthy runs differ by `relative` of its level and `absolute` (its unit) in most cases, more where cycles scatter.
    """
    known = [[run for run in side if run.size] for side in (base, other)]
    if not known[0] or not known[1]:
        means = [float(np.concatenate(side).mean()) if side else None for side in known]
        return Change(means[0], means[1], unit=unit)
    left, right = moments_of(known[0]), moments_of(known[1])
    level = max(abs(float(left.mean[0])), 0.0) or abs(float(right.mean[0]))
    margin = relative * level + absolute
    found = differences(left, right, np.array([margin / PRIOR_REACH]))
    p_value, delta = float(found.p_value[0]), float(found.delta[0])
    is_real = p_value <= SURE and abs(delta) > float(found.drift[0])
    if not is_real:
        left_all, right_all = np.concatenate(known[0]), np.concatenate(known[1])
        is_real = _apart(left_all, right_all, margin) or (delta > 0 and _stands_out(left_all, right_all, margin))
    return Change(float(left.mean[0]), float(right.mean[0]), is_real, unit)


def _apart(base: Floats, other: Floats, margin: float) -> bool:
    """Whether all cycles of one side lie beyond all of the other, by more than healthy runs drift.

    With few cycles the test of means cannot tell what hangs together among neighbours from a difference. This one
    needs no such estimate: a gap as wide as the drift must lie between the sides. Dealt at random, cycles would fall
    apart so in 2 of n over k ways: 4 cycles on each side are enough for 3 %. With fewer, only a twofold gap counts.
    """
    gap = max(float(other.min() - base.max()), float(base.min() - other.max()))
    if gap <= margin:
        return False
    if 2 / comb(base.size + other.size, base.size) <= _APART:
        return True
    near, far = sorted((float(base.max()), float(other.max()))), sorted((float(base.min()), float(other.min())))
    return min(base.size, other.size) >= 2 and far[1] >= 2 * near[0]


def _stands_out(base: Floats, other: Floats, margin: float) -> bool:
    """Whether more cycles of the other stand out than luck explains, or a few do so beyond any doubt.

    Three cycles that each take twice as much as the longest of the base, and more by the drift, are no hiccup: then
    Fisher's test need only be passed at 5 %, which few rare events can.
    """
    share, chance = exceeding(base, other, margin)
    if share >= _LEAST_SHARE and chance <= SURE:
        return True
    n_far = int((other > 2 * float(base.max()) + margin).sum())
    n = base.size + other.size
    return n_far >= _FEW and comb(other.size, n_far) / comb(n, n_far) <= _FAR


#: Units that are written with a prefix of their own for each value.
_PREFIXED = {"ns", "bytes", "bytes/s", "ratio", "count"}


def fold(ratio: float) -> str:
    """How many times: '3.4×', '0.9×'."""
    return f"{units.number(float(f'{ratio:.2g}' if ratio < 100 else f'{ratio:.0f}'))}×"


def change_of(base: float | None, other: float | None) -> str:
    """The relative change: '+12 %', '−82 %', '3.4×' from doubling on, '' if the base is 0 or unknown.

    >>> change_of(100.0, 112.0), change_of(1187.0, 210.0), change_of(1.0, 3.4), change_of(0.0, 2.0)
    ('+12 %', '−82 %', '3.4×', '')
    """
    if not base or other is None:
        return ""
    ratio = other / base
    if ratio >= 2:
        return fold(ratio)
    return f"{'+' if ratio >= 1 else '−'}{units.percent(abs(ratio - 1))}"


def span(base: float | None, other: float | None, unit: str | None) -> str:
    """Both values: 'from 1,187 to 210 MHz', 'from 45 ms to 105 ms'."""
    if unit == "kB":
        base, other = (None if value is None else value * 1024 for value in (base, other))
        unit = "bytes"
    if unit is None or unit in _PREFIXED:
        return f"from {units.render(base, unit)} to {units.render(other, unit)}"
    return f"from {units.number(base)} to {units.number(other)} {unit}"


def moved(change: Change, unit: str | None = None) -> str:
    """A change in words: 'fell from 1,187 to 210 MHz (−82 %)'."""
    if not change.base:
        now = units.render(change.other, unit or change.unit)
        return f"is new ({now})" if change.base is None else f"rose from 0 to {now}"
    verb = "rose" if change.delta > 0 else "fell" if change.delta < 0 else "stayed"
    shown = span(change.base, change.other, unit or change.unit)
    relative = change_of(change.base, change.other)
    return f"{verb} {shown}" + (f" ({relative})" if relative and change.delta else "")


def evidence(
    text: str,
    change: Change | None = None,
    *,
    role: str = "supporting",
    device: str | None = None,
    name: str | None = None,
    metric: str | None = None,
    unit: str | None = None,
) -> Evidence:
    """A row of evidence; the values are those of the change."""
    if change is None:
        return Evidence(text, device=device, name=name, metric=metric, unit=unit, role=role)
    return Evidence(text, device, name, metric, unit or change.unit, change.base, change.other, role)
