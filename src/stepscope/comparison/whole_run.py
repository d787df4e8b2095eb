"""The steps of the whole run, which `stepscope record` times besides the profile: hundreds, where a profile has ten.

They decide whether two runs differ, and they show what a profile of a few steps misses: work that comes every so many
steps, a tail of slow steps, and steps that grow. The profile explains where the time goes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison._resources import by_cycle, counters_around
from stepscope.comparison.model import PROCESS, RUN_RESOURCES, TIMED_STEPS
from stepscope.comparison.statistics import more_often
from stepscope.core.arrays import distinct_values

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.model import Observation, Pair
    from stepscope.comparison.statistics import Floats
    from stepscope.core.trace import Trace

#: Fewer steps decide nothing: the profile has as many.
LEAST_STEPS = 40
#: Steps at the start of a run that warm it up: so many, or this share if that is more.
_WARM_UP, _WARM_UP_SHARE = 3, 0.05
#: Neighbouring steps of a run are averaged: the means of so many stretches are as good as independent.
_BLOCKS = 40
#: A slow step takes this share of the typical step longer, and so many standard deviations of the usual scatter.
_SLOW, _SIGMAS = 0.3, 6.0
#: Slow steps make a tail if there are so many, not in a single stretch: in at least half of so many stretches.
_LEAST_SLOW, _STRETCHES = 5, 10
#: Steps that take so many typical steps longer are far from all others: fewer make a tail, each in another stretch.
_FAR, _LEAST_FAR = 2.0, 3
#: Slow steps are regular if so many of the steps at a distance are slow, and have this part of the tail's time. A
#: longer distance that has nearly as much is the better one, since shorter ones divide it.
_REGULAR, _MOST_OF_TAIL, _LESS = 0.8, 0.4, 0.1
#: Of sampled steps these seem slow, from fewer standard deviations on. Half of those at a regular distance must, by a
#: chance of one in a thousand.
_SEEMS_SIGMAS, _HALF, _BY_CHANCE = 3.0, 0.5, 0.001
_MAD_TO_SD = 1.4826
#: A stretch holds a slow step if its mean step is longer by this part of what one adds to it.
_HOLDS = 0.3
#: Part of the length of slow steps from which on one of the base may be the same.
_ALIKE = 0.5
#: Steps grow if their order by length is nearly that of time, and they grow by this part over the run.
STEADY, _MUCH = 0.9, 0.2


def timed_steps(trace: Trace, pid: int | None) -> pl.DataFrame:
    """TIMED_STEPS of a process, of all if `pid` is None; those that another source marks than most are left out."""
    rows = trace.step_times if pid is None else trace.step_times.filter(pl.col("pid") == pid)
    if rows.is_empty() or rows["pid"].n_unique() > 1:
        return TIMED_STEPS.empty()
    by_source = rows.group_by("source").agg(pl.col("n_steps").sum()).sort("n_steps", descending=True)
    rows = rows.filter(pl.col("source") == by_source["source"][0]).sort("ts_ns")
    numbered = rows.with_columns(
        step=pl.col("n_steps").cast(pl.Int64).cum_sum() - pl.col("n_steps"),
        dur_ns=pl.col("dur_ns") / pl.col("n_steps"),
        inside_ns=pl.col("inside_ns") / pl.col("n_steps"),
    )
    skipped = max(_WARM_UP, int(_WARM_UP_SHARE * int(rows["n_steps"].sum())))
    return TIMED_STEPS.conform(numbered.filter(~pl.col("is_profiled") & (pl.col("step") >= skipped)))


def last_step_ns(steps: pl.DataFrame) -> int | None:
    """The end of the last step of TIMED_STEPS, after which a job only tidies up; None if no steps were timed."""
    end = steps.select((pl.col("ts_ns") + pl.col("dur_ns") * pl.col("n_steps")).max()).item()
    return None if end is None else int(end)


def n_steps(pairs: Sequence[Pair], *, side: str) -> int:
    """How many steps of the whole run were timed on a side, of its first process in all repeats."""
    return sum(int(run.steps["n_steps"].sum()) for run in getattr(pairs[0], side)) if pairs else 0


def run_steps(pairs: Sequence[Pair], *, side: str) -> list[Floats]:
    """Of each repeat of a side the mean step (ns) of each of 40 stretches of its run, mean over its processes.

    Empty if a process has no times of steps, or too few.
    """
    n_runs = min((len(getattr(pair, side)) for pair in pairs), default=0)
    runs = [[getattr(pair, side)[i] for pair in pairs] for i in range(n_runs)]
    if not all(int(process.steps["n_steps"].sum()) >= LEAST_STEPS for run in runs for process in run):
        return []
    means: list[Floats] = [np.mean([stretches(process.steps) for process in run], axis=0) for run in runs]
    return means


def mean_step_ns(steps: pl.DataFrame) -> float:
    """The mean of all steps of TIMED_STEPS, of which a row may hold several."""
    counts = steps["n_steps"].to_numpy()
    return float((steps["dur_ns"].to_numpy() * counts).sum() / counts.sum())


def stretches(steps: pl.DataFrame, n: int = _BLOCKS) -> Floats:
    """The mean step of each of `n` stretches of TIMED_STEPS that have about as many steps. Units: ns.

    Their mean is that of all steps, although one stretch may have a step more than another.
    """
    frame = _stretched(steps, n)
    # A row of many steps may leave a stretch without its own.
    values: Floats = np.interp(np.arange(n), frame["stretch"].to_numpy(), frame["step_ns"].to_numpy())
    return values * (mean_step_ns(steps) / values.mean()) if values.any() else values


def _stretched(steps: pl.DataFrame, n: int) -> pl.DataFrame:
    """A row for each stretch that has steps: stretch, ts_ns, dur_ns (from its first step to its last), step_ns."""
    before = pl.col("n_steps").cum_sum() - pl.col("n_steps")
    whole = pl.col("dur_ns") * pl.col("n_steps")
    rows = steps.with_columns(stretch=before * n // pl.col("n_steps").sum(), end_ns=pl.col("ts_ns") + whole)
    sums = rows.group_by("stretch").agg(
        pl.col("ts_ns").min(), pl.col("end_ns").max(), step_ns=whole.sum() / pl.col("n_steps").sum()
    )
    return sums.with_columns(dur_ns=(pl.col("end_ns") - pl.col("ts_ns")).cast(pl.Int64)).sort("stretch")


def run_resources(trace: Trace, pid: int | None, siblings: Collection[int], steps: pl.DataFrame) -> pl.DataFrame:
    """RUN_RESOURCES of a process from the samples of its counters while TIMED_STEPS ran; empty with too few steps."""
    if int(steps["n_steps"].sum()) < LEAST_STEPS:
        return RUN_RESOURCES.empty()
    bounds = _stretched(steps, _BLOCKS)
    low, high = int(bounds["ts_ns"][0]), int(bounds["ts_ns"][-1] + bounds["dur_ns"][-1])
    samples = counters_around(trace.counters, pid, siblings, low, high)
    means = by_cycle(samples, bounds.rename({"stretch": "cycle"}))
    return RUN_RESOURCES.conform(means.rename({"cycle": "stretch"}).join(bounds, on="stretch", how="left"))


def elapsed_step_ns(runs: Sequence[Observation]) -> float:
    """The mean step of the stretches of repeats that have RUN_RESOURCES, with all time in which they wait."""
    return float(np.mean([run.run_resources.unique("stretch")["step_ns"].to_numpy().mean() for run in runs]))


class Tail(msgspec.Struct, frozen=True):
    """Steps of a run that take much longer than its typical step. Units: ns.

    `excess_ns` is what they add to the mean step, `each_ns` what each takes beyond the typical one, and `is_far` says
    that this is twice the typical step or more. `every` is their distance in steps if it is regular. `is_spread` says
    whether they come all over the run, `is_apart` whether each of three or more is in another stretch.
    """

    n_steps: int
    n_slow: int
    excess_ns: float
    each_ns: float
    every: int | None
    is_spread: bool
    is_far: bool = False
    is_apart: bool = False


def tail(steps: pl.DataFrame, *, least_ns: float = 0.0, by_distance: bool = True, is_sampled: bool = False) -> Tail:
    """The tail of a run's steps; of rows that stand for several steps the mean counts.

    If many slow steps come at a regular distance the tail is these alone, unless not `by_distance`. Slow steps take at
    least `least_ns` more than the typical one. Their lengths may be known by samples only (`is_sampled`).
    """
    total = int(steps["n_steps"].sum())
    if total < LEAST_STEPS:
        return Tail(total, 0, 0.0, 0.0, None, is_spread=False)
    values, counts, at = (steps[name].to_numpy() for name in ("dur_ns", "n_steps", "step"))
    middle = float(np.median(np.repeat(values, counts)))
    is_slow, every = slow_steps(steps, least_ns=least_ns, by_distance=by_distance, is_sampled=is_sampled)
    n_slow = int(is_slow.sum())
    span = max(int(at[-1] - at[0]) + 1, 1)
    held = distinct_values((at[is_slow] - at[0]) * _STRETCHES // span).size
    extra = ((values - middle) * counts)[is_slow]
    each_ns = float(extra.mean()) if n_slow else 0.0
    is_far = n_slow > 0 and each_ns >= _FAR * middle
    is_spread = n_slow >= _LEAST_SLOW and 2 * held >= min(_STRETCHES, n_slow)
    is_apart = n_slow >= _LEAST_FAR and held == n_slow
    is_spread |= is_far and is_apart
    return Tail(total, n_slow, float(extra.sum()) / total, each_ns, every, is_spread, is_far, is_apart)


def slow_steps(
    steps: pl.DataFrame, *, least_ns: float = 0.0, by_distance: bool = True, is_sampled: bool = False
) -> tuple[NDArray[np.bool_], int | None]:
    """Which of TIMED_STEPS are the tail that `tail` describes, and their distance in steps if that is regular.

    Samples miss some of these and find others slow, so of sampled steps all at that distance are the tail.
    """
    values, counts, at = (steps[name].to_numpy() for name in ("dur_ns", "n_steps", "step"))
    if counts.sum() < LEAST_STEPS:
        return np.zeros(values.size, np.bool_), None
    each = np.repeat(values, counts)
    middle = float(np.median(each))
    scatter = _MAD_TO_SD * float(np.median(np.abs(each - middle)))
    if is_sampled and by_distance:
        seems_slow = values > middle + max(_SLOW * middle, _SEEMS_SIGMAS * scatter, least_ns)
        period = _period_of_sampled(at, seems_slow)
        if period is not None:
            return at % period[0] == period[1], period[0]
    is_slow = values > middle + max(_SLOW * middle, _SIGMAS * scatter, least_ns)
    period = _period(at, is_slow, values - middle) if by_distance and not is_sampled else None
    if period is None:
        return is_slow, None
    every, phase = period
    return is_slow & (at % every == phase), every


def _period(at: NDArray[np.int64], is_slow: NDArray[np.bool_], extra: Floats) -> tuple[int, int] | None:
    """The distance of slow steps and the first of them, if nearly each step at that distance is slow; None if not.

    These steps must have much of the time of all slow steps, and the others be slow far less often.
    """
    slow, whole = at[is_slow], float(extra[is_slow].sum())
    if slow.size < _LEAST_SLOW:
        return None
    best, most = None, _MOST_OF_TAIL
    share = slow.size / at.size
    for distance in range(2, int(at[-1] - at[0]) // _LEAST_SLOW + 1):
        held = np.bincount(slow % distance, extra[is_slow], minlength=distance)
        phase = int(held.argmax())
        if held[phase] <= most * whole:
            continue
        is_there = at % distance == phase
        is_regular = is_slow[is_there].mean() >= max(_REGULAR, min(2 * share, 1.0)) if is_there.any() else False
        if is_regular and is_there.sum() >= _LEAST_SLOW:
            best, most = (distance, phase), max(most, float(held[phase]) / whole - _LESS)
    return best


def _period_of_sampled(at: NDArray[np.int64], is_slow: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The distance of slow steps and the first of them, if half of the steps at that distance are slow; None if not.

    That must be no accident: Fisher's exact test, times the number of distances and first steps that are tried.
    """
    slow, most = at[is_slow], int(at[-1] - at[0]) // _LEAST_SLOW
    best, least = None, _BY_CHANCE / max(most - 1, 1)
    for distance in range(2, most + 1):
        held, there = (np.bincount(part % distance, minlength=distance) for part in (slow, at))
        phase = int(held.argmax())
        n_slow, n = int(held[phase]), int(there[phase])
        if n_slow < max(_LEAST_SLOW, _HALF * n):
            continue
        chance = distance * more_often(n_slow, n, slow.size - n_slow, at.size - n)
        if chance < least:
            best, least = (distance, phase), chance
    return best


def growth(steps: pl.DataFrame) -> tuple[float, float]:
    """How much longer the steps of the last quarter of a run take than those of the first, and how steadily (−1..1).

    Steadiness is Spearman's rank correlation of the typical step of stretches with their order. Units: ns.
    """
    return _growth(steps["dur_ns"].to_numpy()) if int(steps["n_steps"].sum()) >= LEAST_STEPS else (0.0, 0.0)


def growth_on_cores(run: Observation) -> tuple[float, float]:
    """The same of the time for which the process' threads are on cores, per step: waits are no part of it.

    (0, 0) if it was not recorded. Units: ns.
    """
    times = _per_step(run, "process_oncpu_time")
    return (0.0, 0.0) if times is None else _growth(times[1])


def _growth(values: Floats) -> tuple[float, float]:
    parts = np.array_split(values, 20)
    typical = np.array([np.median(part) for part in parts if part.size])
    if typical.size < 8 or np.ptp(typical) == 0:
        return 0.0, 0.0
    quarter = typical.size // 4
    rise = float(np.median(typical[-quarter:]) - np.median(typical[:quarter]))
    return rise, _steadiness(typical)


def part_of_slow(run: Observation, *metrics: str) -> float | None:
    """Of the time that slow stretches of a run take longer than the others, the part that the process spent so, 0..1.

    The first of `metrics` that was recorded counts the time: waits for a core, or collections. Slow are stretches that
    hold slow steps. None if there are none, or if none of the metrics was recorded.
    """
    times, slow_steps = _per_step(run, *metrics), tail(run.steps, by_distance=False)
    if times is None or not slow_steps.n_slow:
        return None
    step, wait = times
    middle = float(np.median(step))
    is_slow = step > middle + _HOLDS * slow_steps.each_ns * _BLOCKS / slow_steps.n_steps
    if not is_slow.any() or is_slow.all():
        return None
    more = wait[is_slow].mean() - np.median(wait[~is_slow])
    return float(np.clip(more / (step[is_slow].mean() - middle), 0.0, 1.0))


def _per_step(run: Observation, *metrics: str) -> tuple[Floats, Floats] | None:
    """Of each stretch of a run the mean step, and the time in it that the first of `metrics` that was recorded counts.

    None if none was recorded of the process. Units: ns.
    """
    mine = run.run_resources.filter(pl.col("device").cast(pl.String) == PROCESS)
    parts = (mine.filter(pl.col("metric").cast(pl.String) == metric) for metric in metrics)
    rows = next((part for part in parts if part.height), mine.clear()).sort("stretch")
    step = rows["step_ns"].to_numpy()
    return (step, rows["mu"].to_numpy() / 1e9 * step) if rows.height else None


class Tails(msgspec.Struct, frozen=True):
    """The tails of both runs: of several repeats the largest of the base, and the smallest of the other.

    `n_steps_base` and `n_slow_base` are of all repeats of the base. `comes_in_base` says that one of them has slow
    steps at the same regular distance, `is_usual` that these are as long. `is_sampled` says that samples tell which
    steps are slow.
    """

    base: Tail
    other: Tail
    n_steps_base: int
    is_usual: bool
    n_slow_base: int = 0
    comes_in_base: bool = False
    is_sampled: bool = False

    @property
    def share(self) -> float:
        """How many more of the other run's steps are slow, 0..1."""
        return self.other.n_slow / self.other.n_steps - self.base.n_slow / self.base.n_steps

    @property
    def p_value(self) -> float:
        """The chance of as many slow steps in the other run if both are alike; 1 if they are not all over it.

        All repeats of the base count, and as if each had as many slow steps as the one that has most. If slow steps
        come at a regular distance, of the steps at that distance so many are slow, for any distance and first step.
        """
        if not self.other.is_spread:
            return 1.0
        n_slow = round(self.base.n_slow / self.base.n_steps * self.n_steps_base)
        anywhere = more_often(self.other.n_slow, self.other.n_steps, n_slow, self.n_steps_base)
        if self.other.every is None or self.comes_in_base or self.is_sampled:
            return anywhere
        n_there = max(self.other.n_steps // self.other.every, self.other.n_slow)
        tried = (self.other.n_steps / _LEAST_SLOW) ** 2 / 2
        return min(anywhere, tried * more_often(self.other.n_slow, n_there, n_slow, self.n_steps_base))

    @property
    def likely_p_value(self) -> float:
        """The same where something else speaks for a tail: fewer steps suffice, and the base's repeats are one run."""
        is_there = self.other.is_spread or self.other.is_apart
        counts = self.other.n_slow, self.other.n_steps, self.n_slow_base, self.n_steps_base
        return more_often(*counts) if is_there else 1.0

    @property
    def added_ns(self) -> float:
        """How much more slow steps add to the mean step of the other run. Units: ns."""
        return self.other.excess_ns - self.base.excess_ns


def tails_of(pair: Pair) -> Tails | None:
    """The tails of a process in both runs; None if a run has too few times of steps, or its long ones may be waits.

    Steps of a server count without their waits for requests, if samples of its stack tell these.
    """
    of_run = partial(tail, is_sampled=pair.answers_requests)
    left, right = (of_processes(side, worked=pair.answers_requests) for side in (pair.base, pair.other))
    if not left or not right:
        return None
    other = min((of_run(steps) for steps in right), key=lambda one: one.excess_ns)
    # Slow steps that are far shorter than those of the other run are something else, on both sides.
    least_ns = _ALIKE * other.each_ns
    # Where no slow steps of the other run are left out, none of the base are.
    by_distance = other.every is not None
    if not by_distance:
        again = (of_run(steps, least_ns=least_ns, by_distance=False) for steps in right)
        other = min(again, key=lambda one: one.excess_ns)
    tails = [of_run(steps, least_ns=least_ns, by_distance=by_distance) for steps in left]
    base = max(tails, key=lambda one: one.excess_ns)
    usual = [of_run(steps) for steps in left]
    is_usual = any(_is_alike(one, other) for one in usual)
    comes = other.every is not None and any(one.every == other.every for one in usual)
    n_steps, n_slow = sum(one.n_steps for one in tails), sum(one.n_slow for one in tails)
    return Tails(base, other, n_steps, is_usual, n_slow, comes, pair.answers_requests)


def _is_alike(base: Tail, other: Tail) -> bool:
    """Whether slow steps come at the same regular distance in both runs, in the base at least half as long."""
    return other.every is not None and base.every == other.every and base.each_ns > _ALIKE * other.each_ns


def without_growth(runs: Sequence[Floats]) -> list[Floats]:
    """The means of stretches without the straight line on which steps that grow steadily lie, and with their mean.

    What is left scatters as healthy steps do, while the growth itself is what differs.
    """
    return [_levelled(run) for run in runs]


def _levelled(run: Floats) -> Floats:
    order = np.arange(run.size)
    slope, start = np.polyfit(order, run, 1)
    is_steady = abs(_steadiness(run)) >= STEADY and abs(slope) * run.size >= _MUCH * float(np.median(run))
    levelled: Floats = run - slope * order - start + run.mean() if is_steady else run
    return levelled


def _steadiness(values: Floats) -> float:
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return float(np.corrcoef(ranks, np.arange(values.size))[0, 1])


def of_processes(observed: Sequence[Observation], *, worked: bool = False) -> list[pl.DataFrame]:
    """TIMED_STEPS of those repeats that have enough of them, or these without waits."""
    steps = (one.worked if worked else one.steps for one in observed)
    return [each for each in steps if int(each["n_steps"].sum()) >= LEAST_STEPS]
