from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from chrome_traces import call, column, kernel, op, read, rows, x

from stepscope.readers.common.columns import ABSENT, nullable, text_column


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
        (np.array([2**40, -1]), pl.Int32(), [None, -1]),
        (np.array([1.5, np.nan]), pl.Float64(), [1.5, None]),
        (np.array([], np.int64), pl.Int64(), []),
    ],
)
def test_absent_and_what_does_not_fit_is_null(values, dtype, kept):
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
