"""What a series of runs says: the level of the step, where it changed, and which kind of change each is.

A change is a regression (or an improvement) only if nothing else explains it. Before that come another machine or
version, and another amount or kind of work: times then cannot be compared.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.history.change_points import levels_of
from stepscope.comparison.statistics import PRIOR_REACH, SPREAD_SHARE
from stepscope.comparison.verdict import STEP_DRIFT
from stepscope.core import units
from stepscope.core.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.comparison.history.digest import Digest, Head

Kind = Literal["regression", "improvement", "workload", "hardware", "version", "outlier", "open"]
#: Kinds in which the job did the same work on the same machine.
OF_THE_PROGRAM = ("regression", "improvement")
HISTORY = Table(
    "history",
    "runs of a store in the order in which they were recorded, with the level of their steps",
    (
        Column("run", pl.Int64(), "number of the run in the series, from 1", key=True),
        Column("recorded", pl.String(), "when it was recorded, or added if that is unknown, UTC"),
        Column("label", pl.String(), "the label that it was added with"),
        Column("commit", pl.String(), "the commit that it was added with"),
        Column("n_ranks", pl.Int64(), "its processes"),
        Column("n_cycles", pl.Int64(), "its complete steps"),
        Column("step_ns", pl.Float64(), "the mean step", "ns"),
        Column("error_ns", pl.Float64(), "standard error of that mean; null with one step", "ns"),
        Column("level_ns", pl.Float64(), "the mean of its level: the runs between two changes", "ns"),
        Column("change", pl.String(), "regression, improvement, workload, hardware, version where a level begins; "
               "outlier: this run alone; open: the last run stands out, and the next will show"),
        Column("change_ratio", pl.Float64(), "that change of the step, against the level before", "ratio"),
        Column("reason", pl.String(), "what differs on both sides of the change"),
        Column("key", pl.String(), "name of its digest in the store"),
    ),
)  # fmt: skip
#: Share of the work that only one side does, from which on the runs do other work.
_OTHER_WORK = 0.1
#: Runs on each side of a change whose digests are compared.
_AROUND = 3
#: The kinds of change that other facts explain, the first to be named first.
_OF_FACTS: dict[Kind, tuple[str, ...]] = {
    "hardware": ("hardware",),
    "version": ("driver", "framework"),
    "workload": ("job", "recorder"),
}
_MOST_FUNCTIONS = 3


class Change(msgspec.Struct, frozen=True):
    """A change of the step, or a run that stands out: `at` is the first run (from 0) that has it.

    `before_ns` and `after_ns` are the levels on both sides. `p_value` is None for single runs.
    """

    at: int
    kind: Kind
    before_ns: float
    after_ns: float
    p_value: float | None
    reason: str = ""

    @property
    def ratio(self) -> float:
        """The change against the level before: 0.05 is 5 % slower."""
        return self.after_ns / self.before_ns - 1


class Series(msgspec.Struct, frozen=True):
    """Runs in order of time, with the changes between them and the level (ns) of each."""

    heads: tuple[Head, ...]
    levels_ns: tuple[float, ...]
    changes: tuple[Change, ...]


def series_of(heads: Iterable[Head], digest: Callable[[Head], Digest | None]) -> Series:
    """The series of some runs. `digest` reads all that is known of one of them; None where it cannot be read."""
    ordered = tuple(sorted({head.key: head for head in heads}.values(), key=lambda head: (moment(head), head.key)))
    steps = np.array([head.step_ns for head in ordered])
    if not steps.size:
        return Series((), (), ())
    spread = float(np.median([head.spread_ratio for head in ordered]))
    split = levels_of(steps, max(STEP_DRIFT / PRIOR_REACH, SPREAD_SHARE * spread))
    bounds = [*split.starts, steps.size]
    single = {*split.single, *([steps.size - 1] if split.last_is_open else [])}
    level_of, changes = np.empty(steps.size), []
    means: list[float] = []
    for low, high in itertools.pairwise(bounds):
        usual = [i for i in range(low, high) if i not in single] or list(range(low, high))
        means.append(float(steps[usual].mean()))
        level_of[low:high] = means[-1]
    for k, (start, p_value) in enumerate(zip(split.starts[1:], split.p_values, strict=True), 1):
        before = [digest(head) for head in ordered[max(bounds[k - 1], start - _AROUND) : start]]
        after = [digest(head) for head in ordered[start : min(bounds[k + 1], start + _AROUND)]]
        kind, reason = _explained([d for d in before if d], [d for d in after if d], is_slower=means[k] > means[k - 1])
        changes.append(Change(start, kind, means[k - 1], means[k], p_value, reason))
    changes += [Change(i, "outlier", level_of[i], steps[i], None, "the runs around it are alike")
                for i in split.single]  # fmt: skip
    if split.last_is_open:
        changes.append(Change(steps.size - 1, "open", level_of[-1], steps[-1], None, "one more run will show"))
    return Series(ordered, tuple(level_of.tolist()), tuple(sorted(changes, key=lambda change: change.at)))


def moment(head: Head) -> int:
    """When a run was recorded, or added where that is unknown: ns since 1970."""
    return head.added_unix_ns if head.recorded_unix_ns is None else head.recorded_unix_ns


def rows_of(series: Series) -> pl.DataFrame:
    """HISTORY of a series."""
    changes = {change.at: change for change in series.changes}
    rows = []
    for i, (head, level) in enumerate(zip(series.heads, series.levels_ns, strict=True)):
        change = changes.get(i)
        rows.append((
            i + 1, units.instant(moment(head)), head.label or None, head.commit or None, head.n_ranks, head.n_cycles,
            head.step_ns, head.error_ns, level, change and change.kind, change and change.ratio,
            (change and change.reason) or None, head.key,
        ))  # fmt: skip
    return HISTORY.conform(pl.DataFrame(rows, schema=HISTORY.dtypes, orient="row"))


def _explained(before: Sequence[Digest], after: Sequence[Digest], *, is_slower: bool) -> tuple[Kind, str]:
    """The kind of a change between two levels, and what differs."""
    own: Kind = "regression" if is_slower else "improvement"
    if not before or not after:
        return own, "the digests of these runs cannot be read, so nothing else is known"
    facts = _other_facts(before, after)
    for kind, groups in _OF_FACTS.items():
        if reasons := [text for group, text in facts if group in groups]:
            return kind, "; ".join(reasons)
    if reason := _other_work(before, after):
        return "workload", reason
    return own, _what_moved(before, after, is_slower=is_slower)


def _other_facts(before: Sequence[Digest], after: Sequence[Digest]) -> list[tuple[str, str]]:
    """Facts that all runs of both sides state, and that no run of one side shares with one of the other."""
    stated_by = []
    for digests in (before, after):
        stated: dict[tuple[str, str], list[str]] = {}
        for digest in digests:
            for kind, fact, value in digest.setup:
                stated.setdefault((kind, fact), []).append(value)
        stated_by.append(stated)
    rows = []
    for (kind, fact), values in stated_by[0].items():
        since = stated_by[1].get((kind, fact), [])
        if len(values) >= len(before) and len(since) >= len(after) and not set(values) & set(since):
            rows.append((kind, f"{fact} {' and '.join(sorted(set(values)))} → {' and '.join(sorted(set(since)))}"))
    return rows


def _other_work(before: Sequence[Digest], after: Sequence[Digest]) -> str:
    """What tells that the steps of both sides do other work; empty if they do the same."""
    left, right = _work(before), _work(after)
    total = sum(time for _, time in (*left.values(), *right.values()))
    if not total:
        return ""
    only = [key for key in {*left, *right} if (key in left) != (key in right)]
    both = [key for key in left if key in right and not _alike(left[key][0], right[key][0])]
    times = {key: left.get(key, (0.0, 0.0))[1] + right.get(key, (0.0, 0.0))[1] for key in (*only, *both)}
    if sum(times.values()) < _OTHER_WORK * total:
        return ""
    name, shapes = max(times, key=lambda key: (times[key], key))
    if (name, shapes) in both:
        calls = (left[name, shapes][0], right[name, shapes][0])
        return f"calls of {name} per step {units.number(calls[0])} → {units.number(calls[1])}"
    here, there = ("; ".join(sorted(s for n, s in side if n == name and s)[:1]) or "none" for side in (left, right))
    if here != there and "none" not in (here, there):
        return f"sizes of {name} {here} → {there}"
    return f"only {'the runs before' if (name, shapes) in left else 'the runs since'} call {name}"


def _work(digests: Sequence[Digest]) -> dict[tuple[str, str], tuple[float, float]]:
    """Calls per step and time of each size of work: the mean over the runs that do it."""
    sums: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for digest in digests:
        for size in digest.sizes:
            sums.setdefault((size.name, size.shapes), []).append((size.calls, size.total_ns))
    return {
        key: (sum(calls for calls, _ in rows) / len(rows), sum(time for _, time in rows) / len(rows))
        for key, rows in sums.items()
    }


def _alike(one: float, two: float) -> bool:
    return abs(one - two) <= _OTHER_WORK * max(one, two)


def _what_moved(before: Sequence[Digest], after: Sequence[Digest], *, is_slower: bool) -> str:
    """The part of the step and the functions that moved most in the direction of the change."""
    sign = 1.0 if is_slower else -1.0
    parts = _moved([digest.parts for digest in before], [digest.parts for digest in after], sign)
    own = [
        [{f"{row.name} ({row.device})": row.self_ns for row in digest.functions} for digest in side]
        for side in (before, after)
    ]
    functions = _moved(own[0], own[1], sign)
    if not parts:
        return ""
    name, delta = parts[0]
    text = f"{name} {_signed(sign * delta)} per step"
    large = [f"{name} {_signed(sign * by)}" for name, by in functions if by >= delta / 5]
    return f"{text}; most of it in {', '.join(large[:_MOST_FUNCTIONS])}" if large else text


def _signed(ns: float) -> str:
    return ("+" if ns > 0 else "") + units.duration(ns)


def _moved(
    before: Sequence[dict[str, float]], after: Sequence[dict[str, float]], sign: float
) -> list[tuple[str, float]]:
    """Names by how far their mean moved in the direction of `sign`, the farthest first; those that moved back not."""
    means = [
        {name: sum(run.get(name, 0.0) for run in side) / len(side) for run in side for name in run}
        for side in (before, after)
    ]
    deltas = [(name, sign * (means[1].get(name, 0.0) - means[0].get(name, 0.0))) for name in {**means[0], **means[1]}]
    return sorted((row for row in deltas if row[1] > 0), key=lambda row: (-row[1], row[0]))
