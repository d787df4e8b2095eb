"""A cause that only several processes together show: one rank is late and the others wait for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.case import COLLECTIVES, Suspect, clipped
from stepscope.comparison.diagnosis.change import Change, changed, evidence, moved
from stepscope.comparison.model import Cause, RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Evidence

    Floats = NDArray[np.float64]


#: A rank must fall behind by this share of a cycle: ranks that share cores differ by some per cent.
_LEAST = 0.05
#: No other rank may stand out from the rest by this share of what it fell behind by, or have got slower by as much.
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Lag:
    """A rank's own work per cycle and its time in exchanges with other ranks, which is mostly waiting for them."""

    view: View
    own: Change
    talk: Change

    @property
    def name(self) -> str:
        """How the rank is called."""
        rank = rank_of(self.view)
        return f"Rank {rank}" if rank is not None else self.view.pair.label or "One process"


def rank_of(view: View) -> int | None:
    """Rank of the pair's process in its job."""
    return next((run.rank for run in (*view.pair.other, *view.pair.base) if run.rank is not None), None)


def lags(views: Sequence[View]) -> list[Lag]:
    """Own work and exchanges of each pair that has both."""
    found = []
    for view in views:
        talk = view.part(*COLLECTIVES)
        if not view.same_cycles or not talk.is_known or not view.step.is_known:
            continue
        ends = [
            (step or 0.0) - (part or 0.0) for step, part in ((view.step.base, talk.base), (view.step.other, talk.other))
        ]
        own = Change(ends[0], ends[1], _own_is_real(view), "ns")
        found.append(Lag(view, own, talk))
    return found


def _ahead(last: Lag, others: Sequence[Lag]) -> Change:
    """For how much longer than the last one the others are in exchanges. Units: ns.

    Each cycle is looked at by itself, for what slows all ranks alike does not show in the difference.
    """
    sides = []
    for side in ("base", "other"):
        mine = _exchanges(last.view, side)
        theirs = [_exchanges(lag.view, side) for lag in others]
        runs = []
        for i, own in enumerate(mine):
            n = min(own.size, *(each[i].size for each in theirs))
            runs.append(np.mean([each[i][:n] for each in theirs], axis=0) - own[:n])
        sides.append(runs)
    return changed(sides[0], sides[1], relative=0.0, absolute=last.view.least_ns, unit="ns")


def _exchanges(view: View, side: str) -> list[Floats]:
    """Time in exchanges by complete cycle, an array for each run of a side."""
    found = []
    for run in view.pair.base if side == "base" else view.pair.other:
        talk = run.parts.filter(pl.col("part").cast(pl.String).is_in(COLLECTIVES))
        sums = talk.group_by("cycle").agg(pl.col("total_ns").sum())
        whole = run.complete_cycles.select("cycle").join(sums, on="cycle", how="left", maintain_order="left")
        found.append(whole["total_ns"].fill_null(0).cast(pl.Float64).to_numpy())
    return found


def _own_is_real(view: View) -> bool:
    """Whether any part that is not exchange grew."""
    return any(change.rose() for name, change in view.parts.items() if name not in COLLECTIVES)


def _grown(last: Lag, others: Sequence[Lag]) -> float:
    """By how much functions really grew on the last one beyond what they typically did on the others. Units: ns.

    Time of the host and of each device by itself, of which the largest counts.
    """
    keys = ["device", "name"]
    theirs = pl.concat([lag.view.work.select(*keys, "delta_ns") for lag in others])
    usual = theirs.group_by(keys).agg(usual=pl.col("delta_ns").sort().median())
    mine = last.view.work.filter(pl.col("is_real") & ~pl.col("is_collective")).join(usual, on=keys, how="left")
    beyond = pl.col("delta_ns") - pl.max_horizontal(pl.col("usual").fill_null(0.0), 0.0)
    sums = mine.group_by("device").agg(beyond.clip(lower_bound=0).sum())["delta_ns"]
    return float(sums.to_numpy().max(initial=0.0))


def straggler(views: Sequence[View], own_causes: Sequence[Suspect]) -> Suspect | RuledOut:
    """One rank's own work ends late and the others wait for it in exchanges for about as long.

    Necessary: its own work (a cycle less its exchanges) grew by 5 % of a cycle, and of that more than half beyond what
    the others' typically did, as a machine whose speed drifts slows all alike; by so much that no other rank stands out
    from them half as far; and the time for which the others are in exchanges and it is not grew by half of that. Waits
    that are equal on all ranks are no straggler's. `own_causes` are those found on that rank by itself; the best
    becomes evidence.
    """
    name = "straggler_rank"
    found = lags(views)
    if len(found) < 2 or not any((lag.talk.other or 0.0) > 0 for lag in found):
        return RuledOut(name, "there are not two ranks that exchange data")
    last = max(found, key=lambda lag: lag.own.delta)
    others = [lag for lag in found if lag is not last]
    base = last.view.base_ns
    usual = float(np.median([lag.own.delta for lag in others]))
    behind = last.own.delta - max(usual, 0.0)
    apart = max(abs(lag.own.delta - usual) for lag in others)
    if last.own.delta < _LEAST * base:
        return RuledOut(name, "no rank's own work takes longer")
    if behind < _HALF * last.own.delta:
        return RuledOut(name, "several ranks' own work takes longer")
    if apart >= _HALF * behind:
        return RuledOut(name, "the other ranks differ by as much among each other")
    ahead = _ahead(last, others)
    # Who waits for whom scatters where ranks share cores; what one of them alone does more is certain all the same.
    is_certain = ahead.is_real or _grown(last, others) >= max(_HALF * behind, _LEAST * base)
    if last.view.delta_ns < -last.view.least_ns or not is_certain or ahead.delta <= max(_HALF * behind, _LEAST * base):
        return RuledOut(name, f"the others do not wait for {last.name.lower()} more than before")
    wait, grew = ahead.delta, min(lag.view.delta_ns for lag in found)
    shown = [evidence(f"{last.name}: own work per cycle", last.own, role="necessary", unit="ns")]
    shown += [
        evidence(f"{lag.name}: time in exchanges, mostly waiting", lag.talk, role="necessary", unit="ns")
        for lag in others
    ]
    shown.append(evidence(f"{last.name}: its own time in exchanges", last.talk, unit="ns"))
    shown.append(
        evidence(f"time for which the others are in exchanges and {last.name.lower()} is not", ahead, role="necessary")
    )
    confidence = 0.7 + 0.1 * (len(found) > 2) + 0.1 * (last.talk.delta < 0)
    why = ""
    reasons: tuple[Evidence, ...] = ()
    mine = [s for s in own_causes if s.cause.process == last.view.pair.label]
    if mine:
        best = max(mine, key=lambda s: s.affected_ns * s.cause.confidence)
        why = f" {best.cause.statement}"
        reasons = (
            evidence(f"{best.cause.category}: {best.cause.statement}"),
            *(replace(e, role="supporting") for e in best.cause.evidence),
        )
        confidence += 0.07
    explained = max(min(grew, behind), 0.0)
    cause = Cause(
        name,
        f"{last.name} is late: its own work {moved(last.own, 'ns')} per cycle, and the others wait for it,"
        f" {units.duration(wait)} more per cycle than before.{why}",
        "rank",
        None,
        last.view.pair.label,
        rank_of(last.view),
        last.own.ratio,
        explained,
        clipped(confidence),
        (*shown, *reasons),
        (),
        "look at this rank alone: its work, its data and its machine",
    )
    return Suspect(cause, behind)
