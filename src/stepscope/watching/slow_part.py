"""Cuts a dump without a profile into two recordings: the steps before the slow ones, and these.

The recording of such a job has nothing that its first steps could be compared with: its counters are those of the last
seconds only. Hence what is compared is the slow steps and those right before them.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import polars as pl

from stepscope.record.counters.writer import HEADER
from stepscope.record.counters.writer import NAME as COUNTERS
from stepscope.record.step_times import write_steps
from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stepscope.record.step_times import TimedStep

#: Fewer steps on a side show nothing.
LEAST_STEPS = 10


def has_profile(dump: Path) -> bool:
    """Whether a dump has the profile of a process."""
    others = (meta.NAME, COUNTERS)
    return any(path.is_file() and not path.name.startswith(".") for path in dump.rglob("*") if path.name not in others)


def cut(
    dump: Path, steps: Mapping[int, Sequence[TimedStep]], pid: int, from_s: float, until_s: float
) -> tuple[Path, Path] | None:
    """Recordings of the steps before, and of the slow ones; null if there are too few of either. Raises OSError.

    The slow steps are those of process `pid` between the two times (seconds since 1970). `steps` are in order of time.
    """
    try:
        rows = pl.read_csv(dump / COUNTERS)
    except (OSError, pl.exceptions.PolarsError):
        return None
    if rows.is_empty():
        return None
    first_s = float(rows["ts_ns"].to_numpy().min() / 1e9)
    sides = []
    for name, low_s, high_s in (("before", first_s, from_s), ("slow", from_s, until_s)):
        inside = {each: [one for one in of if low_s <= one.begin_s and one.end_s <= high_s] for each, of in steps.items()}
        if sum(one.n_steps for one in inside.get(pid, ())) < LEAST_STEPS:
            return None
        sides.append((dump.with_name(f"{dump.name}-{name}"), inside, low_s, high_s))
    for side in sides:
        _write(dump, rows, *side)
    return sides[0][0], sides[1][0]


def slow_until(steps: Sequence[TimedStep], from_s: float, until_s: float) -> float:
    """When the last slow step ended, that of an alarm at `until_s` or one that followed; seconds since 1970.

    A step that followed is slow if it is nearer to those of the alarm than to those before.
    """
    known = [one for one in steps if one.time_ns > 0]
    before, slow = (
        sorted(one.time_ns for one in known if low_s < one.end_s <= high_s)
        for low_s, high_s in ((0.0, from_s), (from_s, until_s))
    )
    if not before or not slow:
        return until_s
    middle_ns = (before[len(before) // 2] * slow[len(slow) // 2]) ** 0.5
    return max((one.end_s for one in known if one.end_s > until_s and one.time_ns >= middle_ns), default=until_s)


def _write(
    dump: Path,
    rows: pl.DataFrame,
    folder: Path,
    steps: Mapping[int, Sequence[TimedStep]],
    low_s: float,
    high_s: float,
) -> None:
    low_ns, high_ns = int(low_s * 1e9), int(high_s * 1e9)
    folder.mkdir()
    document = json.loads((dump / meta.NAME).read_text(encoding="utf-8"))
    meta.write(folder, document | {"start_unix_ns": low_ns, "end_unix_ns": high_ns, "issues": []})
    inside = rows.filter(pl.col("ts_ns").is_between(low_ns, high_ns))
    with gzip.open(folder / COUNTERS, "wt", encoding="utf-8", newline="") as file:
        file.write(HEADER + inside.write_csv(include_header=False))
    for pid, own in steps.items():
        if own:
            write_steps(folder, pid, own)
