"""What the reader of a comparison should know of the cycles and samples that were observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl

__all__ = ["elsewhere", "left_out", "without_counters"]

_BLIND = "causes that only counters show cannot be seen"
#: What readers say of counters that they found and could not use.
_UNUSABLE = ("counters_unplaced", "counters_unreadable")
_NS = 1e9
_HOUR = 3600.0


def left_out(cycles: pl.DataFrame) -> list[str]:
    """Which cycles do not count, and whether too few do."""
    notes = []
    complete = cycles["is_complete"].fill_null(value=True)
    if not complete.all():
        numbers = cycles["cycle"].filter(~complete).to_list()
        shown = ", ".join(map(str, numbers[:8])) + (f" … {numbers[-1]}" if len(numbers) > 8 else "")
        notes.append(f"recorded in part and left out: {'cycle' if len(numbers) == 1 else 'cycles'} {shown}")
    n = int(complete.sum())
    if n < 2:
        notes.append(f"{('no', 'one')[n]} complete cycle{'' if n else 's'}: how much cycles vary is not known")
    return notes


def without_counters(issues: pl.DataFrame) -> str:
    """That there are no counters: none were recorded, or what the reader of the recording says of them."""
    said = [example for code, example in issues.select("code", "example").iter_rows() if code in _UNUSABLE]
    return f"counters are not used ({said[0]}): {_BLIND}" if said else f"no counters were recorded: {_BLIND}"


def elsewhere(counters: pl.DataFrame, cycles: pl.DataFrame) -> str:
    """That no sample lies within the cycles, and by how much they are off; whole hours hint at a time zone."""
    first, last = (float(f(counters["ts_ns"].to_numpy())) for f in (np.min, np.max))
    low = float(cycles["ts_ns"].to_numpy().min())
    high = float((cycles["ts_ns"] + cycles["dur_ns"]).to_numpy().max())
    side, off = ("after", first - high) if first > high else ("before", low - last)
    hours = abs((first + last) - (low + high)) / 2 / _NS / _HOUR
    zone = f", perhaps a time zone of {round(hours)} h" if hours > 0.4 and abs(hours - round(hours)) < 0.05 else ""
    where = f"all are at least {off / _NS:,.1f} s {side} them{zone}" if off > 0 else "they pause while the cycles run"
    return f"no sample of the counters lies within the cycles ({where}): counters are not used"
