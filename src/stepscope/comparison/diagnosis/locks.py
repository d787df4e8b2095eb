"""Threads of the job that wait for each other's lock, seen at the line that takes it."""

from __future__ import annotations

import polars as pl

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, View, not_slower
from stepscope.comparison.diagnosis.change import Change, evidence, span
from stepscope.comparison.diagnosis.sampled import grown, is_sampled
from stepscope.comparison.model import RuledOut

#: How the recorder of stacks names the wait at a line that takes a lock.
_WAITS = "waits: "


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
    waits = grown(view).filter(pl.col("function").str.starts_with(_WAITS))
    if waits.is_empty():
        return RuledOut(name, "the main thread waits for no lock longer than in the base")
    line = str(waits["function"][0]).removeprefix(_WAITS)
    change = Change(float(waits["low"].sum()), float(waits["high"].sum()), is_real=True, unit="ns")
    return view.suspect(
        name,
        f"The main thread waits for a lock {span(change.base, change.other, 'ns')} per cycle: {line}.",
        change.delta,
        0.9,
        [
            evidence(
                f"time of the main thread at: {function}",
                Change(low, high, is_real=True, unit="ns"),
                role="necessary",
                device="host",
                name=function,
                unit="ns",
            )
            for function, low, high in waits.rows()
        ],
        resource="lock",
        device="host",
        magnitude=change.ratio,
        advice="see which thread holds it (stepscope show python-stacks --idle): let it copy under the lock, and save,"
        " send or sleep without it",
    )


RULES = (Rule("lock_contention", lock_contention),)
