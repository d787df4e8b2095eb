"""How one quantity differs between two runs, whether the difference is real, and how a statement words it.

A difference is real (`is_real`) if it exceeds the noise of the cycles and the drift of healthy runs. Rules name their
few quantities beforehand, so each is tested by itself, at `SURE`, without correction for all quantities. A mean hides
what happens every few cycles (a checkpoint, a collection), so the share of outlying cycles is tested as well.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.comparison.model import Evidence
from stepscope.comparison.statistics import PRIOR_REACH, differences, exceeding, moments_of
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


#: Significance of a quantity that a rule names beforehand. Sixteen causes test about a hundred quantities: fewer than
#: one in ten comparisons has a false one, and practically none has the two or three that a cause needs.
SURE = 0.001
#: The same if a gap as wide as the drift separates the cycles of the two runs, which is rare by itself.
_APART = 0.03
#: Share of cycles that must be outliers.
_LEAST_SHARE = 0.04
#: Number of cycles of twice the base's maximum that are no accident, and the chance that all are in one run.
_FEW, _FAR = 3, 0.05
#: Units that are written with a prefix of their own for each value.
_PREFIXED = {"ns", "bytes", "bytes/s", "ratio", "count"}


class Change(msgspec.Struct, frozen=True):
    """The means over cycles of a quantity in the base and in the other run; None where unknown."""

    base: float | None
    other: float | None
    is_real: bool = False
    unit: str | None = None

    @property
    def delta(self) -> float:
        """Other less base, where unknown values count as 0."""
        return (self.other or 0.0) - (self.base or 0.0)

    @property
    def ratio(self) -> float | None:
        """Other over base; None if either is unknown or the base is 0."""
        return self.other / self.base if self.base and self.other is not None else None

    @property
    def is_known(self) -> bool:
        """Whether both runs have it."""
        return self.base is not None and self.other is not None

    def rose(self, *, by: float = 0.0, times: float = 1.0) -> bool:
        """Whether it is really larger: by more than `by` (its unit), and at least `times` as large."""
        return self.is_real and self.delta > by and (self.other or 0.0) >= times * (self.base or 0.0)

    def fell(self, *, to: float = 1.0) -> bool:
        """Whether it is really smaller: `to` times the base at most."""
        return self.is_real and self.ratio is not None and self.ratio <= to


#: The change of a quantity that was not recorded.
ABSENT = Change(None, None)


def changed(
    base: Sequence[Floats], other: Sequence[Floats], *, relative: float, absolute: float = 0.0, unit: str | None = None
) -> Change:
    """The change of a quantity from its values by cycle, one array per repeat.

    Healthy runs differ by up to `relative` of its level plus `absolute` (in its unit), more if cycles scatter widely.
    """
    known = [[run for run in side if run.size] for side in (base, other)]
    if not known[0] or not known[1]:
        means = [float(np.concatenate(side).mean()) if side else None for side in known]
        return Change(means[0], means[1], unit=unit)
    left, right = moments_of(known[0]), moments_of(known[1])
    level = max(abs(float(left.mean[0])), 0.0) or abs(float(right.mean[0]))
    margin = relative * level + absolute
    test = differences(left, right, np.array([margin / PRIOR_REACH]))
    p_value, delta = float(test.p_value[0]), float(test.delta[0])
    is_real = p_value <= SURE and abs(delta) > float(test.drift[0])
    if not is_real:
        left_all, right_all = np.concatenate(known[0]), np.concatenate(known[1])
        is_real = _apart(left_all, right_all, margin) or (delta > 0 and _has_outliers(left_all, right_all, margin))
    return Change(float(left.mean[0]), float(right.mean[0]), is_real, unit)


def _apart(base: Floats, other: Floats, margin: float) -> bool:
    """Whether all cycles of one run exceed all cycles of the other, by more than healthy runs drift.

    With few cycles the test of means cannot estimate how neighbours correlate. This test needs no such estimate. At
    random, cycles would separate like this in 2 of (n choose k) cases, so 4 cycles in each run are enough for 3 %. With
    fewer, only a twofold gap counts.
    """
    gap = max(float(other.min() - base.max()), float(base.min() - other.max()))
    if gap <= margin:
        return False
    if 2 / comb(base.size + other.size, base.size) <= _APART:
        return True
    near, far = sorted((float(base.max()), float(other.max()))), sorted((float(base.min()), float(other.min())))
    return min(base.size, other.size) >= 2 and far[1] >= 2 * near[0]


def _has_outliers(base: Floats, other: Floats, margin: float) -> bool:
    """Whether significantly more cycles of the other run are outliers, or a few are extreme.

    Three cycles of twice the base's longest one, plus the drift, are no accident. For them 5 % is enough in Fisher's
    test, because so few events cannot pass a stricter one.
    """
    share, chance = exceeding(base, other, margin)
    if share >= _LEAST_SHARE and chance <= SURE:
        return True
    n_far = int((other > 2 * float(base.max()) + margin).sum())
    n = base.size + other.size
    return n_far >= _FEW and comb(other.size, n_far) / comb(n, n_far) <= _FAR


def fold(ratio: float) -> str:
    """How many times: '3.4×', '0.9×'."""
    return f"{units.number(float(f'{ratio:.2g}' if ratio < 100 else f'{ratio:.0f}'))}×"


def change_of(base: float | None, other: float | None) -> str:
    """The relative change as text: '+12 %', '−82 %', '3.4×' if it doubles or more, '' if the base is 0 or unknown.

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
    """Both values as text: 'from 1,187 to 210 MHz', 'from 45 ms to 105 ms'."""
    if unit == "kB":
        base, other = (None if value is None else value * 1024 for value in (base, other))
        unit = "bytes"
    if unit is None or unit in _PREFIXED:
        return f"from {units.render(base, unit)} to {units.render(other, unit)}"
    return f"from {units.number(base)} to {units.number(other)} {unit}"


def moved(change: Change, unit: str | None = None) -> str:
    """A change as text: 'fell from 1,187 to 210 MHz (−82 %)'."""
    if not change.base:
        now = units.render(change.other, unit or change.unit)
        return f"is new ({now})" if change.base is None else f"rose from 0 to {now}"
    verb = "rose" if change.delta > 0 else "fell" if change.delta < 0 else "stayed"
    shown = span(change.base, change.other, unit or change.unit)
    relative = change_of(change.base, change.other)
    return f"{verb} {shown}" + (f" ({relative})" if relative and change.delta else "")


def gpu_name(device: str, unnumbered: str = "The GPU") -> str:
    """`GPU 3` for the device `gpu3`; `unnumbered` for a device whose name has no number."""
    return f"GPU {device[3:]}" if device[3:].isdigit() else unnumbered


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
    """A row of evidence with the values of the change."""
    if change is None:
        return Evidence(text, device=device, name=name, metric=metric, unit=unit, role=role)
    return Evidence(text, device, name, metric, unit or change.unit, change.base, change.other, role)
