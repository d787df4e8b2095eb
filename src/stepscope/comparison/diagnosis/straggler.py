"""The cause that needs several processes: one rank is late and the others wait for it in collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.comparison.diagnosis.case import COLLECTIVES, Suspect
from stepscope.comparison.diagnosis.change import Change, changed, evidence, moved
from stepscope.comparison.model import RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Evidence

    Floats = NDArray[np.float64]


#: Share of a cycle by which a rank must be late; ranks that share cores differ by some per cent.
_LEAST = 0.05
#: Share of the lag by which no other rank may differ from the rest, and which must exceed the usual slowdown.
_HALF = 0.5
#: Share of the lag by which steps of the whole run must be longer, if they were timed: the others wait for the rank.
_MOST = 2 / 3


class Lag(msgspec.Struct, frozen=True):
    """A rank's own work per cycle, and its time in collectives (`talk`), which is mostly waiting for other ranks."""

    view: View
    own: Change
    talk: Change

    @property
    def name(self) -> str:
        """The rank as a statement names it."""
        rank = self.view.rank
        return f"Rank {rank}" if rank is not None else self.view.pair.label or "One process"


def lags(views: Sequence[View]) -> list[Lag]:
    """Own work and time in collectives of each pair that has both."""
    with_collectives = []
    for view in views:
        talk = view.part(*COLLECTIVES)
        if not view.same_cycles or not talk.is_known or not view.step.is_known:
            continue
        ends = [
            (step or 0.0) - (part or 0.0) for step, part in ((view.step.base, talk.base), (view.step.other, talk.other))
        ]
        own = Change(
            ends[0],
            ends[1],
            any((change.rose() for name, change in view.parts.items() if name not in COLLECTIVES)),
            "ns",
        )
        with_collectives.append(Lag(view, own, talk))
    return with_collectives


def _ahead(last: Lag, peers: Sequence[Lag]) -> Change:
    """How much longer, cycle by cycle, the peers are in collectives than the last rank. Units: ns."""
    waits = []
    for side in ("base", "other"):
        mine = _collective_times(last.view, side)
        theirs = [_collective_times(lag.view, side) for lag in peers]
        runs = []
        for i, own in enumerate(mine):
            n = min(own.size, *(each[i].size for each in theirs))
            runs.append(np.mean([each[i][:n] for each in theirs], axis=0) - own[:n])
        waits.append(runs)
    return changed(waits[0], waits[1], relative=0.0, absolute=last.view.least_ns, unit="ns")


def _collective_times(view: View, side: str) -> list[Floats]:
    """Time in collectives by complete cycle, one array per repeat of a side. Units: ns."""
    times = []
    for run in view.pair.base if side == "base" else view.pair.other:
        talk = run.parts.filter(pl.col("part").cast(pl.String).is_in(COLLECTIVES))
        sums = talk.group_by("cycle").agg(pl.col("total_ns").sum())
        whole = run.complete_cycles.select("cycle").join(sums, on="cycle", how="left", maintain_order="left")
        times.append(whole["total_ns"].fill_null(0).cast(pl.Float64).to_numpy())
    return times


def _grown(last: Lag, peers: Sequence[Lag]) -> float:
    """How much more functions really grew on the last rank than they typically did on its peers. Units: ns.

    Summed for the host and for each device; the largest sum counts.
    """
    keys = ["device", "name"]
    theirs = pl.concat([lag.view.work.select(*keys, "delta_ns") for lag in peers])
    usual = theirs.group_by(keys).agg(usual=pl.col("delta_ns").sort().median())
    mine = last.view.work.filter(pl.col("is_real") & ~pl.col("is_collective")).join(usual, on=keys, how="left")
    beyond = pl.col("delta_ns") - pl.max_horizontal(pl.col("usual").fill_null(0.0), 0.0)
    sums = mine.group_by("device").agg(beyond.clip(lower_bound=0).sum())["delta_ns"]
    return float(sums.to_numpy().max(initial=0.0))


def straggler(views: Sequence[View], own_causes: Sequence[Suspect]) -> Suspect | RuledOut:
    """One rank's own work ends late, and the others wait for it in collectives for about as long.

    Necessary: its own work (the cycle less its collectives) grew by 5 % of a cycle, more than half of that beyond the
    typical growth on the other ranks (a machine whose speed drifts slows all alike). No other rank differs half as much
    from the rest. And the time for which the others are in collectives longer than it grew by half of that lag. The
    best of `own_causes`, which are suspects of single ranks, becomes evidence if it is on that rank.
    """
    name = "straggler_rank"
    all_lags = lags(views)
    if len(all_lags) < 2 or not any((lag.talk.other or 0.0) > 0 for lag in all_lags):
        return RuledOut(name, "there are not two ranks with collectives")
    last = max(all_lags, key=lambda lag: lag.own.delta)
    peers = [lag for lag in all_lags if lag is not last]
    base = last.view.base_ns
    usual = float(np.median([lag.own.delta for lag in peers]))
    lag_ns = last.own.delta - max(usual, 0.0)
    apart = max(abs(lag.own.delta - usual) for lag in peers)
    if last.own.delta < _LEAST * base:
        return RuledOut(name, "no rank's own work takes longer")
    if lag_ns < _HALF * last.own.delta or apart >= _HALF * lag_ns:
        is_shared = lag_ns < _HALF * last.own.delta
        text = (
            "several ranks' own work takes longer"
            if is_shared
            else "the other ranks differ by as much among each other"
        )
        return RuledOut(name, text)
    ahead = _ahead(last, peers)
    # If ranks share cores, waits scatter; additional work of one rank is certain all the same.
    is_certain = ahead.is_real or _grown(last, peers) >= max(_HALF * lag_ns, _LEAST * base)
    if last.view.delta_ns < -last.view.least_ns or not is_certain or ahead.delta <= max(_HALF * lag_ns, _LEAST * base):
        return RuledOut(name, f"the others do not wait for {last.name.lower()} more than before")
    wait, grew = ahead.delta, min(lag.view.delta_ns for lag in all_lags)
    if last.view.tails is not None and grew < _MOST * lag_ns:
        text = "a rank is late in the profiled steps, but those of the whole run are not as much longer"
        return RuledOut(name, text, is_judged=False)
    shown = [evidence(f"{last.name}: own work per cycle", last.own, role="necessary", unit="ns")]
    shown += [
        evidence(f"{lag.name}: time in collectives, mostly waiting", lag.talk, role="necessary", unit="ns")
        for lag in peers
    ]
    shown.append(evidence(f"{last.name}: its own time in collectives", last.talk, unit="ns"))
    difference = f"difference between the others' time in collectives and that of {last.name.lower()}"
    shown.append(evidence(difference, ahead, role="necessary"))
    confidence = 0.7 + 0.1 * (len(all_lags) > 2) + 0.1 * (last.talk.delta < 0)
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
    explained = max(min(grew, lag_ns), 0.0)
    return last.view.suspect(
        name,
        f"{last.name} is late: its own work {moved(last.own, 'ns')} per cycle, and the others wait for it,"
        f" {units.duration(wait)} more per cycle than before.{why}",
        lag_ns,
        confidence,
        (*shown, *reasons),
        resource="rank",
        magnitude=last.own.ratio,
        explained_ns=explained,
        advice="look at this rank alone: its work, its data and its machine",
    )
