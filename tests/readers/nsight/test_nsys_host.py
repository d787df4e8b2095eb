from __future__ import annotations

import polars as pl
import pytest
from nsys_files import OTHER_THREAD, THREAD, call, kernel, nvtx, read

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.nsight.nsys_host import kind_of_range


def codes(trace):
    return dict(trace.issues.select("code", "count").rows())


def test_of_a_call_recorded_twice_the_outer_row_is_kept(tmp_path):
    trace = read(tmp_path, [kernel(200, 260)], [call(100, 120, kind=67), call(101, 119), call(130, 131, correlation=2)])
    calls = trace.spans.filter(pl.col("category") == "runtime")
    assert calls["ts_ns"].to_list() == [0, 30]
    assert codes(trace) == {"double_calls": 1}


def test_driver_calls_inside_runtime_calls_stay(tmp_path):
    trace = read(tmp_path, [kernel(200, 260)], [call(100, 120), call(102, 110, kind=1)])
    assert trace.spans.select("category", "parent_id", "launch_id").rows() == [
        ("kernel", None, 1), ("runtime", None, None), ("driver", 1, None),
    ]  # fmt: skip


def test_ranges_of_threads_nest_and_those_that_cross_threads_lie_apart(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        [call(110, 120)],
        [nvtx(100, 150, "inner"), nvtx(90, 300, 3), nvtx(95, 400, "across", kind=60), nvtx(99, None, "mark", kind=34)],
    )
    rows = trace.spans.join(trace.tracks, on="track_id").select("name", "kind", "parent_id").rows()
    assert rows == [
        ("void gemm<float>(int)", "stream", None),
        ("layer 1", "thread", None),
        ("inner", "thread", 1),
        ("cudaLaunchKernel", "thread", 2),
        ("across", "async", None),
    ]
    assert codes(trace) == {"instants_dropped": 1, "start_end_ranges": 1}


def test_a_range_whose_id_of_a_text_cannot_be_has_no_name(tmp_path):
    ranges = [nvtx(100, 150, ABSENT), nvtx(160, 190, "inline"), nvtx(200, 210, 3)]
    trace = read(tmp_path, [kernel(200, 260)], ranges=ranges)
    names = trace.spans.filter(pl.col("category") == "user_range")["name"].to_list()
    assert names == ["", "inline", "layer 1"]


def test_open_ranges_last_until_the_recording_ends(tmp_path):
    ends = (("stopTime",), [(1000,)])
    trace = read(tmp_path, [kernel(200, 260)], ranges=[nvtx(100, None, "open")], ANALYSIS_DETAILS=ends)
    assert trace.spans.filter(pl.col("name") == "open")["dur_ns"].to_list() == [900]
    assert codes(trace)["open_ranges"] == 1


def test_calls_of_libraries_and_the_system_are_there(tmp_path):
    columns = ("start", "end", "globalTid", "nameId")
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        OSRT_API=(columns, [(100, 150, THREAD, 5)]),
        CUBLAS_EVENTS=(columns, [(110, 120, THREAD, 6)]),
        PROFILER_OVERHEAD=(columns, [(300, None, OTHER_THREAD, 99)]),
    )
    rows = trace.spans.filter(pl.col("category") != "kernel").select("name", "category", "recorded_category").rows()
    assert sorted(rows) == [("?", "overhead", "overhead"), ("copy", "user_range", "cublas"), ("poll", "other", "osrt")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("forward", ("user_range", "forward", None, ABSENT)),
        ("aten::view", ("operator", "aten::view", None, ABSENT)),
        ("aten::view, op_id = 314290", ("operator", "aten::view", None, ABSENT)),
        ("aten::mm, seq = 3, op_id = 7, sizes = [[2, 3], []]", ("operator", "aten::mm", "[[2,3],[]]", 3)),
        ("AddmmBackward0, seq = 5", ("operator", "AddmmBackward0", None, 5)),
        ("a, b = c", ("user_range", "a, b = c", None, ABSENT)),
        ("ProfilerStep#7", ("step", "ProfilerStep#7", None, ABSENT)),
    ],
)
def test_what_a_range_is(text, kind):
    assert kind_of_range(text) == kind
