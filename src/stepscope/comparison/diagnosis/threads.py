"""Causes in the process' own threads: too many for its cores, or waits for the interpreter's lock."""

from __future__ import annotations

from typing import Literal

import numpy as np

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, View, not_slower, weigh
from stepscope.comparison.diagnosis.change import Change, evidence, span
from stepscope.comparison.diagnosis.cores import (
    HALF_CORE,
    WAITING,
    exchanges,
    held_by_threads,
    holder,
    named_cores,
    outside_cores,
    pools_work,
    ran,
    seems_slower,
    times_asked,
    waited,
)
from stepscope.comparison.diagnosis.io import blocked, written
from stepscope.comparison.diagnosis.sampled import at_locks
from stepscope.comparison.main_thread import waiting_ratio
from stepscope.comparison.model import LOADING, OPERATORS, PROCESS, RuledOut
from stepscope.comparison.whole_run import mean_step_ns
from stepscope.core import units

#: Share of a core from which on it counts as busy, and above which more than one thread must be running.
_BUSY = 0.85
_ONE_CORE = 1.1
#: Threads that compute or wait for data make way for one that holds the interpreter's lock, but not for so many fewer.
_FEWER = 0.8
#: The recorder's count of time in garbage collections.
COLLECTED = ("process_python_gc_time", "python_gc_time")
#: Samples of waits say how much of its time a process works if that is this part of it or more.
_AT_WORK = 0.2
#: Time between operators is stretched more than they are from so many times as much on.
_TWICE = 2.0
#: So many samples of who holds the lock would find a thread that holds it for this part of what a cycle takes longer.
_LEAST_ASKED, _FEW_ASKED, _HARDLY = 10, 5, 0.2
#: One that holds it for this part of it is seen to contend: its turns cost as much again, and so do caches and cores.
_MUCH_HELD = 0.25
#: A thread that holds the lock runs, so time in which no thread does is none of it, beyond this part of it.
_ASLEEP = 0.2
#: One thread more works beside the others if processor time rises to so many times as much, and by as many times more
#: than cycles take longer.
_IN_PARALLEL = 1.5
#: CPython passes the lock to the next thread after 5 ms at the latest (sys.getswitchinterval).
_SWITCH_NS = 5e6
#: Threads that compute together wait for each other after each operator: this many times as often as they would pass
#: the lock on. 63 times and more were seen, of threads that pass it on and wait for files 10 times.
_MEET_OFTEN = 25.0


def is_crowded(view: View, outside: float | None) -> bool:
    """Whether the process has more threads, which are pushed off cores that other processes do not use more."""
    kicked = view.per_cycle(PROCESS, "process_involuntary_ctx_switches")
    return _has_more(view) and kicked.rose(times=2) and (outside is None or outside < HALF_CORE)


def _has_more(view: View) -> bool:
    """Whether the process has at least two threads more, and half as many again; or one, which works beside the others.

    A thread that works while the others do adds more processor time to a cycle than the cycle becomes longer by.
    """
    threads, own = view.resource(PROCESS, "num_threads"), ran(view)
    works = own.is_known and own.rose(times=_IN_PARALLEL) and own.delta > _IN_PARALLEL * max(view.run_step.delta, 0.0)
    return threads.rose(by=1.5, times=1.5) or (works and threads.rose(by=0.75))


def _not_too_many(view: View, outside: float | None) -> str:
    """Why the process' threads are not too many for its cores; empty if they may be."""
    if not is_crowded(view, outside):
        return "other processes use the cores more, or threads are not pushed off them more often"
    if _is_locked(view):
        return "other threads hold the interpreter's lock for longer, which only one has at a time"
    ready, cores = _ready(view), named_cores(view)
    if ready is not None and view.pair.answers_requests:  # of the time in which it answers some
        ready *= (view.run_step.other or 0.0) / float(np.mean([mean_step_ns(run.steps) for run in view.pair.other]))
    if ready is not None:  # of the time in which some thread is at work
        ready /= max(1 - float(np.mean([waiting_ratio(run.python_functions) for run in view.pair.other])), _AT_WORK)
    if ready is not None and ready <= cores and not (_in_operators(view) or _meet_often(view)):
        return f"{units.number(round(ready, 1))} of its threads were ready at a time, and there are {cores} cores"
    within, between = view.part(OPERATORS), view.gaps()
    if within.is_known and (between.ratio or 0.0) > _TWICE * (within.ratio or 0.0):
        return f"time outside operators is stretched more than they are: {span(between.base, between.other, 'ns')}"
    return ""


def _is_never_locked(view: View) -> bool:
    """Whether samples, of which there are enough, found no other thread that held Python's lock for long.

    Threads that answer requests work and take turns more with each request, which says less of a lock, so fewer do.
    """
    least = _FEW_ASKED if pools_work(view) else _LEAST_ASKED
    return times_asked(view) >= least and held_by_threads(view).delta < _HARDLY * view.delta_ns


def _is_locked(view: View) -> bool:
    """Whether other threads hold Python's lock longer, by a quarter of what the step of the run became longer by."""
    return held_by_threads(view).rose(by=max(_MUCH_HELD * view.run_step.delta, view.least_ns))


def _meet_often(view: View) -> bool:
    """Whether threads wait far more often than for Python's lock, which no other thread than before was found to hold.

    They are ready at once then, for a part of the time.
    """
    turns = view.per_cycle(PROCESS, "process_voluntary_ctx_switches")
    is_free = held_by_threads(view).delta < _HARDLY * view.delta_ns
    return is_free and turns.rose() and turns.delta > _MEET_OFTEN * view.run_delta_ns / _SWITCH_NS


def _in_operators(view: View) -> bool:
    """Whether operators are what takes longer: twice as much as the time between them, where Python needs its lock."""
    within, between = view.part(OPERATORS), view.gaps()
    return within.rose(by=view.least_ns) and within.delta > _TWICE * max(between.delta, 0.0)


def _ready(view: View, side: Literal["base", "other"] = "other") -> float | None:
    """How many threads of the process ran or waited for a core at a time, on average; None if unknown."""
    own, wait = ran(view), waited(view)
    step = getattr(view.run_step, side)
    if not own.is_known or not wait.is_known or not step:
        return None
    return float(((getattr(own, side) or 0.0) + (getattr(wait, side) or 0.0)) / step)


def thread_oversubscription(view: View) -> Judgement:
    """The process runs more threads than it has cores for, so they take the cores from each other.

    Necessary: it has at least two threads more, and half as many again, or one that works beside the others; its
    threads wait for cores longer, by 5 % of a cycle, and are pushed off them twice as often, while other processes do
    not use half a core more. More threads are ready at a time than there are cores, as those that wait for the
    interpreter's lock are not; or threads wait for each other far more often than they would pass that lock on.
    Operators are what such threads compute together: where the time between operators is stretched twice as much, or
    where other threads hold the interpreter's lock for longer, Python threads wait for each other.
    """
    name = "thread_oversubscription"
    wait, threads = waited(view), view.resource(PROCESS, "num_threads")
    kicked, outside = view.per_cycle(PROCESS, "process_involuntary_ctx_switches"), outside_cores(view)
    if not wait.is_known or not threads.is_known or not kicked.is_known:
        return Missing(name, "num_threads, process_runq_time and process_involuntary_ctx_switches")
    if not _has_more(view):
        return RuledOut(name, f"threads of the process: {span(threads.base, threads.other, None)}")
    if not wait.rose(by=WAITING * view.base_ns):
        return RuledOut(name, f"time waiting for a core: {span(wait.base, wait.other, 'ns')} per cycle")
    # Threads wait at once, so a cycle takes longer by what one of them waits.
    if not (view.is_slower or view.has_tail or seems_slower(view, wait.delta / max(threads.delta, 1.0))):
        return not_slower(name, view)
    reason = _not_too_many(view, outside)
    if reason:
        return RuledOut(name, reason)
    return view.suspect(
        name,
        f"The process has {units.number(threads.other)} threads (was {units.number(threads.base)}), which push each"
        f" other off the cores: they wait {span(wait.base, wait.other, 'ns')} per cycle in all.",
        max(wait.delta * view.stretch, view.delta_ns),
        0.9,
        [
            evidence("threads of the process", threads, role="necessary", device=PROCESS, metric="num_threads"),
            evidence("time waiting for a core, per cycle", wait, role="necessary", device=PROCESS),
            evidence("times threads were pushed off a core, per cycle", kicked, role="necessary", device=PROCESS),
        ],
        resource="processor cores",
        device="host",
        magnitude=threads.ratio,
        advice="run as many threads as the process has cores: torch.set_num_threads, OMP_NUM_THREADS; divide the cores"
        " by the processes of this machine",
    )


def gil_contention(view: View) -> Judgement:
    """Another Python thread of the process holds the interpreter's lock, or its core.

    Necessary: the process' own processor time per cycle rose by half of the cycle's growth (another thread worked), it
    kept a core busy or waited for one, more than one of its threads was ready at a time (there are more threads, they
    wait for cores, or they use more than one), and threads switched. CPython passes the lock on after 5 ms, so lost
    time shows as one switch per 5 ms; a quarter of that suffices. A loop in the main thread uses processor time too,
    but does not switch. If operators are what takes longer, samples must show new threads holding the lock.
    """
    name = "gil_contention"
    own, switches = ran(view), view.per_cycle(PROCESS, "process_voluntary_ctx_switches")
    if not own.is_known or not switches.is_known:
        return Missing(name, "process_oncpu_time and process_voluntary_ctx_switches")
    reason = _no_lock(view, own, switches)
    if reason:
        return RuledOut(name, reason)
    threads, wait, gaps = view.resource(PROCESS, "num_threads"), waited(view), view.gaps()
    held = held_by_threads(view)
    text, turns = "own processor time per cycle, all threads", "threads gave up the core, times per cycle"
    confidence, shown = weigh(
        0.65,
        [
            (0.0, evidence(text, own, role="necessary", device=PROCESS, metric="process_oncpu_time")),
            (
                0.0,
                evidence(turns, switches, role="necessary", device=PROCESS, metric="process_voluntary_ctx_switches"),
            ),
            (0.2, evidence("threads of the process", threads, device=PROCESS, metric="num_threads"))
            if threads.rose(by=0.5)
            else None,
            (0.05, evidence("time waiting for a core, per cycle", wait, device=PROCESS, metric="process_runq_time"))
            if wait.rose(by=view.least_ns)
            else None,
            (0.05, evidence("time outside operators, per cycle", gaps, name="python and other"))
            if gaps.rose(by=view.least_ns)
            else None,
            (0.1, evidence(f"time that {holder(view)} held the lock, per cycle", held, device=PROCESS))
            if _is_locked(view)
            else None,
        ],
    )
    more = ""
    if threads.rose(by=0.5):
        more = f"; it has {units.number(threads.other)} threads (was {units.number(threads.base)})"
    return view.suspect(
        name,
        f"Another thread of the process competes with the training thread: its own processor time went"
        f" {span(own.base, own.other, 'ns')} per cycle though the work is the same, and threads took turns"
        f" {units.number(switches.other)} times per cycle (was {units.number(switches.base)})"
        f"{more}: contention for the interpreter's lock.",
        min(own.delta * view.stretch, max(view.delta_ns - at_locks(view), 0.0)),
        confidence,
        shown,
        resource="interpreter lock",
        device="host",
        magnitude=own.ratio,
        advice="see what the other threads do (py-spy dump); move their work to a process or to code without the lock",
    )


def _no_lock(view: View, own: Change, switches: Change) -> str:
    """Why threads do not contend for the interpreter's lock; empty if they may."""
    if _is_locked(view) and view.delta_ns > view.least_ns and exchanges(view) is None:
        return ""
    threads, wait = view.resource(PROCESS, "num_threads"), waited(view)
    busy = (own.other or 0.0) / (view.run_step.other or 1.0)
    # On a busy machine a thread that never rests waits for its core as well.
    before, ready = _ready(view, "base") or 0.0, _ready(view) or busy
    collected = max(view.per_cycle(PROCESS, *COLLECTED).delta, 0.0)
    threads_rose = threads.rose(by=0.5) or wait.rose(by=0.25 * view.delta_ns)
    asleep = blocked(view)
    reasons = (
        (
            not (view.is_slower or (threads.rose(by=0.5) and own.is_real and seems_slower(view, own.delta))),
            "cycles are not slower",
        ),
        (
            asleep.rose(by=_ASLEEP * view.run_step.delta),
            f"time in which no thread ran or was ready to: {span(asleep.base, asleep.other, 'ns')} per cycle",
        ),
        (
            _is_never_locked(view),
            "samples of who holds the interpreter's lock find no other thread that holds it longer",
        ),
        (
            own.delta - collected < 0.5 * view.delta_ns or ready < _BUSY,
            f"own processor time per cycle {span(own.base, own.other, 'ns')}",
        ),
        (
            ready < _FEWER * before,
            f"threads ready at a time {span(before, ready, None)}: one that held the lock would be one more",
        ),
        (
            not switches.rose() or switches.delta < 0.25 * view.delta_ns / _SWITCH_NS,
            f"threads gave up the core {span(switches.base, switches.other, None)} times per cycle",
        ),
        (
            not _not_too_many(view, outside_cores(view)) and not _is_locked(view),
            "more of its threads are ready to run than there are cores: one that waits for the lock is not ready",
        ),
        (exchanges(view) is not None, "process and workers wait for each other, as if more data passed between them"),
        (view.part(LOADING).delta > 0.5 * view.delta_ns, "the added time is in the data loader"),
        (
            _in_operators(view) and not _is_locked(view),
            "operators take longer, and not the time between them, where Python needs the interpreter's lock",
        ),
        (
            # Threads that wait for the lock are not ready. Of those that always were there, only their turns tell, if
            # these are no waits for files.
            not threads_rose
            and busy <= _ONE_CORE
            and (switches.delta < view.delta_ns / _SWITCH_NS or written(view) is not None),
            "no more than one of its threads was ready to run at a time",
        ),
    )
    return next((text for is_so, text in reasons if is_so), "")


RULES = (Rule("gil_contention", gil_contention), Rule("thread_oversubscription", thread_oversubscription))
