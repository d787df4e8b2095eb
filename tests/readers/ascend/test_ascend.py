"""A rank's folder of Ascend's profilers as text: one trace of the timeline and all tables next to it."""

from __future__ import annotations

import gzip
import json
import sqlite3

import ascend_files as files
import polars as pl
import pytest

import stepscope
from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.readers import expand

SUMMARIES = ("trace_view_json", "kernel_details_csv")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return stepscope.load(files.folder(tmp_path_factory.mktemp("run") / "box_12_ascend_pt"))


def of_kernel(trace, name, table):
    ids = trace.spans.filter(pl.col("name") == name)["span_id"]
    return trace.table(table).filter(pl.col("span_id").is_in(ids.implode()))


def counters_of(trace, name):
    rows = of_kernel(trace, name, "kernel_metrics").unique("metric", keep="first", maintain_order=True)
    return {metric: (value, unit) for metric, unit, value in rows.select("metric", "unit", "value").rows()}


def test_a_folder_is_one_trace_and_so_is_its_output(trace, tmp_path):
    path = files.folder(tmp_path / "a_ascend_pt")
    timeline = str(path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json")
    assert expand([str(path)]) == [timeline] == expand([str(path / "ASCEND_PROFILER_OUTPUT")])
    assert expand([f"{path}/ASCEND_PROFILER_OUTPUT/*"]) == [timeline]
    assert trace.meta.format == "ascend"


def test_packed_files_are_the_same_trace(trace, tmp_path):
    path = files.folder(tmp_path / "a_ascend_pt")
    for one in [*path.rglob("*.json"), *path.rglob("*.csv")]:
        one.with_name(one.name + ".gz").write_bytes(gzip.compress(one.read_bytes()))
        one.unlink()
    assert len(expand([str(path)])) == 1
    packed = stepscope.load(path)
    assert {name: len(frame) for name, frame in packed.tables.items()} == {
        name: len(frame) for name, frame in trace.tables.items()
    }
    assert (packed.rank, packed.results.keys()) == (trace.rank, trace.results.keys())


def test_ranks_are_those_of_the_profilers_settings_and_several_folders_are_ranks(trace, tmp_path):
    assert (trace.rank, trace.meta.world_size, set(trace.tracks["rank"])) == (3, 8, {3})
    assert trace.meta.facts["profiler_level"] == "Level1"
    for name in ("a_ascend_pt", "b_ascend_pt"):
        files.folder(tmp_path / name)
    (tmp_path / "b_ascend_pt" / "profiler_info_3.json").write_text('{"rank_id": 4}')
    assert [one.rank for one in stepscope.load_run(tmp_path)] == [3, 4]


def test_kernels_have_their_type_core_blocks_and_arguments(trace):
    spans = trace.spans.filter(pl.col("category") == "kernel").unique("name")
    types = dict(spans.select(pl.col("name", "recorded_category").cast(pl.String)).rows())
    assert (types["MatMulV3_1"], types["Add_2"], types["hcom_allReduce__586_7_1"]) == (
        "MatMulV3", "Add", "communication",
    )  # fmt: skip
    row = of_kernel(trace, "MatMulV3_1", "kernels").row(0, named=True)
    assert (row["grid_x"], row["kernel_type"]) == (24, "AI_CORE")
    row = of_kernel(trace, "MatMulV3_1", "ops").row(0, named=True)
    assert (row["input_shapes"], row["input_types"]) == ("[[2,3],[3,4]]", '["FLOAT","FLOAT"]')


def test_kernels_have_counters_and_the_share_of_their_time_in_cores(trace):
    counters = counters_of(trace, "MatMulV3_1")
    assert counters["aicore_time"] == (36.0, "us")
    assert counters["aicore_ratio"] == (0.9, "ratio")
    assert counters["cube_utilization"] == (62.5, "%")
    assert counters["wait_time"] == (5.0, "us")
    assert counters["l2_hit_rate"] == (0.75, "ratio")
    assert counters_of(trace, "Add_2")["aiv_ratio"] == (0.9, "ratio")


def test_collectives_have_the_profilers_times_and_links(trace):
    counters = counters_of(trace, "hcom_allReduce__586_7_1")
    assert counters["elapse"] == (100_000.0, "ns")
    assert (counters["transit"], counters["wait"]) == ((20_000.0, "ns"), (30_000.0, "ns"))
    assert (counters["HCCS size"], counters["HCCS transit"]) == ((500_000.0, "bytes"), (40_000.0, "ns"))
    assert not any(name.startswith(("SDMA", "RDMA")) for name in counters)
    assert trace.collectives["group"].to_list() == ["17522", "17522"]


def test_blocks_of_memory_belong_to_the_operator_that_asked_for_them(trace):
    rows = trace.allocations.select("bytes", "total_allocated_bytes", "address").rows()
    assert rows == [(2560, 1_572_864, 0), (-2560, 1_048_576, 0), (1 << 20, 2 << 20, 1)]
    callers = trace.show("memory", by="operator")
    assert callers.select(pl.col("name").cast(pl.String), "requested_bytes", "kept_bytes").rows() == [
        ("aten::mm", (1 << 20) + 2560, 1 << 20)
    ]


def test_components_that_hold_memory_are_counters(trace):
    last = {str(metric): value for metric, value in trace.counters.select("metric", "value").rows()}
    assert last["HCCL module reserved"] == 64 << 20
    assert last["APP reserved"] == 2109.5 * (1 << 20)
    assert "SLOG module reserved" not in last
    assert trace.counters["device_id"].to_list() == [1] * trace.counters.height


def test_what_the_profiler_computed_are_results(trace):
    row = trace.show("step_trace_time").row(0, named=True)
    assert (row["step"], row["computation_ns"], row["idle_ns"], row["preparing_ns"]) == (7, 50_000, 0, 30_500)
    operators = trace.show("op_statistic").select(pl.col("name").cast(pl.String), "calls", "total_ns", "share_ratio")
    assert operators.rows() == [("MatMulV3", 2, 80_000, 0.8), ("Add", 2, 20_000, 0.2)]
    assert trace.show("api_statistic")["name"].to_list() == ["launch", "aclrtMalloc"]
    row = trace.show("communication_time").row(0, named=True)
    start = files.T0_US * 1000 + 60_250
    assert (row["start_ns"], row["elapse_ns"], row["idle_ns"], row["group"]) == (start, 100_000, 50_000, "17522")
    row = trace.show("communication_matrix").row(0, named=True)
    assert (row["src_rank"], row["dst_rank"], row["link"], row["bytes"]) == (0, 1, "HCCS", 500_000)


def test_kernels_alone_are_a_trace(tmp_path):
    trace = stepscope.load(files.folder(tmp_path / "a_ascend_pt", trace_view_json=None))
    row = trace.show("timeline").row(0, named=True)
    assert (row["computation_ns"], row["exposed_communication_ns"], row["communication_ns"]) == (
        100_000,
        160_000,
        200_000,
    )
    assert counters_of(trace, "MatMulV3_1")["aicore_ratio"] == (0.9, "ratio")
    assert counters_of(trace, "hcom_allReduce__586_8_1")["wait"] == (30_000.0, "ns")
    assert trace.devices["type"].to_list() == ["cpu", "npu"]


def test_results_alone_are_read_and_say_that_they_are_no_recording(tmp_path):
    results = stepscope.load(files.folder(tmp_path / "a_ascend_pt", **dict.fromkeys(SUMMARIES)))
    assert results.show("op_statistic").height == 2
    assert str(results.report())
    with pytest.raises(StepscopeError) as caught:
        results.show("kernels")
    assert "step_trace_time" in caught.value.hint


def test_the_database_of_results_is_read_alike(tmp_path):
    path = tmp_path / "analysis.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StepTraceTime (step TEXT, computing NUMERIC, free NUMERIC)")
        db.execute("INSERT INTO StepTraceTime VALUES ('7', 50.5, 'x')")
        columns = "hccl_op_name, group_name, transport_type, transit_size, transit_time, bandwidth, package_size, step"
        db.execute(f"CREATE TABLE CommAnalyzerBandwidth ({columns})")
        for size in (1, 2):
            row = ("hcom_allReduce__586_7_1", "17522", "HCCS", 0.5, 0.04, 12.5, size, "step7")
            db.execute("INSERT INTO CommAnalyzerBandwidth VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    results = stepscope.load(path)
    assert results.show("step_trace_time").select("step", "computation_ns", "idle_ns").rows() == [(7, 50_500, None)]
    assert results.show("communication_links").select("bytes", "transit_ns").rows() == [(500_000, 40_000)]
    assert dict(results.issues.select("code", "count").rows()) == {"not_numbers": 1}


def test_a_database_of_the_same_run_is_read_in_place_of_the_timeline(tmp_path):
    path = files.folder(tmp_path / "a_ascend_pt") / "ASCEND_PROFILER_OUTPUT"
    with sqlite3.connect(path / "ascend_pytorch_profiler_3.db") as db:
        db.execute("CREATE TABLE TASK (startNs, endNs, deviceId, taskType)")
        db.execute("CREATE TABLE COMPUTE_TASK_INFO (name, globalTaskId)")
    assert expand([str(path)]) == [str(path / "ascend_pytorch_profiler_3.db")]


NONSENSE = ("", "\t", "N/A", "-1", "1e400", "nan", "9" * 40, '"', "é\x00", "0x10", "1,5", "text")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in files.tables() if name.endswith(".csv")])
def test_cells_of_nonsense_cost_no_more_than_themselves(tmp_path, name):
    header, *lines = files.tables()[name].splitlines()
    rows = [",".join([cell] * (header.count(",") + 1)) for cell in NONSENSE]
    changed = {name.replace(".", "_"): "\n".join([header, *rows, *lines])}
    assert str(stepscope.load(files.folder(tmp_path / "a_ascend_pt", **changed)).report())


FORMS = ("", "\n", "a,b\n", "[]", "null", "3", '{"7": [1]}', '{"7": {"collective": {"a": 5}}}')


@pytest.mark.parametrize("content", FORMS)
def test_files_of_another_form_cost_no_more_than_themselves(tmp_path, content):
    changed = {name.replace(".", "_"): content for name in files.tables() if name != "trace_view.json"}
    trace = stepscope.load(files.folder(tmp_path / "a_ascend_pt", **changed))
    assert trace.spans.height == 10
    assert trace.issues.height


def test_a_file_that_cannot_be_read_is_an_error_where_it_was_asked_for(tmp_path):
    path = tmp_path / "communication.json"
    path.write_text('{"Communication Time Info": ')
    with pytest.raises(CorruptInput, match="not JSON"):
        stepscope.load(path)
    (tmp_path / "op_statistic.csv").write_text("OP Type,Core Type,Count,Total Time(us)\n")
    with pytest.raises(CorruptInput, match="no rows"):
        stepscope.load(tmp_path / "op_statistic.csv")


def test_records_of_another_type_are_counted(tmp_path):
    document = files.collectives()
    document["step7"]["collective"] |= {
        "x": 5,
        "hcom_send__1_2_1@3": {"Communication Time Info": {"Elapse Time(ms)": "9"}},
    }
    trace = stepscope.load(files.folder(tmp_path / "a_ascend_pt", communication_json=json.dumps(document)))
    assert dict(trace.issues.select("code", "count").rows())["records_dropped"] == 1
    assert trace.show("communication_time")["elapse_ns"].to_list() == [100_000, None, 100_000]


@pytest.mark.slow
def test_step_times_that_differ_from_ours_are_named_in_one_line(trace, tmp_path):
    assert not [line for line in trace.report().quality if "step times" in line]
    text = files.tables()["step_trace_time.csv"].replace("0,8,50.0", "0,8,51.0")
    other = stepscope.load(files.folder(tmp_path / "a_ascend_pt", step_trace_time_csv=text))
    (line,) = [line for line in other.report().quality if "step times" in line]
    assert "computing in step 8 51 µs; here it is 50 µs" in line


def test_a_summary_of_a_whole_cluster_is_refused_by_name(tmp_path):
    path = tmp_path / "cluster_communication.json"
    path.write_text('{"(0, 1)": {"step": {"a": {"0": {"Communication Time Info": {}}}}}}')
    with pytest.raises(UnknownFormat, match=r"cluster_communication\.json has no records of one rank's collectives"):
        stepscope.load(path)
