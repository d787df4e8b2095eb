"""A cause that only several processes together show: one rank is late and the others wait for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.compare.model import Cause, RuledOut
from stepscope.diagnose._case import View
from stepscope.diagnose._change import Change
from stepscope.diagnose._rule import Suspect, clipped
from stepscope.diagnose._words import evidence, moved

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Lag", "lags", "straggler"]

_TALK = ("exposed communication", "communication")
#: A rank's own work must grow by this share of a cycle: ranks that share cores differ by some per cent.
_LEAST = 0.05


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
        talk = view.part(*_TALK)
        if not view.is_alike or not talk.is_known or not view.step.is_known:
            continue
        ends = [(step or 0.0) - (part or 0.0) for step, part in ((view.step.base, talk.base), (view.step.other, talk.other))]
        own = Change(ends[0], ends[1], _own_is_real(view), "ns")
        found.append(Lag(view, own, talk))
    return found


def _own_is_real(view: View) -> bool:
    """Whether any part that is not exchange grew."""
    return any(change.rose() for name, change in view.parts.items() if name not in _TALK)


def straggler(views: Sequence[View], own_causes: Sequence[Suspect]) -> Suspect | RuledOut:
    """One rank's own work ends late and the others wait for it in exchanges for about as long.

    Necessary: its own work (a cycle less its exchanges) grew by 5 % of a cycle, that of every other rank by less than
    half as much, and the exchanges of the others by half of what it grew, of its own by less than half of theirs.
    Waits that are equal on all ranks are no straggler's. `own_causes` are those found on that rank by itself; the best
    becomes evidence.
    """
    name = "straggler_rank"
    found = lags(views)
    if len(found) < 2 or not any((lag.talk.other or 0.0) > 0 for lag in found):
        return RuledOut(name, "there are not two ranks that exchange data")
    last = max(found, key=lambda lag: lag.own.delta)
    others = [lag for lag in found if lag is not last]
    base = last.view.base_ns
    if last.own.delta < _LEAST * base or not last.own.is_real:
        return RuledOut(name, "no rank's own work takes longer")
    if max(lag.own.delta for lag in others) >= 0.5 * last.own.delta:
        return RuledOut(name, "several ranks' own work takes longer")
    wait = sorted(lag.talk.delta for lag in others)[len(others) // 2]
    grew = min(lag.view.delta_ns for lag in found)
    if wait < 0.5 * min(last.own.delta, max(grew, 0.0)) or wait <= 0 or last.talk.delta > 0.5 * wait:
        return RuledOut(name, f"the others do not wait for {last.name.lower()}")
    if not any(lag.talk.rose() for lag in others) and not last.talk.fell():
        return RuledOut(name, f"waits of the others for {last.name.lower()} are within what ranks differ by")
    shown = [evidence(f"{last.name}: own work per cycle", last.own, role="necessary", unit="ns")]
    shown += [evidence(f"{lag.name}: time in exchanges, mostly waiting", lag.talk, role="necessary", unit="ns") for lag in others]
    shown.append(evidence(f"{last.name}: its own time in exchanges", last.talk, unit="ns"))
    confidence = 0.7 + 0.1 * (len(found) > 2) + 0.1 * (last.talk.delta < 0)
    why, reasons = "", ()
    mine = [s for s in own_causes if s.cause.process == last.view.pair.label]
    if mine:
        best = max(mine, key=lambda s: s.affected_ns * s.cause.confidence)
        why = f" {best.cause.statement}"
        reasons = (evidence(f"{best.cause.category}: {best.cause.statement}"), *(replace(e, role="supporting") for e in best.cause.evidence))
        confidence += 0.07
    explained = max(min(grew, last.own.delta), 0.0)
    cause = Cause(
        name,
        f"{last.name} is late: its own work {moved(last.own, 'ns')} per cycle, and the others wait for it:"
        f" their exchanges take {units.duration(wait)} longer, its own {units.duration(last.talk.delta)}.{why}",
        "rank", None, last.view.pair.label, rank_of(last.view), last.own.ratio, explained, clipped(confidence),
        (*shown, *reasons), (), "look at this rank alone: its work, its data and its machine",
    )  # fmt: skip
    return Suspect(cause, last.own.delta)
