from __future__ import annotations

import polars as pl

from stepscope.comparison._observed_functions import functions_seen
from stepscope.core.schema import STACK_SAMPLES, STACKS
from stepscope.core.trace import Meta, Trace


def trace() -> Trace:
    rows = [
        {"ts_ns": 0, "dur_ns": 90, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 9, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 7, "stack_id": 1, "n_samples": 3, "on_gil": False},
        {"ts_ns": 120, "dur_ns": 10, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 1, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 8, "stack_id": 0, "n_samples": 3, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 9, "tid": 9, "stack_id": 0, "n_samples": 3, "on_gil": False},
        {"ts_ns": 90, "dur_ns": 30, "pid": 7, "tid": 7, "stack_id": 0, "n_samples": 3, "on_gil": True},
    ]
    frames = [["main (t.py:1)", "load (t.py:2)"], ["main (t.py:1)"]]
    tables = {
        "stack_samples": STACK_SAMPLES.conform(pl.DataFrame(rows)),
        "stacks": STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": frames})),
    }
    return Trace(Meta("x", "kineto"), tables)


def test_the_main_threads_time_from_the_first_cycle_on():
    found = functions_seen(trace(), 7, 50)
    assert found.rows() == [("main (t.py)", 0.75, 4), ("load (t.py)", 0.25, 4)]


def test_none_where_the_process_was_not_looked_at():
    assert functions_seen(trace(), 8, 0) is None
    assert functions_seen(trace(), None, 0) is None
    assert functions_seen(Trace(Meta("x", "kineto"), {}), 7, 0) is None
