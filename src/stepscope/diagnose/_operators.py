"""Causes in the work itself: an operator that became slower or was replaced, or other work than before."""

from __future__ import annotations

import math

import polars as pl

from stepscope import units
from stepscope.compare.model import Cause, Evidence, RuledOut
from stepscope.diagnose._case import View, stretch
from stepscope.diagnose._change import Change
from stepscope.diagnose._gpu import exposed
from stepscope.diagnose._python import SMALL_NS
from stepscope.diagnose._rule import Judgement, Missing, Rule, Suspect, clipped
from stepscope.diagnose._sizes import kept, retyped, sizes
from stepscope.diagnose._words import change_of, evidence, fold, moved, span
from stepscope.names import shorten

__all__ = ["RULES", "other_work"]

#: Sizes belong to the program: 10 % is more than batches of varying length average to.
_RESIZED = math.log(1.1)
#: Recorders without sizes cut cycles by functions: a call more or less in some of them is no other work.
_RECOUNTED = 0.2
_SLOWER = 1.1
#: What tells some operators from the rest, where all are slower.
_APART = 1.2
#: Operators that are slower for no visible reason: how the system backs fresh memory moves single ones by 5 to 8 %
#: of a cycle from run to run.
_UNEXPLAINED = 0.1


def other_work(view: View) -> tuple[float, float] | None:
    """Of what is on both sides: share of the time (base) in work whose amount changed, and by how much, typically.

    Amounts are elements per cycle, where shapes are recorded; else calls per cycle of kernels. Null if unknown. If most
    of the time goes to the same shapes as often as before, nothing changed: another operator was put in beside.
    """
    same = kept(view.pair)
    if same is not None and same > 0.5:
        return 0.0, 1.0
    known = sizes(view.pair)
    if known.height and float(known["time_base"].sum()) > 0:
        amounts = known.select(weight="time_base", ratio=pl.col("volume_other") / pl.col("volume_base"))
    else:
        rows = view.work.filter((pl.col("category") == "kernel") & (pl.col("calls_base") > 0) & ~pl.col("is_comm"))
        counted = pl.col("calls_real") & ((pl.col("calls_other") / pl.col("calls_base") - 1).abs() >= _RECOUNTED)
        amounts = rows.select(
            weight="own_ns_base",
            ratio=pl.when(counted).then(pl.col("calls_other") / pl.col("calls_base")).otherwise(1.0),
        )
    amounts = amounts.filter((pl.col("ratio") > 0) & (pl.col("weight") > 0)).sort("ratio")
    if amounts.is_empty():
        return None
    whole = float(amounts["weight"].sum())
    moved_ones = amounts.filter(pl.col("ratio").log().abs() > _RESIZED)
    if moved_ones.is_empty():
        return 0.0, 1.0
    half = float(moved_ones["weight"].sum()) / 2
    at = int((moved_ones["weight"].cum_sum() < half).sum())
    return float(moved_ones["weight"].sum()) / whole, float(moved_ones["ratio"][min(at, moved_ones.height - 1)])


def _strangers(view: View) -> float:
    """Share of the base's work, by time, that the other run does not do at all, the smaller of both directions."""
    kinds = ["kernel"] if (view.work["category"] == "kernel").any() else ["operator"]
    rows = view.work.filter(pl.col("category").is_in(kinds))
    shares = []
    for mine, theirs in (("base", "other"), ("other", "base")):
        whole = float(rows[f"own_ns_{mine}"].sum())
        gone = float(rows.filter(pl.col(f"calls_{theirs}") == 0)[f"own_ns_{mine}"].sum())
        shares.append(gone / whole if whole else 0.0)
    return min(shares)


def workload_change(view: View) -> Judgement:
    """The run does other work: other sizes, more or fewer calls, other operators or kernels.

    Necessary, one of: work that makes up half of the base's time has 10 % more or fewer elements per cycle (half: the
    optimizer's work does not grow with the batch), in one direction; half of the time of either run goes to operators
    that the other does not have; or operators of 50 µs and more per call were added that cost 5 % of a cycle while
    none went away and none of the old ones changed.
    """
    name = "workload_change"
    gone = _strangers(view)
    found = other_work(view)
    if gone >= 0.5:
        return _suspect(
            view, 0.85, f"The runs do different work: {units.percent(gone)} of the time goes to operators or kernels that"
            " the other run does not have.", None, view.delta_ns,
            [evidence(f"{units.percent(gone)} of the time is in work that only one run has", role="necessary")],
        )  # fmt: skip
    if not view.is_alike:
        return RuledOut(name, "the runs were cut into different cycles, but do the same work")
    if found is not None and found[0] >= 0.5 and abs(math.log(found[1])) > _RESIZED:
        return _resized(view, *found)
    added = _added(view)
    least = 0.05 * view.base_ns
    if added.height and float(added["delta_ns"].sum()) >= least and view.is_slower:
        return _extra(view, added)
    if found is None:
        return Missing(name, "shapes of the operators' inputs (record_shapes=True)")
    return RuledOut(name, f"{units.percent(1 - found[0])} of the work has the sizes and counts that it had")


def _resized(view: View, share: float, ratio: float) -> Judgement:
    known = sizes(view.pair).sort("time_base", descending=True).head(3)
    shown = [
        evidence(
            f"{shorten(row['name'])}: elements per cycle", Change(row["volume_base"], row["volume_other"], True),
            role="necessary", device=row["device"], name=row["name"],
        )
        for row in known.iter_rows(named=True)
    ]  # fmt: skip
    confidence = 0.75
    step = view.step.ratio or 1.0
    # Products of matrices grow faster than their inputs, what depends on parameters alone does not grow at all.
    fits = (step - 1) * (ratio - 1) > 0 and abs(step - 1) <= 3 * abs(ratio - 1)
    if fits:
        shown.append(evidence("a cycle takes longer in keeping with it" if ratio > 1 else "a cycle is shorter in keeping",
                              view.step, unit="ns"))  # fmt: skip
        confidence += 0.15
    what = f"{units.percent(share)} of the work has {change_of(1.0, ratio)} elements or calls per cycle"
    if known.height:
        row = known.row(0, named=True)
        what += f" ({shorten(row['name'])}: {span(row['volume_base'], row['volume_other'], 'count')} elements)"
    return _suspect(view, confidence, f"The run does other work: {what}.", ratio, view.delta_ns if fits else 0.0, shown)


def _added(view: View) -> pl.DataFrame:
    """Operators with more calls than before, each of them long, if none has fewer and the old ones are as they were."""
    work = view.work.filter((pl.col("device") == "host") & (pl.col("category") == "operator") & ~pl.col("is_comm"))
    more = pl.col("calls_other") - pl.col("calls_base")
    least = 0.005 * view.base_ns
    if retyped(view.pair) or work.filter((more < 0) & pl.col("calls_real") & (pl.col("own_ns_base") > least)).height:
        return work.clear()
    return work.filter((more > 0) & pl.col("calls_real") & pl.col("is_real") & (pl.col("delta_ns") / more >= SMALL_NS))


def _extra(view: View, added: pl.DataFrame) -> Judgement:
    added = added.sort("delta_ns", descending=True)
    cost = float(added["delta_ns"].sum())
    first = added.row(0, named=True)
    calls = first["calls_other"] - first["calls_base"]
    shown = [
        evidence(f"{shorten(row['name'])}: calls per cycle", Change(row["calls_base"], row["calls_other"], True),
                 role="necessary", device="host", name=row["name"])
        for row in added.head(3).iter_rows(named=True)
    ]  # fmt: skip
    says = f"Work was added: {units.number(calls)} calls of {shorten(first['name'])} more per cycle, {units.duration(cost)}"
    return _suspect(view, 0.6, f"{says} in all; what was there before takes as long as before.", None, cost, shown)


def _suspect(
    view: View, confidence: float, says: str, magnitude: float | None, affected: float, shown: list[Evidence]
) -> Suspect:
    explained = min(affected, view.delta_ns) if affected > 0 else max(affected, view.delta_ns)
    cause = Cause(
        "workload_change", says, "work", None, view.pair.label, None, magnitude, explained, clipped(confidence),
        tuple(shown), (), "compare runs of equal batch, sequence length and model; or by time per sample or token",
    )  # fmt: skip
    return Suspect(cause, affected)


def slow_operator(view: View) -> Judgement:
    """One operator, or few, became slower or were replaced, while the rest is as it was.

    Necessary: operators whose own time grew by 1 % of a cycle each and by 3 % together, more than the host's work did
    in general; and a reason in them: other element types at equal sizes, or another operator in place of one that is
    called less often now. Without such a reason: calls that take 10 % longer at equal sizes while a typical other one
    does not, and cost 10 % of a cycle.
    """
    name = "slow_operator"
    if not view.is_slower:
        return RuledOut(name, "cycles are not slower")
    found = other_work(view)
    if found is not None and found[0] >= 0.5:
        return RuledOut(name, "the work has other sizes")
    work = view.host_work().filter(pl.col("category") == "operator")
    if work.is_empty():
        return Missing(name, "operators of the framework (ProfilerActivity.CPU)")
    types = retyped(view.pair)
    more = pl.col("calls_other") - pl.col("calls_base")
    fewer = work.filter((more < 0) & pl.col("calls_real") & (pl.col("own_ns_base") > 0.005 * view.base_ns))
    per_call = pl.col("ns_per_call_other") / pl.col("ns_per_call_base")
    grew = pl.col("is_real") & (pl.col("delta_ns") > 0.01 * view.base_ns)
    is_longer = (more.abs() < 0.02 * pl.col("calls_base")) & pl.col("ns_per_call_real") & (per_call >= _SLOWER)
    other_way = bool(types) or fewer.height > 0
    has_reason = pl.lit(other_way) | is_longer
    slow = work.filter(grew & has_reason).sort("delta_ns", descending=True)
    if slow.is_empty():
        return RuledOut(name, "no operator takes more time of its own")
    rest = work.join(slow.select("name"), on="name", how="anti")
    usual = stretch(rest) or 1.0
    excess = float(slow["own_ns_other"].sum()) - float(slow["own_ns_base"].sum()) * max(usual, 1.0)
    saved = float(fewer.join(slow.select("name"), on="name", how="anti")["delta_ns"].sum())
    lost = excess + min(saved, 0.0)
    if usual >= _SLOWER and not (other_way and (stretch(slow) or usual * 2) >= usual * _APART):
        return RuledOut(name, f"all operators are slower alike ({fold(usual)})")
    if lost < (view.least_ns if other_way else _UNEXPLAINED * view.base_ns):
        return RuledOut(name, f"operators that grew cost {units.duration(max(lost, 0.0))} per cycle")
    names = slow["name"].to_list()
    first = next((n for n in types if n in names), names[0])
    row = slow.filter(pl.col("name") == first).row(0, named=True)
    shown = [
        evidence(f"{shorten(r['name'])}: own time per cycle", Change(r["own_ns_base"], r["own_ns_other"], True, "ns"),
                 role="necessary" if r["name"] == first else "supporting", device="host", name=r["name"])
        for r in slow.head(5).iter_rows(named=True)
    ]  # fmt: skip
    confidence, why = 0.65, "takes longer per call at equal sizes"
    if types:
        before, after = _types(view, first)
        why = f"now works on {after} instead of {before}" if before and after else "has other element types"
        shown.append(evidence(f"element types of {', '.join(map(shorten, types[:3]))}: {before} → {after}", name=first))
        confidence += 0.25
    elif fewer.height:
        old = fewer.sort("delta_ns").row(0, named=True)
        why = f"runs where {shorten(old['name'])} did ({units.number(old['calls_base'])} → {units.number(old['calls_other'])} calls)"
        shown.append(evidence(f"calls of {shorten(old['name'])} per cycle", Change(old["calls_base"], old["calls_other"], True),
                              device="host", name=old["name"]))  # fmt: skip
        confidence += 0.15
    if usual < 1.05:
        shown.append(evidence(f"a typical other operator takes {fold(usual)} as long as before"))
        confidence += 0.07
    change = Change(row["own_ns_base"] or None, row["own_ns_other"], True, "ns")
    others = f"; with {', '.join(shorten(n) for n in names if n != first)} it costs {units.duration(lost)} more per cycle"
    says = f"{shorten(first)} {why}: its own time {moved(change)} per cycle"
    cause = Cause(
        name, f"{says}{others if len(names) > 1 else ''}.", first, "host", view.pair.label, None, change.ratio,
        exposed(view, lost), clipped(confidence), tuple(shown), (),
        "look at its inputs: show operators --by shape; types, strides, and which implementation was chosen",
    )  # fmt: skip
    return Suspect(cause, lost)


def _types(view: View, name: str) -> tuple[str, str]:
    """The element types that an operator had, and those that it has now and had not."""
    sides = []
    for runs in (view.pair.base, view.pair.other):
        rows = pl.concat([run.workload for run in runs]).filter(pl.col("name") == name)
        rows = rows.sort("total_ns_per_cycle", descending=True)
        texts = rows["types"].drop_nulls().unique(maintain_order=True).to_list()
        sides.append([_plain(text) for text in texts])
    new = [text for text in sides[1] if text not in sides[0]]
    return (sides[0] or [""])[0], (new or [""])[0]


def _plain(types: str) -> str:
    """The distinct types in a list of them as JSON.

    >>> _plain('["float","float",""]')
    'float'
    """
    parts = [part.strip(' "') for part in types.strip("[]").split(",")]
    return " and ".join(dict.fromkeys(part for part in parts if part and part not in {"Scalar", "ScalarList"}))


RULES = (Rule("slow_operator", slow_operator), Rule("workload_change", workload_change))
