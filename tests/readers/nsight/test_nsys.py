from __future__ import annotations

import polars as pl
import pytest
from nsys_files import (
    COPY,
    GLOBAL_PID,
    KERNEL,
    OTHER_PID,
    OTHER_THREAD,
    START_UNIX_NS,
    THREAD,
    call,
    kernel,
    nvtx,
    read,
    write,
)

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.readers import expand, open_trace, reader_for

SECRET = "TOKEN=do-not-show"


def codes(trace):
    return dict(trace.issues.select("code", "count").rows())


def test_an_export_becomes_tables_with_unix_time_and_versions(tmp_path):
    trace = read(tmp_path, [kernel(200, 260)], [call(100, 120)], [nvtx(50, 400, 3)])
    assert trace.meta.format == "nsys"
    assert trace.meta.origin_unix_ns == START_UNIX_NS + 50
    assert trace.meta.facts == {"nsys_schema": "3.20.2"}
    assert trace.spans.select("name", "category", "ts_ns", "dur_ns").rows() == [
        ("void gemm<float>(int)", "kernel", 150, 60),
        ("layer 1", "user_range", 0, 350),
        ("cudaLaunchKernel", "runtime", 50, 20),
    ]
    assert trace.issues.is_empty()


def test_a_kernel_belongs_to_the_call_of_its_own_process(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260), kernel(300, 310, pid=OTHER_PID, device=1)],
        [call(100, 120, thread=OTHER_THREAD), call(140, 150)],
    )
    spans = trace.spans
    starts = dict(zip(spans["span_id"], spans["ts_ns"], strict=True))
    kernels = spans.filter(pl.col("category") == "kernel").sort("ts_ns")
    assert [starts[i] for i in kernels["launch_id"]] == [40, 0]
    assert trace.meta.rank is None


def test_a_capture_without_device_work_says_so(tmp_path):
    trace = read(tmp_path, calls=[call(100, 120)])
    assert codes(trace) == {"no_device_work": 1}
    empty = tmp_path / "empty.sqlite"
    assert codes(open_trace(str(write(empty)))) == {"no_spans": 1}


def test_environment_and_output_of_the_program_are_not_kept(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        META_DATA_CAPTURE=(("name", "value"), [("PROCESS_0:ENVIRONMENT_VARIABLE_1", SECRET)]),
        TARGET_INFO_SYSTEM_ENV=(
            ("name", "nameEnum", "value"), [("DeviceEnvironment", 610, SECRET), ("Hostname", 619, "node7")],
        ),
        ProcessStreams=(("globalPid", "contentId"), [(GLOBAL_PID, 9)]),
        DIAGNOSTIC_EVENT=(("timestamp", "text"), [(1, SECRET)]),
    )  # fmt: skip
    assert trace.meta.host == "node7"
    everything = repr(trace.meta) + "".join(str(frame.to_dict(as_series=False)) for frame in trace.tables.values())
    assert "do-not-show" not in everything


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE users (id)")
    db.close()
    with pytest.raises(
        UnknownFormat, match=r"other\.sqlite is an SQLite database of an unknown recorder: it holds users"
    ):
        open_trace(str(path))


def test_a_cut_export_is_one_clear_line(tmp_path):
    path = write(tmp_path / "a.sqlite", NVTX_EVENTS=(("start", "end"), [(i, i + 1) for i in range(5000)]))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(CorruptInput, match=r"a\.sqlite at byte 20,000: the database ends after 20,000 of"):
        open_trace(str(path))


def test_exports_are_found_in_a_folder_and_by_content(tmp_path):
    path = write(tmp_path / "a.sqlite")
    assert expand([str(tmp_path)]) == [str(path)]
    assert reader_for("anything", path.read_bytes()).name == "nsys"
    assert open_trace(str(tmp_path)).meta.format == "nsys"


def test_pytorch_ranges_are_operators_with_their_shapes(tmp_path):
    text = "aten::mm, seq = 12, op_id = 7, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0)]"
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        [call(110, 120)],
        [nvtx(100, 130, text), nvtx(90, 140, "train"), nvtx(150, 160, "aten::view"), nvtx(80, 300, "ProfilerStep#3")],
    )
    assert trace.meta.framework == "PyTorch"
    mine = trace.spans.filter(pl.col("category") == "operator")
    assert mine["name"].to_list() == ["aten::mm", "aten::view"]
    assert trace.ops.select("span_id", "input_shapes", "sequence").rows() == [(mine["span_id"][0], "[[2,3],[3,4]]", 12)]
    work = trace.spans.filter(pl.col("category") == "kernel")
    assert work.select("op_id", "step").rows() == [(mine["span_id"][0], 3)]
    assert trace.steps["step"].to_list() == [3]


def test_copies_and_kernels_have_their_side_tables(tmp_path):
    trace = read(
        tmp_path,
        [kernel(200, 260)],
        CUPTI_ACTIVITY_KIND_MEMCPY=(COPY, [(10, 20, 0, 1, 7, 5, GLOBAL_PID, 4096, 1, 0, 2)]),
    )
    spans = trace.spans
    assert spans.filter(pl.col("span_id").is_in(trace.transfers["span_id"].implode()))["category"].to_list() == [
        "memcpy"
    ]
    assert spans.filter(pl.col("span_id").is_in(trace.kernels["span_id"].implode()))["category"].to_list() == ["kernel"]
    assert THREAD  # the copy's thread is not recorded: it has no launch
    assert codes(trace) == {"no_launch": 2}


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
