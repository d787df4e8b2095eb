"""Leaves steps out in which a job waited for requests, so that what it does for them is compared.

The steps of a server begin with calls of its model. Some of them last until the next request comes, so the mean step
says how often requests come, and not how long the server takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.comparison.model import PROCESS, TIMED_STEPS, Observation, Pair, Waits
from stepscope.comparison.whole_run import LEAST_STEPS, mean_step_ns, tail
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.statistics import Floats

#: Steps that wait are so many of all steps, and take this part of the run, at least.
_LEAST_SHARE, _MOST_OF_RUN = 0.03, 0.5
#: While a job waits its processor time does not grow: per longer step by less than this part of it.
_ASLEEP = 0.5
#: Where training goes on, slow steps are no waits for requests.
_OF_TRAINING = "optimizer steps"
_BUSY = ("process_oncpu_time", "process_runq_time")
#: Fewer complete cycles of a profile, if those that wait are left out, say nothing.
_LEAST_CYCLES = 3


def without_waits(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], tuple[str, ...]]:
    """The pairs without steps in which the job waited for requests, and remarks on how much that is.

    A pair stays as it is unless each run of the base waits most of the time.
    """
    changed, remarks = [], []
    for pair in pairs:
        limits = [_limit_ns(run) for run in pair.base]
        if not all(limits):
            changed.append(pair)
            continue
        base = tuple(_below(run, limit or 0.0) for run, limit in zip(pair.base, limits, strict=True))
        share = max(1 - _each(after).size / _each(run).size for run, after in zip(pair.base, base, strict=True))
        other = tuple(_below(run, _limit_of_other(run, share)) for run in pair.other)
        waits = _waits(pair.base, base, share), _waits(pair.other, other, share)
        changed.append(replace(pair, base=base, other=other, waits=waits))
        shares = [units.percent(each.waiting_ratio) for each in waits]
        remarks.append(
            f"the job waits for requests {shares[0]} of the time in the base and {shares[1]} in the other run; steps "
            f"that end with such a wait are left out"
        )
    return tuple(changed), tuple(remarks)


def _limit_ns(run: Observation) -> float | None:
    """The length from which on steps are waits; 0 if few steps are long, None if long steps are something else.

    It lies halfway, by ratio, between the typical step and the mean of those that take far longer. Units: ns.
    """
    if int(run.steps["n_steps"].sum()) < LEAST_STEPS or (run.steps["source"].cast(pl.String) == _OF_TRAINING).any():
        return None
    slow = tail(run.steps, by_distance=False)
    is_most = slow.excess_ns >= _MOST_OF_RUN * mean_step_ns(run.steps)
    if not (is_most and slow.is_far and slow.is_spread and slow.n_slow >= _LEAST_SHARE * slow.n_steps):
        return 0.0
    typical = float(np.median(_each(run)))
    return float(np.sqrt(typical * (typical + slow.each_ns))) if _is_asleep(run) else None


def _limit_of_other(run: Observation, share: float) -> float:
    """The same for a run whose base waits in this share of its steps.

    If it also works in its long steps, the longest may be waits: as many as in the base, since as many requests come.
    """
    limit = _limit_ns(run)
    return float(np.quantile(_each(run), 1 - share)) if limit is None else limit


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
