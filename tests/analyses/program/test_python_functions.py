from __future__ import annotations

import polars as pl

from stepscope.analyses import find
from stepscope.core.schema import STACK_SAMPLES, STACKS
from stepscope.core.trace import Meta, Trace


def test_functions_of_a_trace_are_told_without_process_or_thread():
    row = {"ts_ns": 0, "dur_ns": 5, "pid": 1, "tid": 1, "stack_id": 0, "n_samples": 2, "on_gil": False}
    tables = {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame([row])),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": [0], "frames": [["a (x.py:1)", "b (x.py:2)"]]})),
    }
    found = find("python-functions")(Trace(Meta("x", "counters"), tables))
    assert found.rows() == [(None, "b (x.py)", 1.0, 1.0, 2, 2), (None, "a (x.py)", 0.0, 1.0, 0, 2)]
