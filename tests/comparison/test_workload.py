from __future__ import annotations

import numpy as np
import polars as pl
from cycle_traces import GPU, MAIN, STREAM, TRACKS_4, spans_of, trace_of

from stepscope.analyses.cycles.functions import functions_of, own_of
from stepscope.comparison._workload import workload_of
from stepscope.comparison.model import WORKLOAD
from stepscope.core.schema import KERNELS, OPS

SPANS = spans_of(
    (MAIN, 0, 10, "aten::mm", "operator"), (MAIN, 20, 10, "aten::mm", "operator"),
    (MAIN, 100, 30, "aten::mm", "operator"), (MAIN, 110, 10, "aten::copy_", "operator"),
    (MAIN, 200, 90, "aten::mm", "operator"), (STREAM, 40, 8, "gemm", "kernel"), (STREAM, 50, 4, "copy", "memcpy"),
)  # fmt: skip
SHAPES = {"span_id": [0, 1, 2], "input_shapes": ["[[2,3]]", "[[2,3]]", "[[4,3]]"], "input_types": ['["float"]'] * 3}
OPS_4 = OPS.conform(pl.DataFrame(SHAPES))
AXES = {"grid_x": 8, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 2, "block_z": 1}
GRIDS = KERNELS.conform(pl.DataFrame({"span_id": [5], **{axis: [n] for axis, n in AXES.items()}}))


def workload(*complete):
    lows = np.array([0, 100, 200])
    own = own_of(SPANS, TRACKS_4, GPU)
    functions = functions_of(SPANS, own, lows, lows + 100)
    return workload_of(trace_of(SPANS, ops=OPS_4, kernels=GRIDS), functions, own, np.array(complete))


def test_sizes_of_operators_and_kernels_per_complete_cycle():
    found = workload(True, True, False)
    assert found.schema == WORKLOAD.empty().schema
    assert found.rows() == [
        ("host", "aten::mm", "[[4,3]]", '["float"]', 0.5, 15.0, 10.0),
        ("host", "aten::mm", "[[2,3]]", '["float"]', 1.0, 10.0, 10.0),
        ("host", "aten::copy_", None, None, 0.5, 5.0, 5.0),
        ("gpu3", "gemm", "grid 8×1×1, block 128×2×1", None, 0.5, 4.0, None),
    ]


def test_without_a_complete_cycle_nothing_is_known():
    assert workload(False, False, False).is_empty()
