"""How a process uses the machine's cores: how long it runs and waits for them, their clock, and who else uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.comparison import whole_run
from stepscope.comparison.diagnosis.change import ABSENT, Change
from stepscope.comparison.main_thread import is_worked_for
from stepscope.comparison.model import BLOCKER, PROCESS, WORKERS
from stepscope.core.table import filtered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import LockHeld

#: A neighbour that matters keeps at least half a core busy.
HALF_CORE = 0.5
#: Time waiting for cores that matters, as a share of a cycle.
WAITING = 0.05
#: Slow steps that spend this part of their extra time waiting for a core are slow because of it.
MOSTLY_WAITS = 0.4
#: Waits of a process and of its workers, this many times as often, are for each other.
_OFTEN = 3.0
#: Python's lock makes a thread wait less than once in so much added time: 0.6 ms were seen, 0.06 ms of pipes.
_TURN_NS = 2.5e5
#: Fewer looks at Python's lock that find another thread holding it may be chance.
_LEAST_HELD = 5
#: How Python calls the thread that the job's own program begins in.
_MAIN = "MainThread"


def waited(view: View) -> Change:
    """Time per cycle in which the process' threads were ready but had no core."""
    counted = view.per_cycle(PROCESS, "process_runq_time")
    return counted if counted.is_known else _scheduled(view, "sched_runq")


def waiting_share(view: View) -> float | None:
    """Of the time that slow steps add, the part in which the process waited for a core, 0..1; None if unknown."""
    return part_of_slow(view, "process_runq_time")


def part_of_slow(view: View, *metrics: str) -> float | None:
    """Of the time that slow steps add, the part that the first of these metrics accounts for, 0..1."""
    parts = (whole_run.part_of_slow(run, *metrics) for run in view.pair.other)
    return max((part for part in parts if part is not None), default=None)


def seems_slower(view: View, affected_ns: float) -> bool:
    """Whether cycles seem to take longer by half of what something proven costs, if it is not proven that they do."""
    return view.same_cycles and view.delta_ns > max(view.least_ns, 0.5 * affected_ns)


def slow_without_wait(view: View) -> float:
    """What slow steps add to the mean step if it is known that they do not wait for a core. Units: ns."""
    share = waiting_share(view) if view.has_tail else None
    return view.tails.added_ns if view.tails is not None and share is not None and share <= MOSTLY_WAITS else 0.0


def with_workers(view: View, mine: Change, metric: str) -> Change:
    """A time per cycle of the process and of the job's other processes that are not observed by themselves."""
    theirs = view.per_cycle(WORKERS, metric)
    if not mine.is_known or not theirs.is_known:
        return mine
    ends = [(a or 0.0) + (b or 0.0) for a, b in ((mine.base, theirs.base), (mine.other, theirs.other))]
    return Change(ends[0], ends[1], mine.is_real or theirs.is_real, mine.unit)


def ran_in_all(view: View) -> Change:
    """Processor time per cycle of the process and of its workers, all threads."""
    return with_workers(view, ran(view), "process_oncpu_time")


def exchanges(view: View) -> tuple[Change, Change] | None:
    """How often per cycle the process, and its workers, give up a core to wait, if both do three times as often.

    They wait for each other then: a pipe holds 64 KiB, so much data passes in many turns. None if they do not, or if
    the process waits so seldom that it may be for Python's lock, which threads pass on every 5 ms.
    """
    own, theirs = (view.per_cycle(device, "process_voluntary_ctx_switches") for device in (PROCESS, WORKERS))
    if view.is_profiled or own.delta * _TURN_NS < view.delta_ns:
        return None
    return (own, theirs) if own.rose(times=_OFTEN, by=1.0) and theirs.rose(times=_OFTEN, by=1.0) else None


def held_by_threads(view: View) -> Change:
    """Time per cycle in which threads other than the main one held Python's lock, beyond what they do in the base.

    It is the mean of the job's processes, which run one program and start the same threads: samples of one may be few.
    """
    base, other = _lock_samples(view, "base"), _lock_samples(view, "other")
    if not base or not other or not view.run_step.is_known:
        return ABSENT
    holders = _holders(view)
    share = min(sum(more for _, more, _ in holders) / len(other), 1.0)
    is_real = sum(n for _, _, n in holders) >= _LEAST_HELD
    return Change(0.0, share * (view.run_step.other or 0.0), is_real=is_real, unit="ns")


def times_asked(view: View) -> int:
    """How often samples found a thread of the other run that held Python's lock."""
    return sum(held.n_samples for run in _lock_samples(view, "other") for held in run.values())


def pools_work(view: View) -> bool:
    """Whether pools of threads, or threads of requests, do what the other run's main thread waits for."""
    return any(is_worked_for(run.python_functions) for run in view.pair.other)


def holder(view: View) -> str:
    """The thread that held Python's lock longest, beyond what it does in the base."""
    holders = _holders(view)
    name, _, _ = max(holders, key=lambda row: row[1], default=("other threads", 0.0, 0))
    return f"the thread {name}" if holders else name


def _lock_samples(view: View, side: str) -> list[Mapping[str, LockHeld]]:
    """What looks at Python's lock found in each repeat of each of the job's processes."""
    runs = [run for pair in (view.pair, *view.peers) for run in getattr(pair, side)]
    return [run.lock_held for run in runs if run.lock_held is not None]


def _holders(view: View) -> list[tuple[str, float, int]]:
    """Threads, but the main one, that held the lock for longer: by how much of the time, in how many samples.

    A thread that the base has must hold it twice as long: few samples find it. Threads of a pool that do what the main
    thread waits for do not keep the lock from it.
    """
    other = _lock_samples(view, "other")
    works = pools_work(view)
    before: dict[str, float] = {}
    for run in _lock_samples(view, "base"):
        for name, held in run.items():
            before[name] = max(before.get(name, 0.0), held.share_ratio)
    return [
        (name, held.share_ratio - before.get(name, 0.0), held.n_samples)
        for run in other
        for name, held in run.items()
        if name != _MAIN and not (works and held.is_in_pool) and held.share_ratio > 2 * before.get(name, 0.0)
    ]


def ran(view: View) -> Change:
    """Processor time per cycle of the process, all threads."""
    counted = view.per_cycle(PROCESS, "process_oncpu_time")
    if counted.is_known:
        return counted
    scheduled = _scheduled(view, "sched_oncpu")
    if scheduled.is_known:
        return scheduled
    usage = view.resource(PROCESS, "process_cpu_usage")
    if not usage.is_known or not view.step.is_known:
        return ABSENT
    base, other = (
        (v or 0.0) / 100 * (s or 0.0) for v, s in ((usage.base, view.step.base), (usage.other, view.step.other))
    )
    return Change(base, other, usage.is_real or view.step.is_real, "ns")


def _scheduled(view: View, category: str) -> Change:
    rows = filtered(view.work, view.work["category"] == category)
    if rows.is_empty() or not view.same_cycles:
        return ABSENT
    return Change(
        float(rows["total_ns_base"].fill_null(0).sum()),
        float(rows["total_ns_other"].fill_null(0).sum()),
        bool(rows["is_real"].any()),
        "ns",
    )


def blocker_of(view: View) -> tuple[str, Change] | None:
    """The process that keeps the threads waiting longer than in the base by most, and these waits per cycle.

    None if no process does, or if scheduling was not recorded in the other run.
    """
    waits = {
        device: Change(change.base or 0.0, change.other, is_real=True, unit="ns")
        for (device, metric), change in view.amounts.items()
        if device.startswith(BLOCKER) and metric == "process_runq_time" and change.other is not None
    }
    if not waits:
        return None
    name = max(waits, key=lambda device: waits[device].delta)
    return (name.removeprefix(BLOCKER), waits[name]) if waits[name].delta > 0 else None


def core_clock(view: View) -> Change:
    """Clock of the host's cores: the mean of all, or if each has its own, that of the core busiest in both runs."""
    whole = view.resource("host", "cpu_frequency")
    cores = [core for core in view.devices("cpu") if view.resource(core, "cpu_frequency").is_known]
    if whole.is_known or not cores:
        return whole

    def busy(core: str) -> float:
        usage = view.resource(core, "host_cpu_usage")
        return min(usage.base or 0.0, usage.other or 0.0)

    return view.resource(max(cores, key=busy), "cpu_frequency")


def named_cores(view: View) -> int:
    """The number of the machine's cores; 0 if they were not recorded one by one."""
    return sum(1 for core in view.devices("cpu") if core[3:].isdigit())


def outside_cores(view: View) -> float | None:
    """How many more cores other processes use; a lower bound if the number of cores is unknown. None if unknown."""
    load, own = view.resource("host", "host_cpu_usage"), view.resource(PROCESS, "process_cpu_usage")
    if not load.is_known:
        return None
    # The process' own use is a part of the machine's, which bounds the number of cores from below.
    least = max((o or 0.0) / w for o, w in ((own.base, load.base), (own.other, load.other)) if w) if load.other else 0.0
    cores = named_cores(view) or max(2.0, least)
    theirs = view.resource(WORKERS, "process_oncpu_time")  # only one of the runs may have workers
    more = own.delta / 100 + ((theirs.other or 0.0) - (theirs.base or 0.0)) / 1e9
    return (load.delta if load.is_real else 0.0) / 100 * cores - more
