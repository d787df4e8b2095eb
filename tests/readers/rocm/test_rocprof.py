from __future__ import annotations

import gzip

import polars as pl
import polars.selectors as cs
import pytest
from rocprof_files import CALLS, COUNTERS, KERNELS, database, document, folder, rpd

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.readers import expand, open_trace, reader_for
from stepscope.readers.common.source import IssueLog
from stepscope.readers.rocm.rocprof import build
from stepscope.readers.rocm.rocprof_records import AGENTS, COPIES, DISPATCHES, METRICS, Records
from stepscope.readers.rocm.rocprof_records import CALLS as CALL_COLUMNS


def launches(trace):
    spans = trace.spans
    names = dict(zip(spans["span_id"], spans["name"], strict=True))
    work = spans.filter(pl.col("category") == "kernel").sort("ts_ns")
    return [(name, names.get(launch)) for name, launch in work.select("name", "launch_id").rows()]


def test_the_files_of_a_run_are_one_trace(tmp_path):
    folder(tmp_path, counter_collection=COUNTERS)
    (path,) = expand([str(tmp_path)])
    assert path.endswith("77_kernel_trace.csv")
    trace = open_trace(path)
    assert trace.meta.format == "rocprof"
    assert launches(trace) == [
        ("Cijk_Alik_Bljk_MT64x64x64_MI16x16x1", "hipLaunchKernel"), ("add(float*, int)", "hipModuleLaunchKernel"),
    ]  # fmt: skip
    assert trace.devices.drop(cs.starts_with("recorded_")).rows()[1:] == [
        (1, "rocm", 0, "AMD Instinct MI300X", 304, None, "gfx942")
    ]
    assert trace.kernel_metrics.select("metric", "value").rows() == [
        ("FETCH_SIZE", 10.5), ("WRITE_SIZE", 2.0), ("FETCH_SIZE", 1.0),
    ]  # fmt: skip
    assert trace.transfers["kind"].to_list() == ["HtoD", "DtoH"]
    ranges = trace.spans.filter(pl.col("category") == "user_range")
    assert ranges["name"].to_list() == ["forward"]
    assert dict(trace.issues.select("code", "count").rows()) == {"no_launch": 2, "serialised": 1}


def test_any_file_of_a_run_stands_for_it(tmp_path):
    folder(tmp_path)
    assert open_trace(str(tmp_path / "77_hip_api_trace.csv")).spans.height == 8
    assert len(expand([str(tmp_path)])) == 1


def test_files_of_other_runs_in_the_folder_stay_apart(tmp_path):
    folder(tmp_path)
    folder(tmp_path, prefix="78", hip_api_trace=None, memory_copy_trace=None, agent_info=None)
    assert [open_trace(path).spans.height for path in expand([str(tmp_path)])] == [8, 2]


def test_json_database_and_rpd_are_known_by_content(tmp_path):
    made = {"a.json": document(), "b.json.gz": gzip.compress(document())}
    for name, text in made.items():
        (tmp_path / name).write_bytes(text)
        trace = open_trace(str(tmp_path / name))
        assert launches(trace) == [("add(float*)", "hipLaunchKernel")]
        assert trace.meta.host == "node7"
    trace = open_trace(str(database(tmp_path / "run_results.db")))
    assert launches(trace) == [("add(float*)", "hipLaunchKernel")]
    trace = open_trace(str(rpd(tmp_path / "trace.rpd")))
    assert launches(trace) == [("gemm", "hipLaunchKernel")] * 2
    assert len(expand([str(tmp_path)])) == 4
    assert reader_for("x", document()).name == "rocprof"


def test_counters_alone_keep_the_order_and_have_no_clock(tmp_path):
    path = tmp_path / "counters_of_a_run.csv"
    path.write_text(COUNTERS)
    trace = open_trace(str(path))
    assert trace.spans["name"].to_list() == ["gemm", "add"]
    assert trace.spans["ts_ns"].null_count() == trace.spans["dur_ns"].null_count() == 2
    assert trace.kernels.select("grid_x", "block_x").rows() == [(4, 256), (1, 64)]
    assert "no_clock" in trace.issues["code"].to_list()


def test_a_summary_is_refused_with_what_to_read(tmp_path):
    path = tmp_path / "77_kernel_stats.csv"
    path.write_text('"Name","Calls","TotalDurationNs","AverageNs"\n"gemm",2,10,5\n')
    with pytest.raises(UnknownFormat, match="summary by name") as caught:
        open_trace(str(path))
    assert "_trace.csv" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [document()[:300], b'{"rocprofiler-sdk-tool": 5}', b'{"rocprofiler-sdk-tool": [{"agents": [{}]}]}'],
    ids=["cut", "number", "fields"],
)
def test_json_that_is_not_of_that_shape_is_corrupt(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(CorruptInput, match=r"a\.json: rocprofv3 JSON that cannot be read"):
        open_trace(str(path))


def test_a_file_without_rows_is_refused_unless_another_of_its_run_has_some(tmp_path):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(KERNELS.partition("\n")[0] + "\n")
    with pytest.raises(CorruptInput, match="a header and no rows"):
        open_trace(str(path))
    (tmp_path / "1_hip_api_trace.csv").write_text(CALLS)
    assert open_trace(str(path)).spans.height > 0


def test_rows_without_times_leave_a_trace_without_spans(tmp_path):
    path = tmp_path / "1_memory_copy_trace.csv"
    path.write_text('"Kind","Direction","Start_Timestamp","End_Timestamp"\n"MEMORY_COPY","HOST_TO_DEVICE",,\n')
    trace = open_trace(str(path))
    assert trace.spans.is_empty()
    assert trace.issues["code"].to_list() == ["incomplete_rows", "no_spans"]


def records(**given):
    tables = {"dispatches": DISPATCHES, "calls": CALL_COLUMNS, "copies": COPIES, "metrics": METRICS, "agents": AGENTS}
    return Records(**{name: tables[name].conform(pl.DataFrame(rows)) for name, rows in given.items()})


LAUNCH = {
    "start": 100, "end": 150, "name": "k", "agent": "4", "queue": 2, "dispatch": 1, "correlation": 9,
    "group_x": 256, "group_y": 1, "group_z": 1, "grid_x": 1000, "grid_y": 2, "grid_z": 1,
}  # fmt: skip


def test_grids_in_work_items_become_groups_with_a_last_one_that_is_not_full():
    tables, origin, timed = build(
        records(dispatches=[LAUNCH], agents=[{"agent": "4", "index": 1, "cu_count": 4}]), IssueLog()
    )
    assert tables["kernels"].select("grid_x", "grid_y", "block_x", "blocks_per_sm").rows() == [(4, 2, 256, 2.0)]
    assert (origin, timed) == (100, True)
    assert tables["devices"].select("device_id", "type", "index").rows() == [(0, "cpu", None), (1, "rocm", 1)]


def test_an_unknown_group_gives_an_unknown_grid():
    tables, _, _ = build(records(dispatches=[LAUNCH | {"group_x": 0, "group_y": None}]), IssueLog())
    assert tables["kernels"].select("grid_x", "grid_y", "grid_z").rows() == [(None, None, 1)]


def test_streams_are_tracks_and_queues_where_there_are_none():
    rows = [LAUNCH, LAUNCH | {"start": 200, "end": 210, "stream": 7, "dispatch": 2}]
    tables, _, _ = build(records(dispatches=rows), IssueLog())
    assert tables["tracks"].select("stream", "label").rows() == [(7, "stream 7"), (2, "queue 2")]


def test_copies_fills_and_calls_have_their_categories():
    given = records(
        copies=[
            {"start": 10, "end": 20, "kind": "CopyDeviceToHost", "agent": "4", "bytes": 8},
            {"start": 30, "end": 40, "kind": "FillBuffer", "agent": "4"},
        ],
        calls=[
            {"start": 1, "end": 2, "name": "a", "domain": "HIP_RUNTIME_API_EXT", "tid": 1},
            {"start": 3, "end": 4, "name": "b", "domain": "HSA_CORE_API", "tid": 1},
            {"start": 5, "end": 6, "name": "c", "domain": "ROCTX", "tid": 1},
            {"start": 7, "end": 8, "name": "aten::mm", "domain": "operator", "tid": 1, "shapes": "[[1]]"},
            {"start": 9, "end": 9, "name": "e", "domain": "RCCL_API", "tid": 1},
        ],
    )
    tables, _, _ = build(given, IssueLog())
    assert sorted(tables["spans"].select("name", "category").rows()) == [
        ("CopyDeviceToHost", "memcpy"), ("FillBuffer", "memset"), ("a", "runtime"), ("aten::mm", "operator"),
        ("b", "driver"), ("c", "user_range"), ("e", "other"),
    ]  # fmt: skip
    assert tables["transfers"].select("bytes", "kind").rows() == [(8, "DtoH"), (None, "memset")]
    assert tables["ops"]["input_shapes"].to_list() == ["[[1]]"]


def test_counters_of_launches_that_are_not_there_are_counted():
    log = IssueLog()
    metrics = [{"dispatch": 1, "metric": "X", "value": 1.0}, {"dispatch": 5, "metric": "X", "value": 2.0}]
    tables, _, _ = build(records(dispatches=[LAUNCH], metrics=metrics), log)
    assert tables["kernel_metrics"].select("span_id", "metric", "value").rows() == [(0, "X", 1.0)]
    codes = log.table().select("code", "count").rows()
    assert ("unknown_dispatch", 1) in codes
    assert ("serialised", 1) in codes
