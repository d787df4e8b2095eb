"""Causes on the host's processors: contention for cores, a low clock, contention for the interpreter's lock."""

from __future__ import annotations

import math

import msgspec

from stepscope.comparison.diagnosis.case import (
    Clue,
    Judgement,
    Missing,
    Rule,
    Suspect,
    View,
    share_slowed_by,
    typical_slowdown,
    weigh,
)
from stepscope.comparison.diagnosis.change import Change, evidence, fold, moved, span
from stepscope.comparison.diagnosis.cores import (
    HALF_CORE,
    WAITING,
    blocker_of,
    core_clock,
    outside_cores,
    ran,
    seems_slower,
    slow_without_wait,
    waited,
    with_workers,
)
from stepscope.comparison.diagnosis.sampled import is_sampled, typical_growth, waits_of_job
from stepscope.comparison.diagnosis.threads import is_crowded
from stepscope.comparison.model import BLOCKER, LOADING, PROCESS, WORKERS, RuledOut
from stepscope.core import units

#: Vector licences and turbo limits lower a busy core's clock by up to about 15 % (AVX-512 on server processors).
_LICENCE = 0.85
#: Slowdown of host work that shows a neighbour on the same core or cache; healthy runs differ by less.
STRETCHED = 1.15
#: Percentage points of the whole machine's processor use by which healthy runs differ.
_LOAD_POINTS = 10.0
#: Waits that take as much of a longer cycle as before follow from its length; they must take this much more of it.
_LONGER = 0.01
#: Share of the longer waits from which on the process that had the core is shown, and named in the statement.
_SOME_OF_WAIT, _MOST_OF_WAIT = 0.1, 0.3
#: Share of the work, by time, that must agree for a statement about all of it.
_MOST = 0.6
#: Part of what cycles take longer that the process must wait for cores, and that it may wait longer for its workers.
_HALF, _HARDLY = 0.5, 0.2


def _slowdown(view: View) -> float | None:
    """How many times longer a typical call, or without a profile a function, takes on the host at equal clock."""
    slowdown = typical_slowdown(view.host_work())
    if slowdown is None and not view.is_profiled:
        slowdown = typical_growth(view)
    clock = core_clock(view)
    return None if slowdown is None else slowdown * min(clock.ratio or 1.0, 1.0)


class _CoreUse(msgspec.Struct, frozen=True):
    """How the process and the machine use the cores.

    `slower` is how many times longer a typical call takes on the host at equal clock. `longer_ns` is how much longer
    threads wait per cycle than the same processor time waited for in the base. `waits` says that threads wait
    for cores longer than in the base, `is_own` that the process itself causes it, `of_job` that other processes of the
    job do, for which it does not wait, `shared` that other processes keep the machine busy and calls take longer.
    """

    wait: Change
    own: Change
    load: Change
    slower: float | None
    longer_ns: float
    waits: bool
    is_own: bool
    of_job: bool
    shared: bool


def _job_takes_cores(view: View) -> bool:
    """Whether other processes of the job keep cores busy for which this one waits, though not for what they do.

    Its own threads wait for cores for half of what cycles take longer and run as long as before, its workers run for
    half a core more, and the main thread waits no longer for others.
    """
    own, wait, theirs = ran(view), waited(view), view.resource(WORKERS, "process_oncpu_time")
    more = ((theirs.other or 0.0) - (theirs.base or 0.0)) / 1e9
    is_known = is_sampled(view) or LOADING in view.parts
    waits_for = max(waits_of_job(view), view.part(LOADING).delta)
    return (
        is_known
        and more >= HALF_CORE
        and wait.rose(by=_HALF * view.delta_ns)
        and own.delta < _HALF * wait.delta
        and waits_for < _HARDLY * view.delta_ns
    )


def _core_use(view: View) -> _CoreUse:
    wait = with_workers(view, waited(view), "process_runq_time")
    own, load = with_workers(view, ran(view), "process_oncpu_time"), view.resource("host", "host_cpu_usage")
    slower, outside = _slowdown(view), outside_cores(view)
    shares = [view.resource(device, "process_runq_time") for device in (PROCESS, WORKERS)]
    shares = [share for share in shares if share.is_known]
    step = view.run_step
    of_base, of_other = (wait.base or 0.0) / (step.base or 1.0), (wait.other or 0.0) / (step.other or 1.0)
    longer = of_other - of_base > _LONGER and (not shares or sum(share.delta for share in shares) > 0)
    # Neighbours that come and go make some steps slow, whose waits are as long as they are.
    in_tail = view.has_tail and view.tails is not None and wait.delta > 0.5 * view.tails.added_ns
    is_busy = load.rose(by=_LOAD_POINTS) and outside is not None and outside >= HALF_CORE
    may_wait = (
        view.is_slower or view.is_of_time or view.pair.answers_requests or (is_busy and seems_slower(view, wait.delta))
    )
    # On a machine that is as busy as before, more work waits more.
    demand = max(own.ratio or 1.0, 1.0)
    longer_ns = (wait.other or 0.0) - demand * (wait.base or 0.0)
    # A thread that waits for requests may wait for its core whenever one comes, which is part of no step.
    least = WAITING * (step.base or 0.0 if view.pair.answers_requests else view.base_ns)
    waits = longer and longer_ns > least and ((wait.rose(by=least) and may_wait) or in_tail)
    # Neighbours on the same core or caches make equal work take somewhat longer too.
    is_own = own.is_known and own.delta > max(0.5 * wait.delta, (STRETCHED - 1) * (own.base or 0.0))
    is_calm = outside is None or outside < HALF_CORE
    is_own = (is_own and is_calm and wait.delta > 0.5 * view.delta_ns) or is_crowded(view, outside)
    of_job = is_own and _job_takes_cores(view)
    if of_job:  # what counts is what this process does, and not what the others do
        wait, own = waited(view), ran(view)
        longer_ns, is_own = wait.delta, False
    shared = is_busy and slower is not None and slower >= STRETCHED
    return _CoreUse(wait, own, load, slower, longer_ns, waits, is_own, of_job, shared)


def cpu_contention(view: View) -> Judgement:
    """Other processes take this one's cores, or share them (hyper-threads, caches, power).

    Necessary is one of two: its threads wait for a core for 5 % of a cycle longer than in the base without running
    longer themselves (if they run longer, the process contends with itself, unless the job's workers do for which it
    does not wait); or host work takes 15 % longer at equal
    clock while other processes use half a core more and the machine is 10 points busier. Cycles take longer, or seem to
    by half of the cost while others keep the machine busier. Waits explain at most the growth of the cycle, because
    several threads may wait at once.
    """
    name = "cpu_contention"
    use = _core_use(view)
    if not use.wait.is_known and not use.load.is_known:
        return Missing(name, "process_runq_time (time waiting for a core) or host_cpu_usage")
    if use.waits and use.is_own:
        return RuledOut(name, "threads wait for cores, but this process itself keeps them busy")
    if not use.waits and not use.shared:
        return RuledOut(name, _no_contention(use))
    stretched = view.base_ns * ((use.slower or 1.0) - 1) if use.shared else 0.0
    affected = max(min(use.longer_ns, use.wait.delta) * view.stretch if use.waits else 0.0, stretched)
    may_wait = view.is_of_time or view.pair.answers_requests or seems_slower(view, affected)
    if view.same_cycles and not (view.is_slower or view.has_tail or may_wait):
        return RuledOut(name, "the machine is busier, but cycles do not take longer")
    confidence, shown = weigh(0.65, _contention_clues(view, use))
    clock = core_clock(view)
    text = f"core clock {moved(clock)}: busy neighbours lower it"
    costs = (evidence(text, clock, role="consequence", device="host", metric="cpu_frequency"),)
    if (apart := slow_without_wait(view)) > 0:  # waits do not explain what single steps without one add
        affected = min(affected, max(view.delta_ns - apart * view.stretch, 0.0))
    return view.suspect(
        name,
        _contention_says(view, use),
        affected,
        confidence,
        shown,
        resource="processor cores",
        device="host",
        magnitude=use.wait.ratio if use.waits else use.load.ratio,
        consequences=costs if clock.fell(to=0.95) else (),
        advice="see what else runs there (top, pidstat 1); pin the job to cores of its own (taskset, cpuset, numactl)",
    )


def _contention_clues(view: View, use: _CoreUse) -> list[Clue]:
    necessary = "necessary"
    kicked = view.per_cycle(PROCESS, "process_involuntary_ctx_switches")
    alike_by = typical_slowdown(view.host_work()) or 1.0
    clues: list[Clue] = []
    if use.waits:
        text = "time waiting for a core, per cycle"
        clues.append((0.0, evidence(text, use.wait, role=necessary, device=PROCESS, metric="process_runq_time")))
        blocker = blocker_of(view)
        if blocker is not None and blocker[1].delta > _SOME_OF_WAIT * use.wait.delta:
            text = f"of which while {blocker[0]} had the core, per cycle"
            weight = 0.1 if blocker[1].delta > _MOST_OF_WAIT * use.wait.delta else 0.0
            shown = evidence(text, blocker[1], device=BLOCKER + blocker[0], metric="process_runq_time")
            clues.append((weight, shown))
        if use.own.is_known:
            text = "own processor time per cycle"
            clues.append((0.15, evidence(text, use.own, device=PROCESS, metric="process_oncpu_time")))
    if use.shared:
        text = f"calls on the host take {fold(use.slower or 1.0)} as long at equal clock"
        clues.append((0.15, evidence(text, role=necessary)))
        text = "use of all processors"
        clues.append((0.0, evidence(text, use.load, role=necessary, device="host", metric="host_cpu_usage")))
    if kicked.rose(times=2):
        text = "times it was pushed off a core, per cycle"
        clues.append((0.05, evidence(text, kicked, device=PROCESS, metric="process_involuntary_ctx_switches")))
    if alike_by >= STRETCHED and share_slowed_by(view.host_work(), alike_by) >= _MOST:
        clues.append((0.1, evidence(f"all work on the host is slower alike: {fold(alike_by)}")))
    return clues


def _contention_says(view: View, use: _CoreUse) -> str:
    parts = []
    if use.waits:
        ends = ((use.wait.base, view.run_step.base), (use.wait.other, view.run_step.other))
        shares = [units.percent(min((wait or 0.0) / (step or 1.0), 1.0)) for wait, step in ends]
        parts.append(
            f"The process waited for a core {span(use.wait.base, use.wait.other, 'ns')} per cycle"
            f" ({shares[0]} → {shares[1]} of it)"
        )
        if use.own.is_known and abs(use.own.delta) < 0.25 * (use.own.base or 1.0):
            parts.append(f"its own work needs as much processor time as before ({units.duration(use.own.other)})")
    if use.load.is_known and use.load.is_real:
        parts.append(f"use of the machine's processors {moved(use.load)}")
    if use.slower is not None and use.slower >= STRETCHED:
        parts.append(f"each call on the host takes {fold(use.slower)} as long at equal clock")
    text = "; ".join(parts)
    blocker = blocker_of(view) if use.waits else None
    if blocker is not None and blocker[1].delta > _MOST_OF_WAIT * use.wait.delta:
        return f"{text[0].upper()}{text[1:]}: other processes take its cores, {blocker[0]} first of all."
    whose = "other processes of the job" if use.of_job else "other processes"
    return f"{text[0].upper()}{text[1:]}: {whose} take its cores."


def _no_contention(use: _CoreUse) -> str:
    if use.wait.is_known:
        return f"time waiting for a core: {span(use.wait.base, use.wait.other, 'ns')} per cycle"
    text = f"use of all processors {span(use.load.base, use.load.other, use.load.unit)}"
    return text + (f", calls on the host take {fold(use.slower)} as long" if use.slower is not None else "")


def cpu_frequency(view: View) -> Judgement:
    """The clock of the host's cores is low.

    Necessary: it fell by 15 % or more (vector licences and turbo limits lower a busy core's clock by less), the
    machine's use did not rise by 10 points, and calls on the host became slower by at least the root of the clock's
    ratio (work that waits for memory slows less than the clock).
    """
    name = "cpu_frequency"
    clock = core_clock(view)
    if not clock.is_known:
        return Missing(name, "cpu_frequency (clock of the cores)")
    if not clock.fell(to=_LICENCE):
        return RuledOut(name, f"core clock {span(clock.base, clock.other, clock.unit)}")
    load = view.resource("host", "host_cpu_usage")
    if load.rose(by=_LOAD_POINTS):
        return RuledOut(name, f"core clock {moved(clock)}, but so does a busy machine's: its use {moved(load)}")
    slower = typical_slowdown(view.host_work())
    inverse = 1 / (clock.ratio or 1.0)
    if (slower is None and not view.is_slower) or (slower is not None and slower < inverse**0.5):
        calls = "" if slower is None else f": calls take {fold(slower)} as long"
        return RuledOut(name, f"core clock {moved(clock)}, but what runs on the host is not slower{calls}")
    return _low_clock(view, clock, load, slower)


def _low_clock(view: View, clock: Change, load: Change, slower: float | None) -> Suspect:
    inverse = 1 / (clock.ratio or 1.0)
    says = f"The cores' clock {moved(clock)}"
    clues: list[Clue] = [(0.0, evidence("core clock", clock, role="necessary", device="host", metric="cpu_frequency"))]
    if slower is not None:
        says += f"; each call on the host takes {fold(slower)} as long"
        text = f"calls on the host take {fold(slower)} as long, the clock is {fold(inverse)} slower"
        weight = 0.3 if share_slowed_by(view.host_work(), slower) >= _MOST else 0.15
        clues.append((weight, evidence(text, role="necessary")))
    if load.is_known:
        says += f", while the machine's use went {span(load.base, load.other, load.unit)}"
        clues.append((0.07, evidence("use of all processors", load, device="host", metric="host_cpu_usage")))
    confidence, shown = weigh(0.6, clues)
    own = min((ran(view).base or math.inf) * view.stretch, view.base_ns)
    longer = slower or inverse
    affected = own * (longer - 1) if view.same_cycles else (view.step.other or 0.0) * (1 - 1 / longer)
    return view.suspect(
        "cpu_frequency",
        f"{says}: locked, capped or throttled cores.",
        affected,
        confidence,
        shown,
        resource="clock of the cores",
        device="host",
        magnitude=clock.ratio,
        advice="check the governor and the power cap: cpupower frequency-info, turbostat, BMC events",
    )


RULES = (
    Rule("cpu_contention", cpu_contention),
    Rule("cpu_frequency", cpu_frequency),
)
