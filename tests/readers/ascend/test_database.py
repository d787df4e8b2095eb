"""Databases of Ascend's profilers, made here table by table."""

from __future__ import annotations

import sqlite3

import polars as pl
import pytest
from ascend_databases import DAY_NS, ID, ROWS, T0, TABLES, database

import stepscope
from stepscope.core.errors import StepscopeError


@pytest.fixture
def trace(tmp_path):
    return stepscope.load(database(tmp_path, ROWS))


def rows(frame, *columns):
    return frame.select(pl.col(c).cast(pl.String) if frame[c].dtype == pl.Enum else c for c in columns).rows()


def named(trace, *categories):
    spans = trace.spans.filter(pl.col("category").is_in(categories))
    return {str(name): (start, length) for name, start, length in rows(spans, "name", "ts_ns", "dur_ns")}


def test_times_are_nanoseconds_from_the_first_span(trace):
    assert trace.meta.origin_unix_ns == T0
    assert named(trace, "operator") == {"aten::mm": (10, 50), "aclnnMm": (20, 30)}
    assert named(trace, "module") == {"nn.Module: Net_0": (5, 95)}
    assert rows(trace.steps, "step", "rank", "ts_ns", "dur_ns") == [(3, 3, 0, 900)]


def test_a_task_around_a_computing_task_is_no_kernel(trace):
    assert named(trace, "kernel") == {"MatMulV2": (100, 100), "hcom_allReduce__1_0_1": (300, 120)}
    kernels = trace.kernels.join(trace.spans, on="span_id").filter(pl.col("name") == "MatMulV2")
    assert rows(kernels, "grid_x", "kernel_type") == [(24, "AI_CORE")]


def test_tasks_of_cores_are_kernels_where_no_computing_task_is_recorded(tmp_path):
    bare = {name: ROWS[name] for name in ("STRING_IDS", "TASK", "CANN_API")}
    assert list(named(stepscope.load(database(tmp_path, bare)), "kernel")) == ["KERNEL_AICORE"]


def test_steps_of_a_collective_are_no_work(trace):
    assert named(trace, "memcpy") == {"MEMCPY_ASYNC": (220, 10)}
    assert named(trace, "sync") == {"Notify Wait": (300, 50)}


def test_a_collective_has_its_size_and_group(trace):
    row = rows(trace.collectives, "collective", "dtype", "in_elements", "group")
    assert row == [("allreduce", "Float", 1024, "group 1")]


def test_work_belongs_to_the_operator_that_the_profiler_ties_it_to(trace):
    names = trace.spans["name"].to_list()
    of = {names[i]: names[op] for i, op in rows(trace.spans.drop_nulls("op_id"), "span_id", "op_id")}
    assert of["MatMulV2"] == "aclnnMm"


def test_copies_belong_to_the_operator_that_put_their_task_into_the_queue(trace):
    names = trace.spans["name"].to_list()
    copy = trace.spans.filter(pl.col("name") == "MEMCPY_ASYNC").row(0, named=True)
    assert (names[copy["launch_id"]], names[copy["op_id"]]) == ("Enqueue", "aclnnMm")
    assert rows(trace.arrows, "recorded_category", "from_ts_ns", "to_ts_ns") == [("async_task_queue", 30, 50)]


def test_operators_have_shapes_and_stacks(trace):
    op = trace.ops.drop_nulls("stack_id").row(0, named=True)
    assert (op["input_shapes"], op["input_types"], op["sequence"]) == ("[[2,3],[3,4]]", '["float","float"]', 4)
    assert trace.stacks.row(op["stack_id"], named=True)["frames"] == ["main.py(1): <module>", "main.py(7): train"]


def test_devices_ranks_and_hosts_are_those_of_the_database(trace):
    assert rows(trace.devices, "type", "index", "name") == [("cpu", None, None), ("npu", 5, "Ascend910B")]
    assert (trace.meta.rank, trace.meta.host, trace.meta.framework) == (3, "box", "PyTorch")


def test_samples_and_memory_are_read(trace):
    assert rows(trace.kernel_metrics, "metric", "value") == [("cube_ratio", 0.25)]
    counters = dict(rows(trace.counters, "metric", "value"))
    assert counters == {"APP/DDR KB": 0.0, "APP/HBM KB": 2.0, "APP reserved": 2048.0}
    memory = rows(trace.allocations, "ts_ns", "bytes", "total_allocated_bytes")
    assert memory == [(15, 512, 512), (500, -512, 0)]


def test_times_far_from_the_session_are_dropped_and_counted(tmp_path):
    late = (T0 + 9 * DAY_NS, T0 + 9 * DAY_NS + 5, 5, 103, 9, ID["MEMCPY_ASYNC"], 2)
    trace = stepscope.load(database(tmp_path, ROWS | {"TASK": [*ROWS["TASK"], late]}))
    assert named(trace, "memcpy") == {"MEMCPY_ASYNC": (220, 10)}
    assert dict(rows(trace.issues, "code", "count"))["wild_times"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("missing", [t for t in TABLES if t not in ("STRING_IDS", "TASK", "PYTORCH_API", "CANN_API")])
def test_any_table_may_be_missing(tmp_path, missing):
    trace = stepscope.load(database(tmp_path, {name: table for name, table in ROWS.items() if name != missing}))
    assert not trace.spans.is_empty()


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, -1, 2**63 - 1, -(2**63), "text", "", b"\xff", 1.5, float("inf"), "9" * 30])
@pytest.mark.parametrize(("table", "column"), [
    ("TASK", "startNs"), ("TASK", "deviceId"), ("TASK", "connectionId"), ("CANN_API", "globalTid"),
    ("COMPUTE_TASK_INFO", "blockDim"), ("STRING_IDS", "id"), ("STRING_IDS", "value"), ("CONNECTION_IDS", "id"),
    ("PYTORCH_API", "connectionId"), ("RANK_DEVICE_MAP", "rankId"), ("OP_MEMORY", "size"), ("NPU_INFO", "id"),
    ("SESSION_TIME_INFO", "startTimeNs"),
])  # fmt: skip
def test_values_that_cannot_be_cost_no_more_than_themselves(tmp_path, table, column, value):
    path = database(tmp_path, ROWS)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE {table} SET {column} = ?", (value,))
    trace = stepscope.load(path)
    assert str(trace.report())
    assert "issues" in trace.tables or not isinstance(value, str | bytes) or column == "value"


def test_results_without_a_trace_are_refused_with_what_to_open(tmp_path):
    path = tmp_path / "ascend_pytorch_profiler_0.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StepTraceTime (step TEXT)")
    with pytest.raises(StepscopeError, match="no trace of an Ascend device") as caught:
        stepscope.load(path)
    assert "trace_view.json" in caught.value.hint
