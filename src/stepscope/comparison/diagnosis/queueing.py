"""Requests that wait for their turn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stepscope.comparison.diagnosis.case import Judgement, Rule, Suspect, View
from stepscope.comparison.diagnosis.change import Change, evidence
from stepscope.comparison.diagnosis.sampled import at_queues
from stepscope.comparison.model import RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.model import Observation

#: Requests come more often if steps do so many times as often, and if chance makes this of it at most once in 700.
_MORE_OFTEN, _SIGMAS = 1.2, 3.0
#: The part of the time in which the job is busy must rise by this.
_BUSIER = 0.05
#: A job that waited for this part of its time, and now for no more than that: fewer standard deviations are enough.
_IDLE, _FULL, _SIGMAS_IF_FULL = 0.2, 0.05, 1.5
#: A thread is idle for this part of the time more than another one, which is busy for nearly all of it.
_UNEVEN, _NEARLY_ALL = 0.25, 0.9


def queueing(view: View) -> Judgement:
    """Requests wait for their turn: more of them come, or they all wait for one thread while others have none.

    Nothing records how long they wait. Necessary is one of two. Steps come 1.2 times as often, more than chance makes
    of requests that come independently of each other (the logarithm of their number scatters by the root of its
    inverse; less is enough if a job that waited for a fifth of its time never does any more), and the job is busy for 5
    points more of its time: so likely does a request that comes at any time find it busy. Or, of threads that take
    requests from queues, one is idle for a quarter of its time more than another, which the base's are not, and that
    one hardly ever is.
    """
    name = "queueing"
    waits = view.pair.waits
    if waits is None:
        return _shared_out_badly(view) or RuledOut(name, "the job does not wait for requests most of the time")
    base, other = waits
    every = f"a step comes every {units.duration(other.step_ns)} (was {units.duration(base.step_ns)})"
    often = base.step_ns / other.step_ns
    scatter = math.sqrt(1 / max(base.n_requests, 1) + 1 / max(other.n_requests, 1))
    # A job that never waits any more answers fewer requests than come: that it is busy says more than their number.
    is_full = base.waiting_ratio >= _IDLE and other.waiting_ratio <= _FULL
    if often < _MORE_OFTEN or math.log(often) < (_SIGMAS_IF_FULL if is_full else _SIGMAS) * scatter:
        return RuledOut(name, every)
    busy = Change(1 - base.waiting_ratio, 1 - other.waiting_ratio, is_real=True, unit="ratio")
    if busy.delta < _BUSIER:
        return RuledOut(name, f"{every}, but the job is busy {units.percent(busy.other)} of the time")
    rates = Change(1e9 / base.step_ns, 1e9 / other.step_ns, is_real=True, unit="1/s")
    return view.suspect(
        name,
        f"Requests come {units.number(round(often, 1))} times as often: {every}. The job is busy"
        f" {units.percent(busy.other)} of the time (was {units.percent(busy.base)}), and as many of the requests find"
        " it busy and wait for their turn.",
        0.0,
        0.6,
        [
            evidence("steps of requests", rates, role="necessary", unit="1/s"),
            evidence("part of the time in which the job is busy", busy, role="necessary", unit="ratio"),
        ],
        resource="requests",
        magnitude=often,
        advice="answer more requests at once (batching, more workers), or send some elsewhere; a log of requests would"
        " say how long they wait",
    )


def is_shared_out_badly(view: View) -> bool:
    """Whether threads that answer requests wait for some while another one always has one, other than in the base."""
    base, other = _idle(view.pair.base), _idle(view.pair.other)
    if base is None or other is None:
        return False
    return other[1] - other[0] >= max(base[1] - base[0], 0.0) + _UNEVEN and other[0] <= 1 - _NEARLY_ALL


def _idle(runs: Sequence[Observation]) -> tuple[float, float] | None:
    """The part of the time in which the least and the most idle of the threads that answer wait, over all repeats.

    None unless the job marks its steps in several such threads.
    """
    idle = [run.answers.idle_ratios for run in runs if run.answers is not None and run.answers.is_marked_there]
    if not idle or len(idle) < len(runs) or any(len(ratios) < 2 for ratios in idle):
        return None
    return sum(min(ratios) for ratios in idle) / len(idle), sum(max(ratios) for ratios in idle) / len(idle)


def _shared_out_badly(view: View) -> Suspect | None:
    """The judgement if requests wait for one thread while another waits for requests."""
    lost = at_queues(view)
    base, other = _idle(view.pair.base), _idle(view.pair.other)
    if not is_shared_out_badly(view) or not view.is_slower or lost < view.least_ns or base is None or other is None:
        return None
    most = Change(base[1], other[1], is_real=True, unit="ratio")
    busy = units.percent(1 - other[0])
    return view.suspect(
        "queueing",
        f"Requests are not shared out evenly: one thread that answers them waits for {units.percent(other[1])} of the"
        f" time (was {units.percent(base[1])}) while another is busy for {busy}, and requests wait for that one.",
        lost,
        0.8,
        [evidence("most that a thread which answers waits for requests", most, role="necessary", unit="ratio")],
        resource="requests",
        magnitude=None,
        advice="let all threads take requests from one queue, or give each request to the thread that has fewest",
    )


RULES = (Rule("queueing", queueing),)
