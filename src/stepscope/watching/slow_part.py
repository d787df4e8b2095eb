"""Divides a dump without a profile into two recordings: the steps before the slow ones, and these.

Its counters are those of the last seconds only, so the slow steps are compared with those right before them; and with
the steps during which stacks were sampled while the job was healthy.
"""

from __future__ import annotations

import gzip
import json
import shutil
from typing import TYPE_CHECKING

import polars as pl

from stepscope.record.counters.writer import HEADER
from stepscope.record.counters.writer import NAME as COUNTERS
from stepscope.record.stacks.stack_file import NAME as STACKS
from stepscope.record.step_times import write_steps
from stepscope.record.system import meta
from stepscope.watching import stack_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stepscope.record.step_times import RunningJob, TimedStep

#: Fewer steps on a side show nothing.
LEAST_STEPS = 10
#: What is usual is the steps in so many seconds before the slow ones. An earlier fault may be before them.
_USUAL_S = 20.0


def has_profile(dump: Path) -> bool:
    """Whether a dump has the profile of a process."""
    usual = (meta.NAME, COUNTERS, STACKS)
    return any(path.is_file() and not path.name.startswith(".") for path in dump.rglob("*") if path.name not in usual)


def divided(
    job: RunningJob, dump: Path, pids: Sequence[int], pid: int, from_s: float, until_s: float
) -> tuple[Path, Path] | None:
    """Recordings of the steps before, and of the slow ones; null if there are too few of either. Raises OSError.

    The slow steps are those of process `pid` between the two times (seconds since 1970). The recording of the job may
    have stacks of healthy steps.
    """
    try:
        rows = pl.read_csv(dump / COUNTERS)
    except (OSError, pl.exceptions.PolarsError):
        return None
    if rows.is_empty():
        return None
    first_s = float(rows["ts_ns"].to_numpy().min() / 1e9)
    if _n_steps(_within(job, pid, [(from_s - _USUAL_S, from_s)])) >= LEAST_STEPS:
        first_s = max(first_s, from_s - _USUAL_S)
    healthy = stack_samples.span_s(job.folder)
    before = [(first_s, from_s)] if healthy is None or healthy[1] > first_s else [healthy, (first_s, from_s)]
    halves = []
    for name, source, spans in (("before", job.folder, before), ("slow", dump, [(from_s, until_s)])):
        steps = {each: _within(job, each, spans) for each in pids}
        if _n_steps(steps[pid]) < LEAST_STEPS:
            return None
        halves.append((dump.with_name(f"{dump.name}-{name}"), source, steps, (spans[0][0], spans[-1][1])))
    for half in halves:
        _write(dump, rows, *half)
    return halves[0][0], halves[1][0]


def _n_steps(steps: Sequence[TimedStep]) -> int:
    return sum(one.n_steps for one in steps)


def _within(job: RunningJob, pid: int, spans: Sequence[tuple[float, float]]) -> list[TimedStep]:
    """The whole steps of a process in some spans of time."""
    return [one for low_s, high_s in spans for one in job.steps_within(pid, low_s, high_s) if one.begin_s >= low_s]


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
    source: Path,
    steps: Mapping[int, Sequence[TimedStep]],
    span_s: tuple[float, float],
) -> None:
    low_ns, high_ns = (int(time_s * 1e9) for time_s in span_s)
    folder.mkdir()
    document = json.loads((dump / meta.NAME).read_text(encoding="utf-8"))
    meta.write(folder, document | {"start_unix_ns": low_ns, "end_unix_ns": high_ns, "issues": []})
    inside = rows.filter(pl.col("ts_ns").is_between(low_ns, high_ns))
    with gzip.open(folder / COUNTERS, "wt", encoding="utf-8", newline="") as file:
        file.write(HEADER + inside.write_csv(include_header=False))
    if (source / STACKS).exists():
        shutil.copyfile(source / STACKS, folder / STACKS)
    for pid, own in steps.items():
        if own:
            write_steps(folder, pid, own)
