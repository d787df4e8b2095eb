"""Says whether slow steps were slow because the process waited for a core: from the counters of the last minute.

The first steps of a job say little of that where the load of the machine changes by the minute. What is compared is
the slow steps and those before them that said what was expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stepscope.core.units import duration
from stepscope.watching.expected_time import LEVEL_CYCLES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.record.step_times import TimedStep

#: Part of the longer step that longer waits must explain.
_MOST = 0.7
#: A smaller change of the step needs no cause. Fewer steps before say nothing.
_LEAST_CHANGE, _LEAST_STEPS = 0.05, 10
#: A sample is of the time since the one before, at most so long.
_SAMPLE_S = 0.1
_WAITED, _RAN = "process_runq_time", "process_oncpu_time"


class Stretch(NamedTuple):
    """Means of a stretch of steps, ns a step: its time, in which its threads waited for a core, and ran on one."""

    step: float
    waited: float
    ran: float


def stretches_of(
    counters: Path, pid: int, steps: Sequence[TimedStep], from_s: float, until_s: float
) -> tuple[Stretch, Stretch] | None:
    """The means of the steps before the slow ones, and of these; null if nothing is known of either.

    `steps` are in order of time; those that ended after `from_s` and until `until_s` are the slow ones. `counters` is
    the file of a dump, in Unix time.
    """
    rows = _samples(counters, pid)
    known = [one for one in steps if one.time_ns > 0]
    before = [one for one in known if one.end_s <= from_s][-LEVEL_CYCLES:]
    if rows is None or rows.is_empty() or len(before) < _LEAST_STEPS:
        return None
    usual, slow = _stretch(rows, before), _stretch(rows, [one for one in known if from_s < one.end_s <= until_s])
    return None if usual is None or slow is None else (usual, slow)


def _samples(path: Path, pid: int) -> pl.DataFrame | None:
    """Time (s), metric and value of the process' own counters; null if the file cannot be read."""
    try:
        rows = pl.read_csv(path, columns=["ts_ns", "metric", "device", "value"])
        mine = (pl.col("device") == f"pid:{pid}") & pl.col("metric").is_in([_WAITED, _RAN])
        return rows.filter(mine).select(pl.col("metric"), pl.col("value"), at_s=pl.col("ts_ns") / 1e9)
    except (OSError, pl.exceptions.PolarsError):
        return None


def _stretch(rows: pl.DataFrame, steps: Sequence[TimedStep]) -> Stretch | None:
    """The means of those steps that counters cover; null if there are none."""
    first_s = float(rows["at_s"][0])
    covered = [one for one in steps if one.begin_s >= first_s]
    if not covered:
        return None
    inside = rows.filter(pl.col("at_s").is_between(covered[0].begin_s, covered[-1].end_s + _SAMPLE_S))
    shares = dict(inside.group_by("metric").agg(pl.col("value").mean() / 1e9).iter_rows())
    if set(shares) != {_WAITED, _RAN}:
        return None
    step = sum(one.time_ns * one.n_steps for one in covered) / sum(one.n_steps for one in covered)
    return Stretch(step, step * shares[_WAITED], step * shares[_RAN])


def sentence_of(usual: Stretch, slow: Stretch) -> str:
    """Where the time of the slow steps went, as far as counters tell.

    Threads that run at the same time leave less of a step for other waits than it has.
    """
    parts = {
        "ran": (usual.ran, slow.ran),
        "waited for a core": (usual.waited, slow.waited),
        "slept or waited for something else": (_rest(usual), _rest(slow)),
    }
    texts = [f"{name} {duration(before)} → {duration(since)}" for name, (before, since) in parts.items()]
    return f"per step the process {texts[0]}, {texts[1]}, {texts[2]}"


def _rest(one: Stretch) -> float:
    return max(one.step - one.ran - one.waited, 0.0)


def cause_of(usual: Stretch, slow: Stretch) -> dict[str, Any] | None:
    """The cause `cpu_contention` if waits for a core explain the slow steps, with the fields of one of `compare`."""
    longer = slow.step - usual.step
    # On a machine that is as busy as before, more work waits more. Threads of the process wait for each other too, at
    # most as long as they run more.
    more_work = max(slow.ran / usual.ran, 1.0) if usual.ran else 1.0
    for_each_other = max(slow.ran - usual.ran, 0.0)
    waits = min(slow.waited - more_work * usual.waited - for_each_other, longer)
    if longer < _LEAST_CHANGE * usual.step or waits < _MOST * longer:
        return None
    waited, ran = (
        f"{duration(before)} → {duration(since)}"
        for before, since in ((usual.waited, slow.waited), (usual.ran, slow.ran))
    )
    texts = ("time waiting for a core, per step", "own processor time per step")
    pairs = ((usual.waited, slow.waited), (usual.ran, slow.ran))
    roles = ("necessary", "supporting")
    shared = {"device": "process", "unit": "ns"}
    evidence = [
        {"text": text, "metric": metric, "base": before, "other": since, "role": role} | shared
        for text, metric, (before, since), role in zip(texts, (_WAITED, _RAN), pairs, roles, strict=True)
    ]
    statement = f"The process waited longer for a core than just before, {waited} per step; it ran {ran}."
    advice = "see what else runs there (top, pidstat 1); pin the job to cores of its own (taskset, cpuset, numactl)"
    return {
        "category": "cpu_contention", "certainty": "likely", "statement": statement, "rank": None,
        "explained_ns": waits, "gain": None, "evidence": evidence, "advice": advice,
    }  # fmt: skip
