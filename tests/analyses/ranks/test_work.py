from __future__ import annotations

import polars as pl
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.ranks.work import MOST_NAMES, resources_of, work_of
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace


def trace(*rows, **tables: pl.DataFrame) -> Trace:
    return Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans_of(*rows)} | tables)


def test_kernels_that_compute_are_summed_by_name():
    found = work_of(
        trace(kernel(STREAM_7, 0, 10), kernel(STREAM_7, 20, 30), kernel(STREAM_7, 60, 5, "ncclDevKernel_AllReduce")),
        on_device=True,
    )
    assert found.rows() == [("gemm", 2, 40)]


def test_operators_count_without_those_inside_and_without_exchanges():
    rows = [
        (HOST, 0, 100, "aten::linear", "operator"),
        (HOST, 10, 50, "aten::mm", "operator"),
        (HOST, 200, 40, "gloo:all_reduce", "operator"),
        (HOST, 300, 9, "record_param_comms", "operator"),
    ]
    spans = spans_of(*rows, parent_id=pl.Series([None, 0, None, None], dtype=pl.UInt32))
    found = work_of(Trace(Meta("x", "kineto"), {"tracks": TRACKS_5, "spans": spans}), on_device=False)
    assert sorted(found.rows()) == [("aten::linear", 1, 50), ("aten::mm", 1, 50)]


def test_names_beyond_the_most_are_one_row():
    found = work_of(trace(*[kernel(STREAM_7, 10 * i, 5, f"k{i}") for i in range(MOST_NAMES + 9)]), on_device=True)
    assert found.height == MOST_NAMES + 1
    assert found.row(-1) == (None, 9, 45)


def test_a_trace_without_operators_computed_nothing():
    assert work_of(trace((HOST, 0, 5, "gloo:barrier", "operator")), on_device=False).is_empty()


def test_resources_are_means_within_the_window_of_this_process_and_the_machine():
    samples = COUNTERS.conform(pl.DataFrame({
        "ts_ns": [0, 10, 20, 99, 10],
        "device": ["pid:7", "pid:7", "host", "host", "pid:8"],
        "pid": [7, 7, None, None, 8],
        "metric": ["rss", "rss", "load", "load", "rss"],
        "unit": ["bytes", "bytes", "%", "%", "bytes"],
        "value": [1.0, 3.0, 5.0, 100.0, 1000.0],
    }))  # fmt: skip
    tracks = TRACKS_5.with_columns(pid=pl.lit(7, pl.Int64))
    found = resources_of(trace((HOST, 0, 5, "x", "operator"), counters=samples, tracks=tracks), (0, 50))
    assert found.rows() == [("host", "load", "%", 5.0), ("process", "rss", "bytes", 2.0)]
