"""Where each cycle's time went, each moment counted once: the parts of a cycle sum to it exactly.

The device comes first: as long as it works the host is not in the way. Then comes what the host did while the device
had nothing to do. Without device work the host is all there is, and what it exchanges with other ranks while it does
nothing else is exposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.common.device_work import device_work, occupied
from stepscope.analyses.steps.step_breakdown import divided
from stepscope.analyses.steps.steps import open_time
from stepscope.comparison.model import PARTS
from stepscope.core.collectives import is_communication
from stepscope.core.names import is_sync_call, map_names
from stepscope.core.schema import DEVICE_WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.intervals import Intervals
    from stepscope.core.trace import Trace

    Ints = NDArray[np.int64]

#: In this order: the first that holds at a moment counts. `PYTHON` is the rest.
COMPUTATION, COMMUNICATION, MEMCPY = "computation", "exposed communication", "exposed memcpy"
LOADING, SYNC, LAUNCH, OPERATORS, PYTHON = (
    "data loading", "synchronisation", "launch and runtime calls", "operators", "python and other",
)  # fmt: skip
#: The rest, where only the device was recorded; and where another program tells of device work only.
IDLE, OTHER = "idle", "other"


def parts_of(trace: Trace, cycles: pl.DataFrame, threads: pl.Series) -> pl.DataFrame:
    """PARTS of the cycles; `threads` are the tracks whose host work counts. Parts that are nowhere are left out."""
    lows = cycles["ts_ns"].to_numpy()
    highs = lows + cycles["dur_ns"].to_numpy()
    found = divided(_levels(trace, threads), lows, highs)
    on_host = trace.spans["track_id"].is_in(threads.implode()).any()
    found[PYTHON if on_host else IDLE] = found.pop("other")
    tables = [
        pl.DataFrame({"cycle": cycles["cycle"], "total_ns": total}).with_columns(part=pl.lit(name))
        for name, total in found.items()
        if total.any()
    ]
    return pl.concat([PARTS.conform(table) for table in tables]) if tables else PARTS.empty()


def _levels(trace: Trace, threads: pl.Series) -> list[tuple[str, Intervals]]:
    spans = trace.spans
    levels: list[tuple[str, Intervals]] = []
    on_device = spans["category"].is_in(DEVICE_WORK).any()
    if on_device:
        times = occupied(device_work(spans, trace.tracks, needed_by="compare", communication="any"))
        levels = [(COMPUTATION, times.computation), (COMMUNICATION, times.kernels), (MEMCPY, times.busy)]
    is_mine = spans["track_id"].is_in(threads.implode())
    category, names = spans["category"], spans["name"]
    calls = is_mine & category.is_in(("runtime", "driver"))
    waits = calls & _named(names, calls, is_sync_call)
    operators = is_mine & (category == "operator")
    ranges = category.is_in(("operator", "user_range"))
    talks = ranges & _named(names, ranges, is_communication)
    levels += [
        (LOADING, open_time(spans, is_mine & (category == "dataloader"))),
        (SYNC, open_time(spans, waits)),
        (LAUNCH, open_time(spans, calls)),
        (OPERATORS, open_time(spans, operators & ~talks)),
    ]
    if not on_device:
        levels.append((COMMUNICATION, open_time(spans, talks)))
    return levels


def _named(names: pl.Series, among: pl.Series, fits: Callable[[str], bool]) -> pl.Series:
    distinct = names.filter(among).unique()
    wanted = distinct.filter(map_names(distinct, fits, pl.Boolean()))
    return names.is_in(wanted.implode()) if wanted.len() else among & False
