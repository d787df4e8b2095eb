"""What was worked on: the sizes and types that operators and kernels were given, and how often in a cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.model import WORKLOAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.analyses.cycles.functions import Functions, Own
    from stepscope.core.trace import Trace

_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def workload_of(trace: Trace, functions: Functions, own: Own, is_complete: NDArray[np.bool_]) -> pl.DataFrame:
    """WORKLOAD of the complete cycles, longest first; `is_complete` is a row per cycle."""
    n_cycles = int(is_complete.sum())
    of_event = functions.frame["row"].to_numpy()[functions.group]
    kept = is_complete[of_event]
    rows, groups = functions.events[kept], functions.group[kept]
    if n_cycles == 0:
        return WORKLOAD.empty()
    events = pl.DataFrame(
        {
            "span_id": rows.astype(np.uint32),
            "device": functions.frame["device"].gather(groups),
            "name": functions.frame["name"].gather(groups),
            "category": trace.spans["category"].gather(rows),
            "dur_ns": trace.spans["dur_ns"].gather(rows),
            "self_ns": own.self_ns[rows],
        }
    )
    sums = {
        "calls_per_cycle": pl.len() / n_cycles,
        "total_ns_per_cycle": pl.col("dur_ns").sum() / n_cycles,
        "self_ns_per_cycle": pl.col("self_ns").sum() / n_cycles,
    }
    sizes = trace.ops.select("span_id", "input_shapes", "input_types")
    operators = events.filter(pl.col("category") == "operator").join(sizes, on="span_id", how="left")
    operators = operators.group_by("device", "name", shapes="input_shapes", types="input_types").agg(**sums)
    launches = trace.kernels.select("span_id", *_AXES)
    kernels = events.filter(pl.col("category") == "kernel").join(launches, on="span_id", how="left")
    kernels = kernels.group_by("device", "name", *_AXES).agg(**sums)
    grid = pl.format("grid {}×{}×{}, block {}×{}×{}", *_AXES)
    kernels = kernels.with_columns(shapes=grid, self_ns_per_cycle=None)
    both = pl.concat([WORKLOAD.conform(operators), WORKLOAD.conform(kernels)])
    text = pl.col("device", "name", "shapes", "types").cast(pl.String)
    return both.sort(-pl.col("total_ns_per_cycle"), text, nulls_last=True)
