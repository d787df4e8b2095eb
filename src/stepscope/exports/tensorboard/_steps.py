"""The plugin's steps: annotated on the host, prolonged to the end of the device work that they queued."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.exports.tensorboard._events import ANNOTATION, OPERATOR, PYTHON, STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.exports.tensorboard._events import Events
    from stepscope.exports.tensorboard._launches import Launches

    Ints = NDArray[np.int64]
    Times = NDArray[Any]

#: A last step that queued less than this part of the work of the one before was probably cut by the recorder's end.
_CUT = 0.8


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that are shown, in order; times in µs. The window of the recording's figures is [start[0], end[-1])."""

    start: Times
    end: Times
    names: list[str]


def find_steps(events: Events, launches: Launches) -> Steps:
    """The steps of a trace; one called "0" where none is annotated. There is always at least one.

    A step ends when the last device work ends that was queued by a call wholly inside it, and the next one begins
    then. Trailing steps that queued nothing are left out, so is the last one that queued less than 0.8 of the work of
    the one before. Annotations on the device's lane make further steps of the same names, as in the plugin.

    Units: µs.
    Source: the plugin.
    """
    low, high, names = _on_host(events)
    step_of = _steps_of_calls(events, launches, low, high)
    inside = np.flatnonzero(step_of >= 0)
    place, work = launches.work_of(inside)
    if not work.size:
        return Steps(low, high, names)
    begin, finish = events.ts[launches.work[work]], events.end[launches.work[work]]
    bounds = np.searchsorted(step_of[inside][place], np.arange(low.size + 1)).tolist()
    previous = low[0]
    if bounds[1]:
        # Work queued before the first step delays it.
        early = np.ones(launches.work.size, bool)
        early[work] = False
        done = events.end[launches.work[early]]
        previous = done[done < begin[: bounds[1]].min()].max(initial=previous)
    start, end = low.copy(), high.copy()
    for i, (first, stop) in enumerate(pairwise(bounds)):
        start[i] = max(previous, low[i])
        end[i] = previous = finish[first:stop].max(initial=max(start[i], high[i]))
    shown = _complete(np.diff(bounds))
    return Steps(start[:shown], end[:shown], names[:shown])


def _on_host(events: Events) -> tuple[Times, Times, list[str]]:
    """Starts, ends and names of the steps as annotated."""
    rows = events.rows(STEP)
    if rows.size:
        return events.ts[rows], events.end[rows], [_number(events.names[i]) for i in events.name[rows].tolist()]
    # The fork for MLU counts user's ranges as work of the host, too.
    host = events.rows(OPERATOR, PYTHON, *((ANNOTATION,) if events.dialect.is_mlu else ()))
    # Without host work the plugin's step lasts from its greatest to its least integer, and all its figures are void:
    # here it is the whole recording.
    host = host if host.size else events.order
    if not host.size:
        nothing = np.zeros(1, events.ts.dtype)
        return nothing, nothing, ["0"]
    return events.ts[host[:1]], events.end[host].max(keepdims=True), ["0"]


def _number(name: str) -> str:
    # Where it is no number, the plugin fails.
    text = name.split("#")[1]
    return str(int(text)) if text.strip().isdecimal() else text


def _steps_of_calls(events: Events, launches: Launches, low: Times, high: Times) -> Ints:
    """Step of each call, −1 for calls that lie in none wholly. A step that a call starts after is not asked again."""
    begin, finish = events.ts[launches.calls], events.end[launches.calls]
    reach = np.maximum.accumulate(high)
    after, at = (np.searchsorted(reach, begin, side=side) for side in ("right", "left"))
    step = np.maximum.accumulate(np.where(begin == finish, at, after))  # a call without length may lie on the end
    place = np.minimum(step, low.size - 1)
    inside = (step < low.size) & (begin >= low[place]) & (finish <= high[place])
    return np.where(inside, step, -1)


def _complete(work: Ints) -> int:
    """How many of the first steps to show, given how much work each has queued; some has any."""
    last = int(np.flatnonzero(work)[-1])
    return last if last and work[last - 1] * _CUT > work[last] else last + 1
