"""Leaves steps out in which a job waited for requests, so that what it does for them is compared.

The steps of a server begin with calls of its model. Some of them, or all, last until the next request comes, so the
mean step says how often requests come, and not how long the server takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.comparison.main_thread import ONLY_WAITS, is_worked_for, waiting_ratio
from stepscope.comparison.model import (
    LOADING,
    OBSERVED_CYCLES,
    PARTS,
    PROCESS,
    PYTHON,
    RUN_RESOURCES,
    TIMED_STEPS,
    Observation,
    Pair,
    Waits,
)
from stepscope.comparison.whole_run import LEAST_STEPS, mean_step_ns, tail
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.statistics import Floats

#: Steps that wait are so many of all steps, and take this part of the run, at least: without samples, and with samples
#: that show the main thread waiting for this part of what they take longer.
_LEAST_SHARE, _MOST_OF_RUN = 0.03, 0.5
_SAMPLED_SHARE, _SAMPLED_PART, _IN_WAITS = 0.01, 0.1, 0.7
#: Far longer steps take so many times as long as the typical one.
_FAR_LONGER = 3
#: If each step holds a wait, samples show the main thread waiting for this part of the time, at least.
_SAMPLED_WAITS = 0.3
#: What threads that answer requests do is known by so many samples of their work, in the base and in the other run, if
#: they wait for this part of the time. With fewer, the time of calls says more.
_ENOUGH, _ENOUGH_OTHER, _LEAST_IDLE = 120, 75, 0.1
#: Steps come more often if they do so many times as often. Requests have more of them if that is so many times as much
#: as the process is woken more often, and it still waits for this part of the time.
_MORE_STEPS, _APART, _STILL_WAITS = 1.2, 1.3, 0.2
#: While a job waits its processor time does not grow: per longer step by less than this part of it.
_ASLEEP = 0.5
#: Where training goes on, slow steps are no waits for requests.
_OF_TRAINING = "optimizer steps"
_BUSY = ("process_oncpu_time", "process_runq_time")
#: Where the main thread is while it waits for a loader, and the names of devices beside the host.
_LOADER, _DEVICE = "torch/utils/data/", r"^(?:gpu|npu|mlu|xpu|mtia|tpu)\d"
#: Fewer complete cycles of a profile, if those that wait are left out, say nothing.
_LEAST_CYCLES = 3


def without_waits(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The pairs without the time in which the job waited for requests, and remarks on how much that is.

    A pair stays as it is unless the job waits for requests in the base.
    """
    changed, remarks = [], []
    for pair in pairs:
        compared, what = pair, ""
        if all(_may_wait(run) for run in (*pair.base, *pair.other)):
            compared, what = _answering(pair), "the time in which its threads work, by samples, is compared"
            if compared is pair:
                compared, what = _without_long_steps(pair), "steps that end with such a wait are left out"
            if compared is pair:
                compared, times = _at_work(pair)
                what = f"the time in which its main thread works, by samples, is compared{_more_steps(times)}"
            if compared is pair:
                compared, what = _inside_calls(pair), "the time inside the calls of its model is compared"
        changed.append(compared)
        if compared.waits is not None:
            shares = [units.percent(each.waiting_ratio) for each in compared.waits]
            of_both = f"{shares[0]} of the time in the base and {shares[1]} in the other run"
            remarks.append(f"the job waits for requests {of_both}; {what}")
    return tuple(changed), tuple(remarks)


def _may_wait(run: Observation) -> bool:
    """Whether steps are known that may hold waits for requests: no training, and no loader that is waited for."""
    if int(run.steps["n_steps"].sum()) < LEAST_STEPS or (run.steps["source"].cast(pl.String) == _OF_TRAINING).any():
        return False
    functions = run.python_functions
    loads = functions is not None and functions["function"].str.contains(_LOADER, literal=True).any()
    return not loads and not (run.parts["part"].cast(pl.String) == LOADING).any()


def _answering(pair: Pair) -> Pair:
    """The pair with the time of its steps in which samples show the threads that answer requests at work.

    That holds what they do between calls of the model, too, and waits for each other. If they hardly wait for requests,
    and the main thread does nothing else, steps stay as they are, and their functions are compared in place of its.
    """
    runs = (*pair.base, *pair.other)
    n_base, n_other = (min(_n_at_work(run) for run in side) for side in (pair.base, pair.other))
    if n_base < _ENOUGH or n_other < _ENOUGH_OTHER or any(_has_device(run) for run in runs):
        return pair
    left, right = (tuple(_by_answers(run) for run in side) for side in (pair.base, pair.other))
    seldom = all(mean_step_ns(run.worked) <= (1 - _LEAST_IDLE) * mean_step_ns(run.steps) for run in left)
    if not seldom:
        only_waits = all(_only_waits(run) for run in runs)
        return replace(pair, base=left, other=right) if only_waits else pair
    base, other = (tuple(_worked(run) for run in side) for side in (left, right))
    share = _requests(pair.base)  # the other run may hardly wait, and its requests have as many steps
    return replace(
        pair, base=base, other=other, waits=(_waits(pair.base, base, share), _waits(pair.other, other, share))
    )


def _only_waits(run: Observation) -> bool:
    """Whether the main thread does nothing but start and end others."""
    is_known = run.answers is not None and run.answers.is_marked_there
    return is_known or waiting_ratio(run.python_functions) >= ONLY_WAITS


def _requests(runs: Sequence[Observation]) -> float:
    """About how many requests a step has of threads that answer some, by how often these were found to wait."""
    n_waits = sum(run.answers.n_waits for run in runs if run.answers is not None)
    return min(n_waits / sum(_each(run).size for run in runs), 1.0)


def _by_answers(run: Observation) -> Observation:
    """The observation with what threads that answer requests do in place of the main one."""
    known = run.answers
    if known is None:
        return run
    return replace(run, python_functions=known.functions, python_lines=known.lines, worked=known.worked)


def _n_at_work(run: Observation) -> int:
    return 0 if run.answers is None else run.answers.n_at_work


def _without_long_steps(pair: Pair) -> Pair:
    """The pair without steps that take far longer, in which a job with several steps a request waits for the next.

    It does in most repeats of the base. The longest steps of the others, as many, are waits as well.
    """
    limits = [_limit_ns(run) for run in pair.base]
    known = [limit for limit in limits if limit]
    if any(limit is None for limit in limits) or 2 * len(known) <= len(limits):
        return pair
    share = max(float((_each(run) >= limit).mean()) for run, limit in zip(pair.base, limits, strict=True) if limit)
    base, other = (
        tuple(_below(run, _limit_by(run, share, min(known))) for run in side) for side in (pair.base, pair.other)
    )
    return replace(
        pair, base=base, other=other, waits=(_waits(pair.base, base, share), _waits(pair.other, other, share))
    )


def _at_work(pair: Pair) -> tuple[Pair, float]:
    """The pair with the time of its steps in which samples show the main thread, or what it waits for, at work.

    The process must be asleep meanwhile: a thread of its own that prepares the next item makes it wait for data. Also
    returns how many times as many steps a request has in the other run: as many of them are one step there.
    """
    runs = (*pair.base, *pair.other)
    is_known = not any(run.worked.is_empty() or _has_device(run) for run in runs)
    if not is_known or not all(_works_seldom(run) and _is_asleep(run) for run in pair.base):
        return pair, 1.0
    base, other = (tuple(_worked(run) for run in side) for side in (pair.base, pair.other))
    waits = _waits(pair.base, base, 1.0), _waits(pair.other, other, 1.0)
    times = _calls_a_request(pair, *waits)
    if times != 1:
        other = tuple(_longer(run, times) for run in other)
        waits = waits[0], replace(waits[1], n_requests=waits[1].n_requests / times, step_ns=waits[1].step_ns * times)
    return replace(pair, base=base, other=other, waits=waits), times


def _calls_a_request(pair: Pair, base: Waits, other: Waits) -> float:
    """How many times as many steps each request has in the other run, if that is why steps come more often; else 1.

    More requests wake the process more often. If steps come more often and it is not woken as much more often, although
    it still waits in between, as many requests come as in the base, and each has more steps.
    """
    times = base.step_ns / other.step_ns
    before, after = (_wakes(side) for side in (pair.base, pair.other))
    if not before or not after or other.waiting_ratio < _STILL_WAITS or abs(np.log(times)) < np.log(_MORE_STEPS):
        return 1.0
    return times if abs(np.log(times * before / after)) >= np.log(_APART) else 1.0


def _more_steps(times: float) -> str:
    """What is said if a request has so many times as many steps in the other run as in the base."""
    if times == 1:
        return ""
    more = f"{units.number(round(times, 1))} times as many steps as one of the base"
    return f"; each request of the other run has {more}, since the job is woken about as often"


def _wakes(runs: Sequence[Observation]) -> float:
    """How often a second the process gives up its core, to wait; 0 if that was not recorded."""
    mine = pl.concat([run.run_resources for run in runs]).filter(pl.col("device").cast(pl.String) == PROCESS)
    rows = mine.filter(pl.col("metric").cast(pl.String) == "process_voluntary_ctx_switches")
    return float(rows["mu"].to_numpy().mean()) if rows.height else 0.0


def _longer(run: Observation, times: float) -> Observation:
    """The observation whose steps are so many of the recorded ones together; slow ones among these say nothing."""
    steps = TIMED_STEPS.conform(run.steps.with_columns(pl.col("dur_ns") * times))
    resources = RUN_RESOURCES.conform(run.run_resources.with_columns(pl.col("step_ns") * times))
    return replace(run, steps=steps, worked=TIMED_STEPS.empty(), run_resources=resources)


def _works_seldom(run: Observation) -> bool:
    return mean_step_ns(run.worked) <= (1 - _SAMPLED_WAITS) * mean_step_ns(run.steps)


def _worked(run: Observation) -> Observation:
    """The observation whose steps last as long as they work; cycles that are steps, too."""
    if run.source != "recorded":
        return replace(_without_outside(run), steps=run.worked)
    worked = run.worked.select(cycle="step", worked_ns="dur_ns")
    cycles = run.cycles.join(worked, on="cycle", how="left", maintain_order="left")
    dur = pl.coalesce("worked_ns", "dur_ns").round().cast(pl.Int64)
    return replace(run, cycles=OBSERVED_CYCLES.conform(cycles.with_columns(dur_ns=dur)), steps=run.worked)


def _inside_calls(pair: Pair) -> Pair:
    """The pair with the time inside the calls that mark steps, where a job with a step a request waits between them.

    Not of jobs with devices, whose work goes on after the calls.
    """
    runs = (*pair.base, *pair.other)
    is_known = not any(run.steps["inside_ns"].null_count() or _has_device(run) for run in runs)
    if not is_known or not all(_is_inside_seldom(run) and _is_asleep(run) for run in pair.base):
        return pair
    base, other = (tuple(_inside(run) for run in side) for side in (pair.base, pair.other))
    return replace(pair, base=base, other=other, waits=(_waits(pair.base, base, 1.0), _waits(pair.other, other, 1.0)))


def _has_device(run: Observation) -> bool:
    names = pl.concat([run.functions["device"].cast(pl.String), run.run_resources["device"].cast(pl.String)])
    return bool(names.str.contains(_DEVICE).any())


def _is_inside_seldom(run: Observation) -> bool:
    inside, whole = (float((run.steps[name] * run.steps["n_steps"]).sum()) for name in ("inside_ns", "dur_ns"))
    return inside <= (1 - _MOST_OF_RUN) * whole


def _inside(run: Observation) -> Observation:
    """The observation whose steps last as long as they are inside calls."""
    steps = TIMED_STEPS.conform(run.steps.with_columns(dur_ns="inside_ns"))
    return replace(_without_outside(run), steps=steps)


def _without_outside(run: Observation) -> Observation:
    """The observation whose cycles last as long as their known parts."""
    outside = run.parts.filter(pl.col("part").cast(pl.String) == PYTHON).select("cycle", outside_ns="total_ns")
    dur = pl.col("dur_ns") - pl.col("outside_ns").fill_null(0)
    cycles = run.cycles.join(outside, on="cycle", how="left", maintain_order="left").with_columns(dur_ns=dur)
    return replace(
        run,
        cycles=OBSERVED_CYCLES.conform(cycles),
        parts=PARTS.conform(run.parts.filter(pl.col("part").cast(pl.String) != PYTHON)),
    )


def _limit_ns(run: Observation) -> float | None:
    """The length from which on steps are waits; 0 if few steps are long, None if long steps are something else.

    It lies halfway, by ratio, between the typical step and the mean of those that take far longer. Units: ns.
    """
    slow = tail(run.steps, by_distance=False)
    part = slow.excess_ns / mean_step_ns(run.steps)
    # Where threads answer, those that mark steps may wait while others work: of two, all wait for the part of a part.
    idle = part**2 if is_worked_for(run.python_functions) else part
    is_sampled = waiting_ratio(run.python_functions) >= _IN_WAITS * idle
    least, most = (_SAMPLED_SHARE, _SAMPLED_PART) if is_sampled else (_LEAST_SHARE, _MOST_OF_RUN)
    if not (part >= most and slow.is_far and slow.is_spread and slow.n_slow >= least * slow.n_steps):
        return 0.0
    typical = float(np.median(_each(run)))
    return float(np.sqrt(typical * (typical + slow.each_ns))) if _is_asleep(run) else None


def _limit_by(run: Observation, share: float, usual: float) -> float:
    """The same for a run of a job that waits in this share of its steps, all of which take longer than `usual`.

    If it also works in its long steps, the longest may be waits: as many as usual, since as many requests come. If too
    few are far longer to tell, those are, if it sleeps in them and others would have left them out, too.
    """
    limit, each = _limit_ns(run), _each(run)
    longest = float(np.quantile(each, 1 - share))
    if limit == 0 and _is_asleep(run):
        return max(longest, usual, _FAR_LONGER * float(np.median(each)))
    return longest if limit is None else limit


def _is_asleep(run: Observation) -> bool:
    """Whether the processor time of stretches does not grow with their length: what is long in them is a wait."""
    name = pl.col("metric").cast(pl.String)
    rows = run.run_resources.filter((pl.col("device").cast(pl.String) == PROCESS) & name.is_in(_BUSY))
    each = rows.group_by("stretch").agg(pl.col("mu").sum(), pl.col("step_ns").first())
    step = each["step_ns"].to_numpy()
    if step.size < _LEAST_CYCLES or np.ptp(step) == 0:
        return False
    busy = each["mu"].to_numpy() / 1e9 * step
    return bool(np.cov(step, busy)[0, 1] < _ASLEEP * np.var(step, ddof=1))


def _below(run: Observation, limit_ns: float) -> Observation:
    """The observation with the steps and complete cycles below a limit; with all if it is 0, or few cycles remain."""
    if not limit_ns:
        return run
    is_short = pl.col("dur_ns") < limit_ns
    cycles = run.cycles.with_columns(pl.col("is_complete").fill_null(value=True) & is_short)
    if int(cycles["is_complete"].sum()) < _LEAST_CYCLES:
        cycles = run.cycles
    return replace(run, steps=TIMED_STEPS.conform(run.steps.filter(is_short)), cycles=cycles)


def _waits(before: Sequence[Observation], after: Sequence[Observation], share: float) -> Waits:
    """What was left out of the repeats of a run. One step in each request, this share of all, ends with a wait."""
    whole, rest = (sum(float(_each(run).sum()) for run in side) for side in (before, after))
    n_steps = sum(_each(run).size for run in before)
    return Waits(share * n_steps, 1 - rest / whole, whole / n_steps)


def _each(run: Observation) -> Floats:
    """The duration of each step of a run; of those in one row, their mean. Units: ns."""
    return np.repeat(run.steps["dur_ns"].to_numpy(), run.steps["n_steps"].to_numpy())
