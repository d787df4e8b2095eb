"""Causes in the program's own Python: collections of garbage, many small calls, time between operators."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope import units
from stepscope.compare.model import Cause, RuledOut
from stepscope.diagnose._case import OWN, View
from stepscope.diagnose._change import Change
from stepscope.diagnose._gpu import exposed
from stepscope.diagnose._io import blocked, waiting_for_disk
from stepscope.diagnose._rule import Judgement, Missing, Rule, Suspect, clipped
from stepscope.diagnose._words import evidence, span
from stepscope.names import is_sync_call, shorten

__all__ = ["RULES", "SMALL_NS", "Small", "small_calls"]

#: An operator costs 5 to 20 µs to dispatch, record and launch. One that takes less than a few times that itself is
#: paid for being called, not for its work.
SMALL_NS = 50_000.0
_SYNCS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")
_COLLECTED = ("process_python_gc_time", "python_gc_time")


def python_gc(view: View) -> Judgement:
    """Python collects garbage longer or more often.

    Necessary: time in collections grew by 3 % of a cycle. Collections stop the loop, so that time is lost in full.
    """
    name = "python_gc"
    spent = view.per_cycle(OWN, *_COLLECTED)
    if not spent.is_known:
        return Missing(name, "process_python_gc_time (gc.callbacks)")
    if not view.is_alike or not spent.rose(by=view.least_ns):
        return RuledOut(name, f"collections take {span(spent.base, spent.other, 'ns')} per cycle")
    often = view.per_cycle(OWN, "process_python_gc_collections")
    gaps = view.gaps()
    shown = [evidence("time in collections, per cycle", spent, role="necessary", device=OWN, metric=_COLLECTED[0], unit="ns")]
    confidence = 0.85
    if often.is_known:
        shown.append(evidence("collections per cycle", often, device=OWN, metric="process_python_gc_collections"))
    if gaps.rose(by=0.5 * spent.delta):
        shown.append(evidence("time outside operators, per cycle", gaps, name="python and other", unit="ns"))
        confidence += 0.1
    each = ""
    if often.is_known and often.other:
        each = f", {units.number(often.other)} collections of {units.duration((spent.other or 0.0) / often.other)}"
    cause = Cause(
        name, f"Python collects garbage for {units.duration(spent.other)} per cycle"
        f" (was {units.duration(spent.base)}){each}.",
        "garbage collector", OWN, view.pair.label, None, spent.ratio, exposed(view, spent.delta), clipped(confidence),
        tuple(shown), (), "make fewer objects that refer to themselves; gc.freeze() after start-up, gc.collect() at a"
        " moment of your own, or a higher gc.set_threshold()",
    )  # fmt: skip
    return Suspect(cause, spent.delta)


@dataclass(frozen=True, slots=True)
class Small:
    """Operators and runtime calls that are called more often and take little each: what they cost per cycle."""

    calls: float
    cost_ns: float
    names: tuple[str, ...]
    syncs: float
    #: Time of operators that are called less often now, which they may stand in for.
    replaced_ns: float


def small_calls(view: View) -> Small:
    """Calls on the host that were added, of operators that take less than `SMALL_NS` each."""
    kinds = pl.col("category").is_in(("operator", "runtime", "driver", "user_range"))
    work = view.work.filter((pl.col("device") == "host") & kinds & ~pl.col("is_comm"))
    added = pl.col("calls_other") - pl.col("calls_base")
    each = pl.when(added > 0).then(pl.col("delta_ns") / added)
    fewer = work.filter((added < 0) & pl.col("calls_real"))
    more = work.filter((added > 0) & pl.col("calls_real") & (each < SMALL_NS)).sort("delta_ns", descending=True)
    is_sync = pl.col("name").is_in(_SYNCS) | pl.col("name").map_elements(is_sync_call, return_dtype=pl.Boolean)
    return Small(
        float(more.select(added.sum()).item() or 0.0),
        float(more["delta_ns"].sum()),
        tuple(more["name"].head(3).to_list()),
        float(more.filter(is_sync).select(added.sum()).item() or 0.0),
        float(-fewer["delta_ns"].sum()),
    )


def _accounted(view: View, gaps: Change) -> float:
    """Of the time between operators what collections and files took, which are causes of their own."""
    spent, disk = view.per_cycle(OWN, *_COLLECTED), waiting_for_disk(view)
    return min(max(spent.delta, 0.0) + disk, gaps.delta)


def host_overhead(view: View) -> Judgement:
    """The host spends more time around the work: many small calls, synchronisations, printing, Python between operators.

    Necessary: added small calls (under 50 µs of their own each: paid for the call, not for the work) and time in which
    nothing recorded was open, less collections of garbage and waits for files, grew together by 3 % of a cycle. Small calls that replace an operator which is called less
    often now are that operator's other implementation, not overhead.
    """
    name = "host_overhead"
    if not view.is_slower:
        return RuledOut(name, "cycles are not slower")
    small, gaps = small_calls(view), view.gaps()
    calls_ns = small.cost_ns if small.replaced_ns < 0.5 * small.cost_ns else 0.0
    between = gaps.delta - _accounted(view, gaps) if gaps.rose() else 0.0
    waits = view.part("launch and runtime calls", "synchronisation")
    launch = waits.delta if waits.rose() and calls_ns == 0 else 0.0
    lost = max(calls_ns, 0.0) + max(between, 0.0) + max(launch, 0.0)
    if lost < view.least_ns:
        return RuledOut(
            name, f"{units.number(small.calls)} small calls more per cycle, time between operators"
            f" {span(gaps.base, gaps.other, 'ns')}",
        )  # fmt: skip
    shown, confidence, says = [], 0.6, []
    if calls_ns >= 0.25 * lost:
        shown.append(evidence(f"{units.number(small.calls)} small calls more per cycle: {', '.join(map(shorten, small.names))}",
                              Change(0.0, calls_ns, True, "ns"), role="necessary", name=small.names[0]))  # fmt: skip
        sync = f", {units.number(small.syncs)} of which wait for a value" if small.syncs else ""
        says.append(f"{units.number(small.calls)} small calls more per cycle ({', '.join(map(shorten, small.names))}{sync})"
                    f" cost {units.duration(calls_ns)}")  # fmt: skip
        confidence += 0.2
    if between >= 0.25 * lost:
        shown.append(evidence("time outside operators, per cycle", gaps, role="necessary", name="python and other", unit="ns"))
        off = blocked(view)
        asleep = off.rose(by=0.5 * between)
        how = "asleep or waiting" if asleep else "Python at work" if off.is_known else "Python, or waiting"
        says.append(f"time between operators went {span(gaps.base, gaps.other, 'ns')} per cycle ({how})")
        if off.is_known:
            shown.append(evidence("time in which the process neither ran nor was ready, per cycle", off, device=OWN, unit="ns"))
        confidence += 0.05
    if launch >= 0.25 * lost:
        shown.append(evidence("time in launches and synchronisations, per cycle", waits, role="necessary", unit="ns"))
        says.append(f"launches and synchronisations went {span(waits.base, waits.other, 'ns')} per cycle")
    text = "; ".join(says) or f"{units.duration(lost)} more per cycle around the work"
    cause = Cause(
        name, f"{text[0].upper()}{text[1:]}: the host is busy around the work.", "host", "host", view.pair.label, None,
        view.step.ratio, exposed(view, lost), clipped(confidence), tuple(shown), (),
        "read values (.item(), print) once in many steps; fuse small operators; profile the loop with py-spy",
    )  # fmt: skip
    return Suspect(cause, lost)


RULES = (Rule("python_gc", python_gc), Rule("host_overhead", host_overhead))
