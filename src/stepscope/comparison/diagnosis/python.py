"""Causes in the program's own Python: collections, waits for locks, many small calls, time between operators."""

from __future__ import annotations

import math

import msgspec
import polars as pl

from stepscope.comparison.diagnosis.case import (
    Judgement,
    Missing,
    Rule,
    View,
    not_grown,
    not_slower,
    typical_slowdown,
)
from stepscope.comparison.diagnosis.change import Change, evidence, span
from stepscope.comparison.diagnosis.compiled import added, compiling, outside_of_operators, slower
from stepscope.comparison.diagnosis.io import blocked, blocked_evidence, fetched, how_spent, is_asleep, waiting_for_disk
from stepscope.comparison.diagnosis.sampled import (
    at_locks,
    fetching,
    grown,
    grown_or_spread,
    is_new,
    is_sampled,
    only_in_slow_steps,
    or_by_samples,
    seems_tail,
    spends,
    time_in,
    unexplained,
    waiting,
    whose,
)
from stepscope.comparison.diagnosis.threads import COLLECTED
from stepscope.comparison.model import PROCESS, RuledOut
from stepscope.comparison.stack_functions import WAITS
from stepscope.core import units
from stepscope.core.names import SYNC_OPERATORS, is_graph_launch, is_sync_call, map_names, shorten
from stepscope.core.table import filtered, is_any_of

#: Dispatching, recording and launching an operator costs 5 to 20 µs. If its own time is less than a few times that, the
#: call costs more than the work.
SMALL_NS = 50_000.0
#: The resource of a cause that samples of the main thread's stack alone show: they say where, and not by what.
MAIN_THREAD = "main thread"


def python_gc(view: View) -> Judgement:
    """Python collects garbage longer or more often.

    Necessary: time in collections grew by 3 % of a cycle. Collections stop the loop, so all of that time is lost.
    """
    name = "python_gc"
    spent = view.per_cycle(PROCESS, *COLLECTED)
    if not spent.is_known:
        return Missing(name, "process_python_gc_time (gc.callbacks)")
    if not view.same_cycles or not spent.rose(by=view.least_ns):
        return not_grown(name, view, spent, f"collections take {span(spent.base, spent.other, 'ns')} per cycle")
    often = view.per_cycle(PROCESS, "process_python_gc_collections")
    gaps = view.gaps()
    shown = [
        evidence(
            "time in collections, per cycle",
            spent,
            role="necessary",
            device=PROCESS,
            metric=COLLECTED[0],
            unit="ns",
        )
    ]
    confidence = 0.85
    if often.is_known:
        shown.append(evidence("collections per cycle", often, device=PROCESS, metric="process_python_gc_collections"))
    if gaps.rose(by=0.5 * spent.delta):
        shown.append(evidence("time outside operators, per cycle", gaps, name="python and other", unit="ns"))
        confidence += 0.1
    each = ""
    if often.is_known and often.other:
        length = units.duration((spent.other or 0.0) / often.other)
        times = f"{units.number(often.other)} collections" if often.other >= 1 else "a collection"
        each = f": {times} of {length}" + ("" if often.other >= 1 else f" every {units.number(1 / often.other)} cycles")
    return view.suspect(
        name,
        f"Python collects garbage for {units.duration(spent.other)} per cycle"
        f" (was {units.duration(spent.base)}){each}.",
        spent.delta * view.stretch,
        confidence,
        shown,
        resource="garbage collector",
        device=PROCESS,
        magnitude=spent.ratio,
        advice="make fewer objects that refer to themselves; gc.freeze() after start-up, gc.collect() at a"
        " moment of your own, or a higher gc.set_threshold()",
    )


def lock_contention(view: View) -> Judgement:
    """The main thread waits for a lock that another thread of the job holds.

    Necessary: samples of its stack show it at a line that takes a lock, for longer than in the base by 3 % of a cycle
    and by a tenth of the added time. The time at such a line without a wait is less than a microsecond.
    """
    name = "lock_contention"
    if not is_sampled(view):
        return Missing(name, "Python stacks: stepscope record --stacks")
    if not view.same_cycles or view.delta_ns <= 0:
        return not_slower(name, view)
    waits = grown(view).filter(pl.col("function").str.starts_with(WAITS))
    if waits.is_empty():
        return RuledOut(name, "the main thread waits for no lock longer than in the base")
    line, who = str(waits["function"][0]).removeprefix(WAITS), whose(waits["worker_ratio"][0])
    change = Change(float(waits["low"].sum()), float(waits["high"].sum()), is_real=True, unit="ns")
    return view.suspect(
        name,
        f"{who[0].upper()}{who[1:]} {'wait' if who.startswith('workers') else 'waits'} for a lock"
        f" {span(change.base, change.other, 'ns')} per cycle: {line}.",
        change.delta * view.stretch,
        0.9,
        time_in(waits, "time of {whose} at: {function}"),
        resource="lock",
        device="host",
        magnitude=change.ratio,
        advice="see which thread holds it (stepscope show python-stacks --idle): let it copy under the lock, and save,"
        " send or sleep without it",
    )


class Small(msgspec.Struct, frozen=True):
    """Added calls of operators and runtime functions that take little time each, and their cost per cycle.

    `syncs` is how many of them wait for a value, and `fed_ns` the cost of the longer added calls that compute these
    values. `replaces` is true if an operator that took 1 % of a cycle is hardly called any more, so that the added
    calls replace it.
    """

    calls: float
    cost_ns: float
    names: tuple[str, ...]
    syncs: float
    fed_ns: float
    replaces: bool


def small_calls(view: View) -> Small:
    """Calls on the host that were added, of operators that take less than `SMALL_NS` each."""
    kinds = pl.col("category").is_in(("operator", "runtime", "driver", "user_range"))
    added = pl.col("calls_other") - pl.col("calls_base")
    work = view.work.filter((pl.col("device") == "host") & kinds & ~pl.col("is_collective")).with_columns(added=added)
    more = work.filter((pl.col("added") > 0) & pl.col("calls_real")).sort("delta_ns", descending=True)
    is_small = pl.col("delta_ns") / pl.col("added") < SMALL_NS
    small, long = more.filter(is_small), more.filter(~is_small)
    is_sync = map_names(small["name"], lambda name: name in SYNC_OPERATORS or is_sync_call(name), pl.Boolean())
    syncs = max(small["added"].filter(is_sync), default=0.0)
    feeds = 0 < float(long["added"].sum()) <= 2 * syncs
    is_gone = (pl.col("own_ns_base") > 0.01 * view.base_ns) & (pl.col("calls_other") < 0.5 * pl.col("calls_base"))
    gone = work.filter(is_gone & (pl.col("category") == "operator"))
    return Small(
        calls=float(small["added"].sum()),
        cost_ns=float(small["delta_ns"].sum()),
        names=tuple(small["name"].head(3).to_list()),
        syncs=syncs,
        fed_ns=float(long["delta_ns"].sum()) if feeds else 0.0,
        replaces=gone.height > 0,
    )


def accounted(view: View) -> float:
    """The time per cycle that collections and files add, which are other causes. Units: ns."""
    return _collected(view) + waiting_for_disk(view)


def _collected(view: View) -> float:
    """The time per profiled cycle that collections add. Units: ns."""
    return max(view.per_cycle(PROCESS, *COLLECTED).delta, 0.0) * view.stretch


def _slower(view: View) -> float:
    """The time per cycle by which Python between operators is slower, if the same calls of operators are. Units: ns."""
    slowdown = typical_slowdown(view.host_work()) or 1.0
    return max(slowdown - 1.0, 0.0) * (view.gaps().base or 0.0)


def _of_run(view: View, added_ns: float) -> float:
    """How much of an added time between operators all steps have, if those of the whole run grew less. Units: ns.

    A profiler makes operators longer, and not what is between them.
    """
    grew = sum(part.delta for part in view.parts.values())
    part = min(view.run_delta_ns / grew, 1.0) if view.tails is not None and grew > 0 else 1.0
    return added_ns * part * view.stretch


def _outside_of_slow_steps(view: View) -> float:
    """By how much all steps are longer, without what slow steps add and files take; infinite without slow steps (ns).

    Ten profiled steps have one of those that come every ten steps, or none, so the whole run says how much they take.
    """
    if view.tails is None or view.tails.is_usual or not seems_tail(view):
        return math.inf
    longer, slow = view.run_step.delta * view.stretch, view.tails.added_ns * view.stretch
    return longer - max(slow, _collected(view)) - waiting_for_disk(view)


def _by_samples(view: View) -> float:
    """How much longer the main thread works somewhere outside of slow steps; infinite if samples do not tell (ns)."""
    rows = grown_or_spread(view).filter(~waiting() & ~fetching())
    rest = float((rows["delta"] - rows["slow"]).sum())
    return rest * view.stretch if seems_tail(view) and rest >= view.run_least_ns else math.inf


def host_overhead(view: View) -> Judgement:
    """The host spends more time around the work: many small calls, synchronisations, printing, Python in between.

    Necessary: added small calls (under 50 µs of own time each) and time in which nothing that was recorded ran, less
    garbage collections, waits for files and locks, and as much as operators of the same kind are slower, grew together
    by 3 % of a cycle; no more counts than the steps of the whole run leave without slow ones. Longer added calls count
    as well if they compute the values that added synchronisations wait for. Small calls that replace an operator are
    another implementation of it, not overhead. Numbers of calls do not scatter: if they are the reason, the cycle need
    not be significantly slower. Without a profile: samples of its stack show the main thread, twice as long as in the
    base, at a function that waits for nobody.
    """
    if not view.same_cycles or (view.delta_ns <= 0 and not (view.pair.answers_requests and is_sampled(view))):
        return not_slower("host_overhead", view)
    if not view.is_profiled:
        return _elsewhere(view)
    return or_by_samples(view, _around(view), _elsewhere, if_sampled=True)


def _around(view: View) -> Judgement:
    name = "host_overhead"
    small, gaps = small_calls(view), view.gaps()
    calls_ns = 0.0 if small.replaces else small.cost_ns + small.fed_ns
    computes = outside_of_operators(view, added(view))
    known = (accounted(view) + fetched(view) + at_locks(view)) / view.stretch + _slower(view) + computes
    between = gaps.delta - min(known, gaps.delta) if gaps.rose() else 0.0
    waits = view.part("launch and runtime calls", "synchronisation")
    launch = waits.delta if waits.rose() and calls_ns == 0 else 0.0
    lost = max(calls_ns, 0.0) + min(_of_run(view, between), _by_samples(view)) + max(launch, 0.0)
    lost = min(lost, max(_outside_of_slow_steps(view), calls_ns))
    if lost < view.least_ns:
        return RuledOut(
            name,
            f"{units.number(small.calls)} small calls more per cycle, time between operators"
            f" {span(gaps.base, gaps.other, 'ns')}",
        )
    if not view.is_slower and (calls_ns < view.least_ns or view.delta_ns < 0.5 * calls_ns):
        return not_slower(name, view)
    shown, confidence, says = [], 0.6, []
    if calls_ns >= 0.25 * lost:
        shown.append(
            evidence(
                f"{units.number(small.calls)} small calls more per cycle: {', '.join(map(shorten, small.names))}",
                Change(0.0, calls_ns, True, "ns"),
                role="necessary",
                name=small.names[0],
            )
        )
        sync = f", {units.number(small.syncs)} of which wait for a value" if small.syncs else ""
        says.append(
            f"{units.number(small.calls)} small calls more per cycle ({', '.join(map(shorten, small.names))}{sync})"
            f" cost {units.duration(calls_ns)}"
        )
        confidence += 0.2
    if between >= 0.25 * lost:
        shown.append(
            evidence("time outside operators, per cycle", gaps, role="necessary", name="python and other", unit="ns")
        )
        off = blocked(view)
        asleep = off.rose(by=0.5 * between)
        how = "asleep or waiting" if asleep else "Python at work" if off.is_known else "Python, or waiting"
        went = f"time between operators went {span(gaps.base, gaps.other, 'ns')} per cycle"
        if between < 0.9 * gaps.delta:
            went += f", {units.duration(between)} of it without collections and files"
        says.append(f"{went} ({how})")
        if off.is_known:
            shown.append(blocked_evidence(off))
        confidence += 0.05
    if launch >= 0.25 * lost:
        shown.append(evidence("time in launches and synchronisations, per cycle", waits, role="necessary", unit="ns"))
        says.append(f"launches and synchronisations went {span(waits.base, waits.other, 'ns')} per cycle")
    before, after = graph_launches(view)
    if before and not after:
        says.append("the device's work was launched as a graph before")
        shown.append(evidence("launches of captured graphs are gone", role="supporting", device="host"))
        confidence += 0.1
    text = "; ".join(says) or f"{units.duration(lost)} more per cycle around the work"
    return view.suspect(
        name,
        f"{text[0].upper()}{text[1:]}: the host is busy around the work.",
        lost,
        confidence,
        shown,
        resource="host",
        device="host",
        magnitude=view.step.ratio,
        advice="read values (.item(), print) once in many steps; fuse small operators; profile the loop with py-spy",
    )


def _elsewhere(view: View) -> Judgement:
    """The judgement without a profile: samples of the stack may show the main thread where it hardly was before."""
    name = "host_overhead"
    if not is_sampled(view):
        return Missing(name, "a profile, or Python stacks: stepscope record --stacks")
    longer = grown_or_spread(view).filter(~(waiting() | fetching() | compiling()))
    rows = longer.filter(is_new())
    if rows.is_empty() and view.is_slower and not view.peers and is_asleep(view, float(longer["delta"].sum())):
        rows = longer  # a function that computes may sleep as well, without another one that would show it
    computing = pl.concat([slower(view), added(view)])
    rows = rows.join(computing, on="function", how="anti", maintain_order="left")
    rows, known = _without_slow_steps(view, rows)
    times = unexplained(view, rows, known)
    if times is None:
        return RuledOut(name, "the main thread is where it was in the base, or waits for others")
    change, lost = times
    how, shown = how_spent(view, lost / view.stretch)
    return view.suspect(
        name,
        f"{spends(rows)} {span(change.base, change.other, 'ns')} per cycle in {rows['function'][0]}"
        f"{' and others' if rows.height > 1 else ''}{how}.",
        lost,
        0.7,
        [*time_in(rows), *shown],
        resource=MAIN_THREAD,
        device="host",
        magnitude=change.ratio,
        advice="see what it does there (stepscope show python-stacks): do it less often, or in a thread of its own",
    )


def _without_slow_steps(view: View, rows: pl.DataFrame) -> tuple[pl.DataFrame, float]:
    """Those of the functions that take longer outside of slow steps, and what else accounts for their time (ns).

    What is in slow steps alone is periodic work or a tail. Collections, which may be what makes steps slow, count once.
    """
    if not seems_tail(view):
        return rows, accounted(view)
    in_slow = only_in_slow_steps(view)
    slow, left_out = (float(part["slow"].sum()) * view.stretch for part in (rows, rows.filter(in_slow)))
    return rows.filter(~in_slow), max(slow, _collected(view)) - left_out + waiting_for_disk(view)


def graph_launches(view: View) -> tuple[float, float]:
    """Launches of captured graphs per cycle in the base and in the other run."""
    calls = filtered(view.work, is_any_of(view.work["category"], ("runtime", "driver")))
    launches = filtered(calls, map_names(calls["name"], is_graph_launch, pl.Boolean()))
    return float(launches["calls_base"].sum()), float(launches["calls_other"].sum())


def graphs_differ(view: View) -> bool:
    """Whether one run launches captured graphs and the other none: the operators in a graph are not visible."""
    base, other = graph_launches(view)
    return (base == 0) != (other == 0)


RULES = (Rule("python_gc", python_gc), Rule("lock_contention", lock_contention), Rule("host_overhead", host_overhead))
