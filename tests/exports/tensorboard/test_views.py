from __future__ import annotations

import json

import pytest
from chrome_traces import call, kernel, op, read, x

from stepscope.core.errors import MissingTable
from stepscope.exports.tensorboard._views import basis_of, missing_from, views_of

MEMORY = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12,
          "args": {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": 512, "Total Allocated": 512,
                   "Total Reserved": 1024}}  # fmt: skip
MODULE = x("nn.Module: Net_0", 5, 50, "python_function", Python_id=1, Python_module_id=0)
STEPS = (x("ProfilerStep#1", 0, 100, "user_annotation"), x("ProfilerStep#2", 100, 100, "user_annotation"))
WHOLE = (
    *STEPS, MODULE, op("aten::mm", 10, 20, External_id=1, Input_Dims=[[2, 2]], Call_stack="a.py(1): f"),
    call("cudaLaunchKernel", 11, 2, 1, External_id=1), kernel("volta_h884gemm", 20, 30, 1), MEMORY,
    op("aten::mm", 110, 20, External_id=2, Input_Dims=[[2, 2]]), call("cudaLaunchKernel", 111, 2, 2, External_id=2),
    kernel("volta_h884gemm", 120, 30, 2),
)  # fmt: skip


def made(*events):
    basis = basis_of(read(list(events)))
    views, part = views_of(basis, "worker0", n_workers=3)
    return basis, views, part


def test_views_come_in_the_plugins_order():
    _, views, part = made(*WHOLE)
    assert list(views) == [
        "views", "overview", "operation_pie_by_name", "operation_table_by_name", "operation_stack_by_name",
        "operation_pie_by_name_input", "operation_table_by_name_input", "operation_stack_by_name_input",
        "kernel_op_table", "kernel_table", "kernel_pie", "tc_pie", "trace_counters", "memory", "memory_curve",
        "memory_events", "module",
    ]  # fmt: skip
    assert views["views"] == ["Overview", "Operator", "Kernel", "Trace", "Memory", "Module"]
    assert views["overview"]["environments"][0] == {"title": "Number of Worker(s)", "value": "3"}
    assert part.worker == "worker0"
    assert json.loads(bytes(views["trace_counters"]))[0]["name"] == "GPU 0 Utilization"


def test_a_whole_recording_lacks_nothing():
    basis, views, _ = made(*WHOLE)
    assert missing_from(basis, views) == []


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("kernel", "no kernels are recorded"),
        ("ProfilerStep#1", "one step is recorded"),
        ("ProfilerStep", "no steps are marked"),
        ("[memory]", "no allocations are recorded"),
        ("nn.Module", "no modules are recorded"),
    ],
)
def test_what_is_not_recorded_is_said_and_its_view_left_out(without, says):
    events = [e for e in WHOLE if not (e["name"].startswith(without) or e.get("cat") == without)]
    basis, views, _ = made(*events)
    notes = missing_from(basis, views)
    assert len(notes) == 1
    assert notes[0].startswith(says)
    assert ("kernel_table" in views) == (without != "kernel")
    assert ("memory" in views) == (without != "[memory]")
    assert ("module" in views) == (without != "nn.Module")


def test_without_shapes_tables_by_shape_have_one_row_a_name():
    events = [{**e, "args": {k: v for k, v in e.get("args", {}).items() if k != "Input Dims"}} for e in WHOLE]
    basis, views, _ = made(*events)
    assert missing_from(basis, views)[0].startswith("no input shapes are recorded")
    assert [r["input_shape"] for r in views["operation_table_by_name_input"]["data"]] == ["[]"]


def test_without_kernels_there_is_no_device_in_any_table():
    _, views, _ = made(op("aten::add", 0, 10), op("aten::add", 20, 10))
    assert views["views"] == ["Overview", "Operator", "Trace"]
    assert "device_self_duration" not in views["operation_table_by_name"]["data"][0]
    assert json.loads(bytes(views["trace_counters"])) == []


def test_device_work_alone_and_memory_alone_are_views_too():
    _, views, _ = made(kernel("k", 0, 10, 1), kernel("k", 20, 10, 2))
    assert views["kernel_table"]["data"]["rows"][0][:4] == ["k", "No", 2, 20]
    _, views, _ = made(MEMORY)
    assert views["memory_curve"]["metadata"]["devices"] == ["GPU0"]


def test_a_trace_of_other_things_is_refused():
    with pytest.raises(MissingTable, match="events that the TensorBoard plugin knows"):
        basis_of(read([x("a", 0, 1, "something")]))
