from __future__ import annotations

import polars as pl
import pytest
from nsys_files import COPY, GLOBAL_PID, KERNEL, kernel, read

GPU = ("id", "name", "cuDevice", "smCount", "totalMemory", "computeMajor", "computeMinor")
SYNC = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType")


def test_launch_configuration_and_load(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260, grid=(16, 2, 1)), kernel(100, 150, grid=(2**31 - 1, 65535, 65535), node=77)],
        TARGET_INFO_GPU=(GPU, [(0, "NVIDIA A100-SXM4-40GB", 0, 108, 40 << 30, 8, 0)]),
    )
    rows = trace.kernels.to_dicts()
    assert [r["grid_x"] for r in rows] == [2**31 - 1, 16]
    assert [r["grid_z"] for r in rows] == [65535, 1]
    assert rows[0]["graph_node_id"] == 77
    second = rows[1]
    assert (second["block_x"], second["registers"], second["shared_bytes"]) == (128, 32, 1040)
    assert second["blocks_per_sm"] == pytest.approx(32 / 108)
    assert second["warps_per_sm"] == pytest.approx(32 / 108 * 4)
    assert second["tensor_core"] is False


def test_columns_that_an_old_schema_lacks_are_unknown(tmp_path):
    columns = [c for c in KERNEL if c not in ("graphNodeId", "staticSharedMemory")]
    row = dict(zip(KERNEL, kernel(200, 260), strict=True))
    old = (tuple(columns), [tuple(row[c] for c in columns)])
    trace = read(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=old)
    found = trace.kernels.row(0, named=True)
    assert found["graph_node_id"] is None
    assert found["shared_bytes"] is None
    assert found["grid_x"] == 2


def test_copies_are_named_by_direction_and_memory(tmp_path):
    rows = [
        (10, 20, 0, 1, 7, 5, GLOBAL_PID, 4096, 1, 0, 2),
        (30, 40, 0, 1, 7, 6, GLOBAL_PID, 64, 8, 2, 2),
        (50, 60, 0, 1, 7, 8, GLOBAL_PID, 64, 99, 42, 2),
    ]
    fill = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes", "memKind")
    trace = read(
        tmp_path,
        CUPTI_ACTIVITY_KIND_MEMCPY=(COPY, rows),
        CUPTI_ACTIVITY_KIND_MEMSET=(fill, [(70, 80, 0, 1, 7, 9, GLOBAL_PID, 128, 2)]),
    )
    assert trace.spans.select("name", "category").rows() == [
        ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
        ("Memcpy DtoD (Device -> Device)", "memcpy"),
        ("Memcpy unknown (Unknown -> Device)", "memcpy"),
        ("Memset (Device)", "memset"),
    ]
    assert trace.transfers.select("bytes", "kind", "src", "dst").rows() == [
        (4096, "HtoD", "Pageable", "Device"), (64, "DtoD", "Device", "Device"),
        (64, "unknown", "Unknown", "Device"), (128, "memset", None, "Device"),
    ]  # fmt: skip


def test_waits_lie_on_the_device_that_their_context_works_on(tmp_path):
    waits = [(300, 310, 0, 1, 7, 20, GLOBAL_PID, 3), (320, 330, 0, 1, 0xFFFFFFFF, 21, GLOBAL_PID, 4)]
    trace = read(tmp_path, [kernel(200, 260, device=1)], CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=(SYNC, waits))
    assert trace.devices["index"].to_list() == [None, 1]
    where = trace.spans.join(trace.tracks, on="track_id").select("name", "category", "stream", "kind").rows()
    assert where == [
        ("void gemm<float>(int)", "kernel", 7, "stream"),
        ("Stream Sync", "sync", 7, "stream"),
        ("Context Sync", "sync", None, "other"),
    ]


def test_whole_graphs_are_work_and_a_warning(tmp_path):
    columns = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId")
    graphs = (columns, [(300, 900, 0, 1, 7, 30, GLOBAL_PID, 5)])
    trace = read(tmp_path, [kernel(1000, 1010)], CUPTI_ACTIVITY_KIND_GRAPH_TRACE=graphs)
    assert trace.spans["name"].to_list() == ["CUDA graph 5", "void gemm<float>(int)"]
    assert trace.kernels.select("span_id", "graph_id").rows() == [(0, 5), (1, None)]
    row = trace.issues.row(by_predicate=pl.col("code") == "whole_graphs", named=True)
    assert (row["severity"], row["count"]) == ("warning", 1)
    assert "--cuda-graph-trace=node" in row["example"]
