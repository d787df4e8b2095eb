"""When a rank was in which phase of a training step: reading data, backward pass, optimizer; all else is forward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.device_work import of_spans
from stepscope.core.intervals import locate, union
from stepscope.core.names import map_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.intervals import Intervals
    from stepscope.core.trace import Trace

FORWARD, BACKWARD, OPTIMIZER, DATA = "forward", "backward", "optimizer", "data loading"

#: Pauses between two functions of the same phase belong to it, if they are no longer.
_PAUSE_NS = 1_000_000
_RULES = {
    BACKWARD: re.compile(r"^autograd::engine::evaluate_function|^Torch-Compiled Autograd"),
    OPTIMIZER: re.compile(r"^Optimizer\.step#"),
}


def phase_intervals(trace: Trace, *, on_device: bool) -> dict[str, Intervals]:
    """When the rank read data (always on the host), and was in its backward pass and optimizer, where that is known.

    With `on_device` the phases are those of the device: work belongs to the phase in which it was queued. Units: ns.
    Source: the names that PyTorch gives to functions of its autograd engine and to Optimizer.step.
    """
    spans = trace.spans
    found = {DATA: _when(spans.filter(pl.col("category") == "dataloader"))}
    host = spans.filter(pl.col("category").is_in(("operator", "user_range")))
    parts = {name: host.filter(map_names(host["name"], _starts(rule), pl.Boolean())) for name, rule in _RULES.items()}
    if all(part.is_empty() for part in parts.values()):
        return found
    host_phases = {name: _joined(part) for name, part in parts.items()}
    if not on_device:
        return found | host_phases
    work = spans.filter((pl.col("category") == "kernel") & pl.col("launch_id").is_not_null())
    queued = of_spans(spans, work["launch_id"], "ts_ns").to_numpy()
    return found | {
        name: _joined(work.filter(pl.Series(locate(intervals, queued) >= 0))) for name, intervals in host_phases.items()
    }


def _starts(rule: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: rule.match(name) is not None


def _when(spans: pl.DataFrame) -> Intervals:
    starts = spans["ts_ns"].to_numpy()
    return union(starts, starts + spans["dur_ns"].to_numpy())


def _joined(spans: pl.DataFrame) -> Intervals:
    """When at least one of the spans was open, short pauses included."""
    starts, ends = _when(spans)
    apart = np.flatnonzero(starts[1:] - ends[:-1] > _PAUSE_NS)
    if not starts.size:
        return starts, ends
    return starts[np.concatenate(([0], apart + 1))], ends[np.concatenate((apart, [-1]))]
