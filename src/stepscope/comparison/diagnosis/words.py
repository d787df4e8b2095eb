"""Numbers of a diagnosis as people write them: from 1,187 to 210 MHz (−82 %)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.comparison.model import Evidence
from stepscope.core import units

if TYPE_CHECKING:
    from stepscope.comparison.diagnosis.change import Change

__all__ = ["change_of", "evidence", "fold", "moved", "span"]

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
