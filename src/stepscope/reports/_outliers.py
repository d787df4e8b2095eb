"""Steps that took far longer than the others."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from stepscope.core.units import duration
from stepscope.reports._summary import Cost
from stepscope.reports._words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.reports._summary import Scope

_SLOW = 1.3  # times the median
_LEAST_SHARE = 0.02  # of all steps' time: what lies below is noise


def outlier_costs(by_window: Mapping[str, NDArray[np.int64]], scope: Scope) -> list[Cost]:
    """One cost for all slow steps, what they took beyond the median; it says what grew in the worst of them.

    `by_window` divides each step's time. With fewer than 4 steps there is no telling which is unusual.
    """
    lengths = scope.highs - scope.lows
    if len(scope.numbers) < 4:
        return []
    median = statistics.median(lengths.tolist())
    if median <= 0:
        return []
    slow = lengths > _SLOW * median
    excess = float((lengths[slow] - median).sum())
    if excess < _LEAST_SHARE * scope.whole_ns or excess <= 0:
        return []
    worst = int(lengths.argmax())
    more = {name: int(values[worst]) - statistics.median(values.tolist()) for name, values in by_window.items()}
    grown = max(more, key=lambda name: more[name])
    detail = f"{duration(more[grown])} of the difference is {grown}"
    others = int(slow.sum()) - 1
    if others:
        detail += f"; {counted(others, 'other step')} took more than {_SLOW} × the median"
    if worst == 0:
        detail += "; it is the first one recorded: if that is warm-up, let the profiler's schedule skip it"
    times = f"{lengths[worst] / median:.1f} × the median"
    title = f"Step {scope.numbers[worst]} took {duration(float(lengths[worst]))}, {times}"
    return [Cost("outlier", title, excess, (detail,), "show steps")]
