"""A recording, or another program's results of one, as observations: what each process did, cycle by cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.comparison._observe_results import observe_results
from stepscope.comparison._observe_trace import observe_trace
from stepscope.core.trace import Results, Trace

if TYPE_CHECKING:
    from stepscope.comparison.model import Observation

__all__ = ["observe"]


def observe(trace: Trace, *, anchor: str = "auto") -> tuple[Observation, ...]:
    """Each process of the source, by cycle: its functions, parts, resources and workload.

    `anchor` names the function, range or kernel that marks cycles, as that of the other run, so that both are cut into
    the same kind; where it marks none here, what marks them best is taken, and the notes say so. Results have
    their own.

    Nothing of the trace is kept: it may be dropped afterwards. Raises MissingTable (no events, no clock, no cycles in
    the results), StepscopeError (nothing comes again: there are no cycles).
    """
    return observe_results(trace) if isinstance(trace, Results) else observe_trace(trace, anchor)
