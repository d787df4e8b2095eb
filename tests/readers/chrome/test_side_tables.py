from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from chrome_traces import call, column, kernel, op, read, rows, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.chrome import side_tables
from stepscope.readers.chrome.side_tables import of_each_span, stacks_from_texts
from stepscope.readers.common.columns import ABSENT, columns_of, nullable, text_column
from stepscope.readers.common.span_builder import Sorted


def copy(name, ts, *, cat="gpu_memcpy", **args):
    return x(name, ts, 1, cat, pid=0, tid=7, device=0, stream=7, **args)


def test_kernels_have_their_launch_configuration():
    trace = read([
        kernel("gemm", 0, 1, 1, grid=[8, 2, 1], block=[128, 1, 1], registers_per_thread=64, shared_memory=1024,
        blocks_per_SM=0.5, warps_per_SM=2,
               **{"est. achieved occupancy %": 25}),
        kernel("plain", 2, 1, 2),
    ])  # fmt: skip
    assert trace.kernels.drop("tensor_core").rows() == [
        (0, 8, 2, 1, 128, 1, 1, 64, 1024, 0.5, 2.0, 0.25, None, None, None),
        (1, *(None,) * 14),
    ]


def test_kernels_of_an_mlu_have_their_kind_and_task_dimensions():
    mlu = {"kernel type": "UNION1", "dimx": 16, "dimy": 4, "dimz": 1}
    trace = read([
        kernel("a", 0, 1, 1, **mlu),
        kernel("b", 2, 1, 2, **mlu, tasktopo=7, tasktopo_node=3),
        kernel("plain", 4, 1, 3),
        x("Memcpy", 6, 1, "mlu_memcpy", pid=0, tid=7, device=0, stream=7, **{"kernel type": "none"}),
    ])  # fmt: skip
    assert rows(trace.kernels, "kernel_type", "grid_x", "grid_y", "grid_z", "graph_id", "graph_node_id") == [
        ("UNION1", 16, 4, 1, None, None), ("UNION1", 16, 4, 1, 7, 3), (None,) * 6,
    ]  # fmt: skip


def test_an_mlu_launch_that_makes_no_sense_is_unknown():
    trace = read([kernel("a", 0, 1, 1, **{"kernel type": 5, "dimx": "x", "tasktopo": "y"}), kernel("b", 2, 1, 2)])
    assert rows(trace.kernels, "kernel_type", "grid_x", "graph_id") == [(None, None, None)] * 2


def test_waits_for_events_name_the_call_that_recorded_the_event():
    waiting = {"cat": "cuda_sync", "pid": 0, "tid": 20, "device": 0, "stream": 20}
    trace = read([
        kernel("gemm", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 5),
        x("Stream Wait Event", 4, 1, **waiting, wait_on_stream=7, wait_on_cuda_event_record_corr_id=5),
        x("Stream Wait Event", 6, 1, **waiting, wait_on_stream=7, wait_on_cuda_event_record_corr_id=-1),
        x("Stream Wait Event", 8, 1, **waiting, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1),
    ])  # fmt: skip
    name = trace.spans["name"].cast(pl.String).to_list()
    rows = [(name[a], stream, None if b is None else name[b]) for a, stream, b in trace.table("event_waits").rows()]
    assert rows == [("Stream Wait Event", 7, "cudaEventRecord"), ("Stream Wait Event", 7, None)]


def test_python_calls_keep_the_recorders_ids():
    trace = read([
        x("main.py(1): f", 0, 9, "python_function", Python_id=1, Python_parent_id=None),
        x("nn.Module: Linear_0", 1, 5, "python_function", Python_id=2, Python_parent_id=1, Python_module_id=4),
    ])  # fmt: skip
    assert trace.frames.rows() == [(0, 1, None, None), (1, 2, 1, 4)]


@pytest.mark.parametrize(
    ("grid", "kept"),
    [
        ([4], (4, 1, 1)),
        ([4, 2], (4, 2, 1)),
        ([1, 2, 3, 4], (1, 2, 3)),
        ([], (None,) * 3),
        ("x", (None,) * 3),
        ([1, "2", 3], (None,) * 3),
        ([-1, 1, 1], (None,) * 3),
    ],
)
def test_grids_of_other_shapes(grid, kept):
    assert rows(read([kernel("k", 0, 1, 1, grid=grid)]).kernels, "grid_x", "grid_y", "grid_z") == [kept]


def test_names_tell_tensor_core_kernels():
    trace = read([kernel("ampere_fp16_s16816gemm_fp16_128x128", 0, 1, 1), kernel("elementwise_kernel", 2, 1, 2)])
    assert column(trace.kernels, "tensor_core") == [True, False]


def test_copies_and_fills_are_transfers():
    trace = read([
        copy("Memcpy HtoD (Pageable -> Device)", 0, bytes=4096, **{"memory bandwidth (GB/s)": 1.5}),
        copy("Memcpy DtoH (Device -> Pinned)", 2, bytes="8192", **{"memory bandwidth (GB/s)": "N/A"}),
        copy("Memset (Device)", 4, cat="gpu_memset", bytes=16),
        copy("CopyDeviceToDevice", 6),
    ])  # fmt: skip
    assert rows(trace.transfers, "bytes", "kind", "src", "dst", "recorded_bytes_per_s") == [
        (4096, "HtoD", "Pageable", "Device", 1.5e9), (8192, "DtoH", "Device", "Pinned", None),
        (16, "memset", None, None, None),
        (None, "DtoD", None, None, None),
    ]  # fmt: skip


def test_copies_on_the_host_are_no_transfers():
    assert read([x("memcpy", 0, 1, "memcpy", bytes=4)]).transfers.is_empty()


def test_collectives_come_from_operators_and_kernels():
    said = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Out msg nelems": 1024,
        "Group size": 8,
        "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Seq": 12,
        "Process Group Description": "mesh_dp", "Src Rank": 1, "Dst Rank": 2,
    }  # fmt: skip
    trace = read([
        op("record_param_comms", 0, 5, **said), op("aten::mm", 6, 1), call("cudaLaunchKernel", 1, 1, 4),
        kernel("ncclDevKernel_AllReduce", 10, 5, 4, **{"Collective name": "allgather", "In msg nelems": "7"}),
    ])  # fmt: skip
    assert trace.collectives.rows() == [
        (0, "allreduce", "Float", 1024, 1024, "0", 8, "[0, 1, 2, 3, 4, 5, 6, 7]", "mesh_dp", 1, 2, 12),
        (3, "allgather", None, 7, *(None,) * 8),
    ]


@pytest.mark.parametrize(
    ("values", "dtype", "kept"),
    [
        (np.array([1, ABSENT, 3]), pl.Int64(), [1, None, 3]),
        (np.array([1, 2]), pl.Int32(), [1, 2]),
        (np.array([2**40, -1]), pl.Int32(), [-(2**31), -1]),
        (np.array([1.5, np.nan]), pl.Float64(), [1.5, None]),
        (np.array([], np.int64), pl.Int64(), []),
    ],
)
def test_absent_is_null_and_what_does_not_fit_is_no_number(values, dtype, kept):
    series = nullable(values, dtype)
    assert series.to_list() == kept
    assert series.dtype == dtype


def test_another_value_may_stand_for_absent():
    assert nullable(np.array([0, 5], np.uint64), pl.UInt64(), 0).to_list() == [None, 5]


def test_only_texts_in_use_become_categories():
    column = text_column(np.array([2, 0, 2]), ["a", "unused", "", None])
    assert column.to_list() == [None, "a", None]


def test_numbers_of_counters_that_are_none_are_null():
    trace = read([op("a", 0, 1), {"ph": "C", "name": "use", "ts": 1, "args": {"x": 10**400, "y": 2}}])
    assert rows(trace.counters, "metric", "value") == [("use x", None), ("use y", 2.0)]


def test_kernels_keep_what_the_recorder_estimated_without_a_launch_configuration():
    trace = read([kernel("a", 0, 1, 1, blocks_per_SM=0.5), kernel("b", 2, 1, 2, **{"est. achieved occupancy %": 25})])
    assert rows(trace.kernels, "blocks_per_sm", "est_occupancy_ratio") == [(0.5, None), (None, 0.25)]


def frame(name, ts, dur, **more):
    return x(name, ts, dur, "python_function", **more)


def stacks(trace) -> dict[str, list[str] | None]:
    """Frames for each operator's name."""
    frames = dict(rows(trace.stacks, "stack_id", "frames"))
    names = column(trace.spans, "name")
    return {names[span]: frames.get(stack) for span, stack in rows(trace.ops, "span_id", "stack_id")}


def test_texts_are_split_into_frames_outermost_first_and_shared():
    frame, stack = stacks_from_texts(["", "b.py(2): g;a.py(1): f", " c ; ;"], np.array([1, 0, 2, 1], np.uint32))
    assert frame["frames"].to_list() == [["a.py(1): f", "b.py(2): g"], ["c"]]
    assert frame["text"].to_list() == ["b.py(2): g;a.py(1): f", " c ; ;"]
    assert stack.tolist() == [0, -1, 1, 0]


def test_no_texts_are_no_stacks():
    frame, stack = stacks_from_texts([], np.array([], np.uint32))
    assert frame.is_empty()
    assert stack.tolist() == []


def test_operators_have_the_frames_around_them():
    trace = read([
        frame("main", 0, 100), frame("step", 1, 50), frame("nn.Module: Linear_0", 2, 40), op("aten::linear", 3, 30),
        op("aten::mm", 4, 20),
        frame("hook", 5, 2), op("inside", 5.5, 1), frame("step", 60, 30), op("aten::add", 61, 3),
        op("outside", 200, 1), op("elsewhere", 3, 1, tid=2),
    ])  # fmt: skip
    linear = ["main", "step", "nn.Module: Linear_0"]
    assert stacks(trace) == {
        "aten::linear": linear, "aten::mm": linear, "inside": [*linear, "hook"], "aten::add": ["main", "step"],
        "outside": None, "elsewhere": None,
    }  # fmt: skip
    assert trace.stacks.height == 3  # equal stacks are one


def test_equal_stacks_at_different_times_are_one():
    trace = read(
        [e for i in range(5) for e in (frame("f", 10 * i, 9), frame("g", 10 * i + 1, 5), op("a", 10 * i + 2, 1))]
    )
    assert column(trace.stacks, "frames") == [["f", "g"]]
    assert column(trace.ops, "stack_id") == [0] * 5


def test_frames_without_operators_make_no_stacks():
    assert read([frame("f", 0, 9)]).stacks.is_empty()
    assert read([frame("f", 0, 9), op("a", 20, 1)]).stacks.is_empty()


def test_recorded_texts_prevail_over_frames():
    trace = read([frame("f", 0, 9), op("a", 1, 1, Call_stack="x;y"), op("b", 3, 1)])
    assert stacks(trace) == {"a": ["y", "x"], "b": None}


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("fgo"), st.integers(0, 30), st.integers(1, 12)), max_size=25))
def test_stacks_equal_those_of_a_walk_up_the_parents(found):
    trace = read(
        [
            (op if kind == "o" else frame)(f"{kind}{i % 4}" if kind != "o" else f"o{i}", ts, dur)
            for i, (kind, ts, dur) in enumerate(found)
        ]
    )
    spans = rows(trace.spans, "name", "category", "parent_id")
    expected = {}
    for name, category, parent in spans:
        if category != "operator":
            continue
        frames, at = [], parent
        while at is not None:
            if spans[at][1] == "python":
                frames.append(spans[at][0])
            at = spans[at][2]
        expected[name] = frames[::-1] or None
    assert stacks(trace) == expected


def test_each_span_has_its_value_or_none(monkeypatch):
    monkeypatch.setattr(side_tables, "_PIECE", 2)
    position = np.array([2, -1, 0, 3], np.int32)  # the second of the recorded ones was dropped
    none = np.empty(0, np.uint32)
    spans = Sorted(np.arange(4), np.zeros(4, np.int64), none, none, none, position, 0)
    cols = columns_of({"row": np.uint32, "external": np.int64})
    for rows_of_block, ids in (([0, 1], [7, 8]), ([], []), ([2], [9])):
        cols["row"].extend(rows_of_block)
        cols["external"].extend(ids)
    has_one, values = of_each_span(cols, "external", spans)
    assert has_one.tolist() == [True, False, True, False]
    assert values.tolist() == [9, ABSENT, 7, ABSENT]
