"""Observations by hand: a process with cycles of given lengths, and functions, parts and resources in them."""

from __future__ import annotations

import polars as pl

from stepscope.comparison.model import (
    FUNCTIONS,
    OBSERVED_COUNTERS,
    OBSERVED_CYCLES,
    PARTS,
    RESOURCES,
    WORKLOAD,
    Observation,
    Pair,
)
from stepscope.core.trace import Meta


def observation(
    durations,
    *,
    functions=(),
    parts=(),
    resources=(),
    rank=None,
    pid=None,
    phases=None,
    complete=None,
    anchor="step",
    origin=None,
    remarks=(),
):
    """A process with cycles of these durations (ns).

    Rows are (cycle, device, name, category, calls, total_ns, self_ns) for functions, (cycle, part, ns) for parts,
    (cycle, device, metric, name, unit, mu) for resources.
    """
    n = len(durations)
    starts = [sum(durations[:i]) for i in range(n)]
    cycles = pl.DataFrame(
        {
            "cycle": range(1, n + 1), "ts_ns": starts, "dur_ns": list(durations), "phase": phases or [None] * n,
            "is_complete": complete or [True] * n,
        },
        schema_overrides={"phase": pl.String},
    )  # fmt: skip
    of_functions = pl.DataFrame(
        list(functions),
        schema={"cycle": pl.Int64, "device": pl.String, "name": pl.String, "category": pl.String, "calls": pl.Int64,
                "total_ns": pl.Int64, "self_ns": pl.Int64},
        orient="row",
    )  # fmt: skip
    of_parts = pl.DataFrame(
        list(parts), schema={"cycle": pl.Int64, "part": pl.String, "total_ns": pl.Int64}, orient="row"
    )
    of_resources = pl.DataFrame(
        list(resources),
        schema={"cycle": pl.Int64, "device": pl.String, "metric": pl.String, "name": pl.String, "unit": pl.String,
                "mu": pl.Float64},
        orient="row",
    )  # fmt: skip
    return Observation(
        label="" if pid is None else f"pid {pid}",
        meta=Meta(path="made.json", format="made", rank=rank, origin_unix_ns=origin),
        pid=pid,
        anchor=anchor,
        source="annotation",
        cycles=OBSERVED_CYCLES.conform(cycles),
        functions=FUNCTIONS.conform(of_functions),
        parts=PARTS.conform(of_parts),
        resources=RESOURCES.conform(of_resources),
        counters=OBSERVED_COUNTERS.empty(),
        workload=WORKLOAD.empty(),
        remarks=tuple(remarks),
    )


def pair(base, other, label="p"):
    """A pair of one run each, or of the runs in lists."""
    runs = [tuple(side) if isinstance(side, (list, tuple)) else (side,) for side in (base, other)]
    return Pair(label, runs[0], runs[1], "only process")
