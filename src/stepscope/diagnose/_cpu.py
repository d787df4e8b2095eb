"""Causes on the host's processors: others take the cores, the clock is low, the interpreter's lock is contended."""

from __future__ import annotations

from stepscope import units
from stepscope.compare.model import Cause, RuledOut
from stepscope.diagnose._case import ABSENT, OWN, Change, View, alike, stretch
from stepscope.diagnose._rule import Judgement, Missing, Rule, Suspect, clipped
from stepscope.diagnose._words import evidence, fold, moved, span

__all__ = ["RULES", "core_clock", "outside_cores", "ran", "waited"]

#: Vector licences and turbo limits lower a busy core's clock by up to about 15 % (AVX-512 on server processors).
_LICENCE = 0.85
#: Host work is slowed by a neighbour on the same core or cache; below 15 % healthy runs on shared machines differ too.
_STRETCHED = 1.15
#: A neighbour that matters keeps at least half a core busy.
_HALF_CORE = 0.5
#: Points of the whole machine's processor use by which healthy runs differ.
_LOAD_POINTS = 10.0
#: More than this is more than one thread at work.
_ONE_CORE = 1.1
#: CPython lets the next thread have the lock after 5 ms at the latest (sys.getswitchinterval).
_SWITCH_NS = 5e6


def waited(view: View) -> Change:
    """Time per cycle for which the process' threads were ready but had no core."""
    counted = view.per_cycle(OWN, "process_runq_time")
    return counted if counted.is_known else _scheduled(view, "sched_runq")


def ran(view: View) -> Change:
    """Processor time per cycle of the process, all threads."""
    counted = view.per_cycle(OWN, "process_oncpu_time")
    if counted.is_known:
        return counted
    scheduled = _scheduled(view, "sched_oncpu")
    if scheduled.is_known:
        return scheduled
    usage = view.resource(OWN, "process_cpu_usage")
    if not usage.is_known or not view.step.is_known:
        return ABSENT
    base, other = ((v or 0.0) / 100 * (s or 0.0) for v, s in ((usage.base, view.step.base), (usage.other, view.step.other)))
    return Change(base, other, usage.is_real or view.step.is_real, "ns")


def _scheduled(view: View, category: str) -> Change:
    rows = view.work.filter(view.work["category"] == category)
    if rows.is_empty() or not view.is_alike:
        return ABSENT
    return Change(
        float(rows["total_ns_base"].fill_null(0).sum()), float(rows["total_ns_other"].fill_null(0).sum()),
        bool(rows["is_real"].any()), "ns",
    )  # fmt: skip


def core_clock(view: View) -> Change:
    """Clock of the host's cores: the mean of all, or of the core that is busiest in both runs if each has its own."""
    whole = view.resource("host", "cpu_frequency")
    cores = [core for core in view.devices("cpu") if view.resource(core, "cpu_frequency").is_known]
    if whole.is_known or not cores:
        return whole

    def busy(core: str) -> float:
        usage = view.resource(core, "host_cpu_usage")
        return min(usage.base or 0.0, usage.other or 0.0)

    return view.resource(max(cores, key=busy), "cpu_frequency")


def outside_cores(view: View) -> float | None:
    """By how many cores more other processes keep the machine busy; at least, if the number of cores is unknown."""
    load, own = view.resource("host", "host_cpu_usage"), view.resource(OWN, "process_cpu_usage")
    if not load.is_known:
        return None
    named = sum(1 for core in view.devices("cpu") if core[3:].isdigit())
    # The process' own use is part of the whole: that bounds the number of cores from below where nobody names them.
    least = max((o or 0.0) / w for o, w in ((own.base, load.base), (own.other, load.other)) if w) if load.other else 0.0
    cores = named or max(2.0, least)
    return (load.delta if load.is_real else 0.0) / 100 * cores - own.delta / 100


def _slowdown(view: View) -> float | None:
    """How many times longer a typical call takes on the host, at equal clock."""
    work = view.host_work()
    found = stretch(work)
    clock = core_clock(view)
    return None if found is None else found * min(clock.ratio or 1.0, 1.0)


def cpu_contention(view: View) -> Judgement:
    """Other processes take this one's cores, or share them (hyper-threads, caches, power).

    Necessary, either: its threads wait for a core by 5 % of a cycle more than in the base while they do not run more
    themselves (a thread of its own that hogs the core runs more: that is no contention from outside); or host work
    takes 15 % longer at equal clock while others keep half a core more, and the machine 10 points more, busy.
    What waits cost is what the cycle grew by at most: several threads may wait at once.
    """
    name = "cpu_contention"
    wait, own, load = waited(view), ran(view), view.resource("host", "host_cpu_usage")
    slower = _slowdown(view)
    if not wait.is_known and not load.is_known:
        return Missing(name, "process_runq_time (time waiting for a core) or host_cpu_usage")
    least = 0.05 * view.base_ns
    share = view.resource(OWN, "process_runq_time")
    waits = wait.rose(by=least) and view.is_slower and (share.delta > 0 or not share.is_known)
    hogs = waits and own.is_known and own.delta > 0.5 * wait.delta and wait.delta > 0.5 * view.delta_ns
    outside = outside_cores(view)
    shared = (
        slower is not None
        and slower >= _STRETCHED
        and load.rose(by=_LOAD_POINTS)
        and outside is not None
        and outside >= _HALF_CORE
    )
    if hogs:
        return RuledOut(name, "threads wait for cores, but it is this process that keeps them busy")
    if not waits and not shared:
        return RuledOut(name, _no_contention(wait, load, slower))
    if view.is_alike and not view.is_slower:
        return RuledOut(name, "the machine is busier, but cycles do not take longer")
    shown = []
    confidence = 0.65
    if waits:
        shown.append(evidence("time waiting for a core, per cycle", wait, role="necessary", device=OWN,
                              metric="process_runq_time", unit="ns"))  # fmt: skip
        if own.is_known:
            shown.append(evidence("own processor time per cycle", own, device=OWN, metric="process_oncpu_time", unit="ns"))
            confidence += 0.15
    if shared:
        shown.append(evidence(f"calls on the host take {fold(slower or 1.0)} as long at equal clock", role="necessary"))
        shown.append(evidence("use of all processors", load, role="necessary", device="host", metric="host_cpu_usage"))
        confidence += 0.15
    kicked = view.per_cycle(OWN, "process_involuntary_ctx_switches")
    if kicked.rose(times=2):
        shown.append(evidence("times it was pushed off a core, per cycle", kicked, device=OWN,
                              metric="process_involuntary_ctx_switches"))  # fmt: skip
        confidence += 0.05
    found = stretch(view.host_work())
    if found is not None and found >= _STRETCHED and alike(view.host_work(), found) >= 0.6:
        shown.append(evidence(f"all work on the host is slower alike: {fold(found)}"))
        confidence += 0.1
    costs = []
    clock = core_clock(view)
    if clock.fell(to=0.95):
        text = f"core clock {moved(clock)}: busy neighbours lower it"
        costs.append(evidence(text, clock, role="consequence", device="host", metric="cpu_frequency"))
    affected = max(wait.delta if waits else 0.0, view.base_ns * ((slower or 1.0) - 1) if shared else 0.0)
    explained = min(affected, max(view.delta_ns, 0.0)) if view.is_alike else affected
    cause = Cause(
        name, _contention_says(view, wait, own, load, slower, waits=waits), "processor cores", "host", view.pair.label,
        None, wait.ratio if waits else load.ratio, explained, clipped(confidence), tuple(shown), tuple(costs),
        "see what else runs there (top, pidstat 1); pin the job to cores of its own (taskset, cpuset, numactl)",
    )  # fmt: skip
    return Suspect(cause, affected)


def _contention_says(
    view: View, wait: Change, own: Change, load: Change, slower: float | None, *, waits: bool
) -> str:
    parts = []
    if waits:
        share = [(w or 0.0) / (s or 1.0) for w, s in ((wait.base, view.step.base), (wait.other, view.step.other))]
        parts.append(
            f"The process waited for a core {span(wait.base, wait.other, 'ns')} per cycle"
            f" ({units.percent(min(share[0], 1.0))} → {units.percent(min(share[1], 1.0))} of it)"
        )
        if own.is_known and abs(own.delta) < 0.25 * (own.base or 1.0):
            parts.append(f"its own work needs as much processor time as before ({units.duration(own.other)})")
    if load.is_known and load.is_real:
        parts.append(f"use of the machine's processors {moved(load)}")
    if slower is not None and slower >= _STRETCHED:
        parts.append(f"each call on the host takes {fold(slower)} as long at equal clock")
    return "; ".join(parts) + ": other processes take its cores."


def _no_contention(wait: Change, load: Change, slower: float | None) -> str:
    if wait.is_known:
        return f"time waiting for a core: {span(wait.base, wait.other, 'ns')} per cycle"
    text = f"use of all processors {span(load.base, load.other, load.unit)}"
    return text + (f", calls on the host take {fold(slower)} as long" if slower is not None else "")


def cpu_frequency(view: View) -> Judgement:
    """The clock of the host's cores is low.

    Necessary: it fell by 15 % or more (vector licences and turbo limits take up to that much from a busy core) without
    a rise of the machine's load by 10 points, and calls on the host became slower by at least the root of the clock's
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
    work = view.host_work()
    slower = stretch(work)
    inverse = 1 / (clock.ratio or 1.0)
    if slower is not None and slower < inverse**0.5:
        return RuledOut(name, f"core clock {moved(clock)}, but calls on the host take {fold(slower)} as long")
    if slower is None and not view.is_slower:
        return RuledOut(name, f"core clock {moved(clock)}, but nothing that runs on the host is slower")
    shown = [evidence("core clock", clock, role="necessary", device="host", metric="cpu_frequency")]
    confidence = 0.6
    says = f"The cores' clock {moved(clock)}"
    if slower is not None:
        says += f"; each call on the host takes {fold(slower)} as long"
        shown.append(evidence(f"calls on the host take {fold(slower)} as long, the clock is {fold(inverse)} slower",
                              role="necessary"))  # fmt: skip
        confidence += 0.15 + 0.15 * (alike(work, slower) >= 0.6)
    if load.is_known:
        says += f", while the machine's use is {span(load.base, load.other, load.unit)}"
        shown.append(evidence("use of all processors", load, device="host", metric="host_cpu_usage"))
        confidence += 0.07
    own = ran(view)
    mine = min(own.base or view.base_ns, view.base_ns)
    if view.is_alike:
        affected = mine * ((slower or inverse) - 1)
        explained = min(affected, max(view.delta_ns, 0.0))
    else:
        affected = (view.step.other or 0.0) * (1 - 1 / (slower or inverse))
        explained = affected
    cause = Cause(
        name, f"{says}: locked, capped or throttled cores.", "clock of the cores", "host", view.pair.label, None,
        clock.ratio, explained, clipped(confidence), tuple(shown), (),
        "check the governor and the power cap: cpupower frequency-info, turbostat, BMC events",
    )  # fmt: skip
    return Suspect(cause, affected)


def gil_contention(view: View) -> Judgement:
    """Another Python thread of the process holds the interpreter's lock, or its core.

    Necessary: the process' own processor time per cycle rose by half of what the cycle grew by (another thread of it
    worked meanwhile), it kept a core busy, more than one of its threads was ready at a time (there are more of them,
    they wait for cores, or use more than one), and it changed hands: CPython passes the lock on after 5 ms, so that time
    lost to it shows as a switch per 5 ms or more (a quarter of that is asked for). A loop in the main thread burns
    processor time too, but does not switch.
    """
    name = "gil_contention"
    own = ran(view)
    switches = view.per_cycle(OWN, "process_voluntary_ctx_switches")
    if not own.is_known or not switches.is_known:
        return Missing(name, "process_oncpu_time and process_voluntary_ctx_switches")
    if not view.is_slower:
        return RuledOut(name, "cycles are not slower")
    busy = (own.other or 0.0) / (view.step.other or 1.0)
    if own.delta < 0.5 * view.delta_ns or busy < 0.85:
        return RuledOut(name, f"own processor time per cycle {span(own.base, own.other, 'ns')}")
    if not switches.rose() or switches.delta < 0.25 * view.delta_ns / _SWITCH_NS:
        return RuledOut(name, f"threads gave up the core {span(switches.base, switches.other, None)} times per cycle")
    loading = view.part("data loading")
    if loading.delta > 0.5 * view.delta_ns:
        return RuledOut(name, "the time went into the data loader")
    threads, wait = view.resource(OWN, "num_threads"), waited(view)
    if not (threads.rose(by=0.5) or wait.rose(by=0.25 * view.delta_ns) or busy > _ONE_CORE):
        return RuledOut(name, "no more than one of its threads was ready to run at a time")
    shown = [
        evidence("own processor time per cycle, all threads", own, role="necessary", device=OWN,
                 metric="process_oncpu_time", unit="ns"),
        evidence("threads gave up the core, times per cycle", switches, role="necessary", device=OWN,
                 metric="process_voluntary_ctx_switches"),
    ]  # fmt: skip
    confidence = 0.65
    more = ""
    if threads.rose(by=0.5):
        shown.append(evidence("threads of the process", threads, device=OWN, metric="num_threads"))
        more = f"; it has {units.number(threads.other)} threads (was {units.number(threads.base)})"
        confidence += 0.2
    if wait.rose(by=view.least_ns):
        shown.append(evidence("time waiting for a core, per cycle", wait, device=OWN, metric="process_runq_time", unit="ns"))
        confidence += 0.05
    gaps = view.gaps()
    if gaps.rose(by=view.least_ns):
        shown.append(evidence("time outside operators", gaps, name="python and other"))
        confidence += 0.05
    cause = Cause(
        name,
        f"Another thread of the process works against the training thread: own processor time went"
        f" {span(own.base, own.other, 'ns')} per cycle though the work is the same, and threads took turns"
        f" {units.number(switches.other)} times per cycle (was {units.number(switches.base)})"
        f"{more}: contention for the interpreter's lock.",
        "interpreter lock", "host", view.pair.label, None, own.ratio, min(own.delta, view.delta_ns),
        clipped(confidence), tuple(shown), (),
        "see what the other threads do (py-spy dump); move their work to a process, or to code that frees the lock",
    )  # fmt: skip
    return Suspect(cause, own.delta)


RULES = (
    Rule("cpu_contention", cpu_contention),
    Rule("cpu_frequency", cpu_frequency),
    Rule("gil_contention", gil_contention),
)
