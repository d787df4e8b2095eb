from __future__ import annotations

import polars as pl

from stepscope.comparison._allocations import held_by_tensors
from stepscope.core.schema import ALLOCATIONS, COUNTERS, DEVICES
from stepscope.core.trace import Meta, Trace

EVENTS = [(10, 0, 64, 64), (20, 1, 8, 8), (30, 0, -64, 0), (None, 0, 1, 1), (40, 0, 5, None), (50, 7, 5, 5)]


def trace_of(events):
    rows = {"ts_ns": pl.Int64, "device_id": pl.UInt32, "bytes": pl.Int64, "total_allocated_bytes": pl.Int64}
    devices = pl.DataFrame({"device_id": [0, 1], "type": ["cpu", "cuda"], "index": [None, 3]})
    allocations = ALLOCATIONS.conform(pl.DataFrame(events, schema=rows, orient="row"))
    return Trace(Meta(path="x", format="made"), {"allocations": allocations, "devices": DEVICES.conform(devices)})


def test_what_tensors_hold_is_a_resource_of_the_process_and_of_its_devices():
    found = held_by_tensors(trace_of(EVENTS))
    assert found.schema == COUNTERS.empty().schema
    assert found.select("ts_ns", "device", "metric", "unit", "value").rows() == [
        (10, "process", "process_mem_allocated", "bytes", 64.0),
        (20, "gpu3", "gpu_mem_allocated", "bytes", 8.0),
        (30, "process", "process_mem_allocated", "bytes", 0.0),
    ]


def test_a_recording_without_the_allocator_has_none():
    assert held_by_tensors(trace_of([])).is_empty()
