"""Causes that show over the whole run, not in the mean step of a profile: periodic work, slow tails, growth."""

from __future__ import annotations

import polars as pl
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, View, not_slower
from stepscope.comparison.diagnosis.change import Change, evidence, span
from stepscope.comparison.diagnosis.cores import (
    HALF_CORE,
    MOSTLY_WAITS,
    outside_cores,
    part_of_slow,
    waited,
    waiting_share,
    with_workers,
)
from stepscope.comparison.diagnosis.python import accounted
from stepscope.comparison.diagnosis.sampled import (
    FUNCTIONS_SHOWN,
    growing,
    is_elsewhere_in_slow_steps,
    is_sampled,
    places_of_slow_steps,
    seems_tail,
    spends,
    time_in,
    unexplained,
)
from stepscope.comparison.diagnosis.threads import COLLECTED
from stepscope.comparison.function_lines import HARDLY_THERE
from stepscope.comparison.model import Evidence, RuledOut
from stepscope.comparison.whole_run import Tail, Tails, growth, growth_on_cores, of_processes
from stepscope.core import units

_NEEDS = "times of all steps, which stepscope record writes"
_ADVICE = "look for what accumulates from step to step: lists, caches, graphs of losses, open files"
#: Part of the added time that the tail must explain: less is beside the point. Slow steps that the base does not have
#: are no accident at a regular distance, or where samples show what is done in them alone, so they may explain less.
_LEAST_PART, _LEAST_KNOWN = 0.2, 0.1
#: Steps that grow do so steadily, and by so many times what the base's do.
_STEADY, _BEYOND_BASE = 0.8, 2.0
#: Where samples show functions that take longer and longer, steps that grow less steadily are evidence too.
_LIKELY_STEADY = 0.5
#: Part of what the tail adds from which on longer waits for a core may be its reason.
_SOME = 0.1
#: Work that returns so seldom is no batch that a few loader workers deliver by turns.
_SELDOM = 8


def periodic_work(view: View) -> Judgement:
    """Work that comes every few steps, such as a checkpoint, a validation, or logging.

    Necessary: slow steps at regular distances, which add more to the mean step than in the base, by 3 % of a step and
    by a tenth of the added time; by a fifth if the base has some at the same distance.
    """
    name = "periodic_work"
    tails = _tails(name, view)
    if not isinstance(tails, Tails):
        return tails
    base, other = tails.base, tails.other
    if other.every is None:
        return RuledOut(name, "slow steps come at no regular distance")
    each = units.duration(other.each_ns)
    if tails.is_usual:
        return RuledOut(name, f"in the base, too, every {other.every} steps one takes longer than the others")
    return view.suspect(
        name,
        f"every {other.every} steps one takes {each} more than the others",
        tails.added_ns * view.stretch,
        0.85 if other.every >= _SELDOM else 0.6,
        [*_shown(base, other), *_where(view)],
        resource="steps",
        advice=f"look for what the job does every {other.every} steps (a checkpoint, a validation, logging): "
        "do it less often, or in a thread of its own",
    )


def slow_tail(view: View) -> Judgement:
    """Single steps take much longer than the others, at no regular distance.

    Necessary: slow steps all over the run, which add more to the mean step than in the base, by 3 % of a step and by a
    fifth of the added time, or by a tenth if samples show the main thread in them where it hardly was in the base; and
    stretches that hold them neither wait for a core nor collect garbage for most of the time that they take longer.
    Where chance may make as many steps slow, samples must show the main thread where it hardly was in the base.
    """
    name = "slow_tail"
    tails = _tails(name, view)
    if not isinstance(tails, Tails):
        return tails
    base, other = tails.base, tails.other
    if other.every is not None:
        return RuledOut(name, f"slow steps come every {other.every} steps")
    if (waits := _for_a_core(view, tails)) is not None:
        return waits
    collected = part_of_slow(view, *COLLECTED) or 0.0
    if collected > MOSTLY_WAITS:
        text = f"in slow steps Python collects garbage: {units.percent(collected)} of the time that they take longer"
        return RuledOut(name, text)
    share = units.percent(other.n_slow / other.n_steps)
    return view.suspect(
        name,
        f"{share} of the steps take {units.duration(other.each_ns)} more than the others",
        tails.added_ns * view.stretch,
        0.55,
        [*_shown(base, other), *_where(view)],
        resource="steps",
        advice="record such a step: stepscope record --keep 60s --trigger 2x --stacks",
    )


def _for_a_core(view: View, tails: Tails) -> RuledOut | None:
    """The judgement if slow steps wait for a core, or if that cannot be told; None if they do not.

    A thread that waits for a core is found where it works, so one that is found elsewhere does not.
    """
    if is_elsewhere_in_slow_steps(view):
        return None
    share = waiting_share(view)
    if share is not None:
        text = f"in slow steps the process waits for a core: {units.percent(share)} of the time that they take longer"
        return RuledOut("slow_tail", text) if share > MOSTLY_WAITS else None
    wait = with_workers(view, waited(view), "process_runq_time")
    if wait.delta > 0.5 * tails.added_ns:
        return RuledOut("slow_tail", f"the process waits for a core: {span(wait.base, wait.other, 'ns')} a step")
    if (wait.other or 0.0) > 0.5 * tails.other.excess_ns and wait.delta > _SOME * tails.added_ns:
        text = f"the process waits for a core {units.duration(wait.other)} a step, which may be what makes steps slow"
        return RuledOut("slow_tail", text, is_judged=False)
    return None


def growing_steps(view: View) -> Judgement:
    """Steps grow longer while the run goes on: something accumulates.

    Necessary is one of two: the typical step grows steadily, by 3 % of a step over the run, and twice as much as in the
    base; or samples of its stack show the main thread for longer in a function, twice as long in the last third of the
    run as in the first, and twice as much as in the base. A machine whose speed drifts hides the first, not the second.
    """
    name = "growing_steps"
    left, right = (of_processes(side) for side in (view.pair.base, view.pair.other))
    if not left or not right:
        return Missing(name, _NEEDS)
    base, other = max(growth(steps)[0] for steps in left), min(growth(steps) for steps in right)
    rise, steadiness = other
    added = 0.5 * (rise - max(base, 0.0))
    places = growing(view, _likely_rise(view, base, other)) if is_sampled(view) else None
    if places is not None and places.height:
        return _growing_in(name, view, places)
    if steadiness < _STEADY or rise < _BEYOND_BASE * max(base, 0.0) or added < view.run_least_ns:
        return RuledOut(name, f"from the first quarter of the run to the last, steps change by {units.duration(rise)}")
    if not view.is_slower:
        return not_slower(name, view)
    change = Change(base, rise, is_real=True, unit="ns")
    return view.suspect(
        name,
        f"steps grow by {units.duration(rise)} during the run",
        added * view.stretch,
        0.8,
        [evidence("growth of the typical step from the first to the last quarter of the run", change, unit="ns")],
        resource="steps",
        advice=_ADVICE,
    )


def _likely_rise(view: View, base: float, other: tuple[float, float]) -> float:
    """How much steps seem to grow, or their time on cores where neighbours hide that; 0 if neither. Units: ns.

    `base` is how much those of the base grow, `other` what `growth` gives of the other run.
    """
    on_cores = max((growth_on_cores(run)[0] for run in view.pair.base), default=0.0)
    ways = ((base, other), (on_cores, min(growth_on_cores(run) for run in view.pair.other)))
    likely = [
        rise
        for usual, (rise, steadiness) in ways
        if steadiness >= _LIKELY_STEADY and rise >= max(_BEYOND_BASE * usual, 2 * view.run_least_ns)
    ]
    return min(likely, default=0.0)


def _growing_in(name: str, view: View, places: pl.DataFrame) -> Judgement:
    """The judgement on functions that take longer and longer, which `growing` gave.

    Where other processes use the cores, too, and may do so more and more, only those count that the base hardly has.
    """
    new = places.filter(pl.col("high") >= HARDLY_THERE * pl.col("low"))
    if new.height and (outside_cores(view) or 0.0) >= HALF_CORE:
        places = new
    times = unexplained(view, places, accounted(view))
    if times is None:
        return not_slower(name, view)
    change, added = times
    first, last = float(places["early"].sum()), float(places["late"].sum())
    where = f"{places['function'][0]}{' and others' if places.height > 1 else ''}"
    rise = Change(first, last, is_real=True, unit="ns")
    return view.suspect(
        name,
        f"{spends(places)} longer and longer in {where}: {units.duration(first)} per cycle in the first third of"
        f" the run, {units.duration(last)} in the last",
        added,
        0.8,
        [
            *time_in(places),
            evidence(f"time in {where} in the first and in the last third of the run, per cycle", rise, unit="ns"),
        ],
        resource="steps",
        magnitude=change.ratio,
        advice=_ADVICE,
    )


def _tails(name: str, view: View) -> Tails | Missing | RuledOut:
    """The tails of both runs, or why there is none that matters."""
    tails = view.tails
    if view.pair.answers_requests and tails is None:
        return RuledOut(name, "long steps may be waits for requests", is_judged=False)
    if tails is None:
        return Missing(name, _NEEDS)
    added, other = tails.added_ns, tails.other
    if view.same_cycles and view.delta_ns <= 0:
        return not_slower(name, view)
    is_known = other.every is not None or is_elsewhere_in_slow_steps(view)
    least = _LEAST_KNOWN if is_known and not tails.comes_in_base else _LEAST_PART
    # Slow steps are those of the whole run, and a profiler makes the profiled ones longer.
    if added < least * min(view.delta_ns, view.run_step.delta) or not seems_tail(view):
        share = units.percent(other.n_slow / max(other.n_steps, 1))
        return RuledOut(name, f"{share} of the steps are slow, which adds {units.duration(added)} to the mean step")
    return tails


def _shown(base: Tail, other: Tail) -> list[Evidence]:
    shares = Change(base.n_slow / base.n_steps, other.n_slow / other.n_steps, is_real=True, unit="ratio")
    means = Change(base.excess_ns, other.excess_ns, is_real=True, unit="ns")
    return [
        evidence("what slow steps add to the mean step of the run", means, role="necessary", unit="ns"),
        evidence("share of slow steps", shares, unit="ratio"),
    ]


def _where(view: View) -> list[Evidence]:
    """The new functions in which slow steps lose most of their time, as evidence that is not necessary."""
    if not is_elsewhere_in_slow_steps(view):
        return []
    rows = time_in(places_of_slow_steps(view).head(FUNCTIONS_SHOWN))
    return [replace(row, role="supporting") for row in rows]


RULES = (
    Rule("periodic_work", periodic_work),
    Rule("slow_tail", slow_tail),
    Rule("growing_steps", growing_steps),
)
