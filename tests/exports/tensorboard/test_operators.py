from __future__ import annotations

from chrome_traces import call, kernel, op, read

from stepscope.exports.tensorboard import _operators
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import costs_of, grow
from stepscope.exports.tensorboard._names import uses_tensor_cores


def grouped(*events, **by):
    seen = read_events(read(list(events)))
    launches = find_launches(seen)
    forest = grow(seen, launches)
    costs = costs_of(seen, launches, forest, seen.where(uses_tensor_cores, launches.work))
    calls = _operators.calls_of(seen, forest)
    return calls, _operators.grouped(calls, costs, **by)


EVENTS = (
    op("aten::mm", 0, 10, External_id=1, Input_Dims=[[2, 3], []], Call_stack="a.py(1): f"),
    call("c", 1, 2, 1, External_id=1), kernel("volta_h884gemm", 50, 6, 1),
    op("aten::mm", 20, 4, External_id=2, Input_Dims=[[4]], Call_stack="a.py(1): f"),
    op("aten::add", 30, 5, External_id=3), call("c", 31, 1, 2, External_id=3), kernel("add", 60, 2, 2),
)  # fmt: skip


def test_calls_of_one_name_are_one_row_sorted_by_own_device_time():
    calls, groups = grouped(*EVENTS)
    found = _operators.table(
        calls, groups, _operators.with_stack(calls, by_shape=False), by_shape=False, with_device=True
    )
    assert found["metadata"]["sort"] == "device_self_duration"
    assert found["data"] == [
        {"name": "aten::mm", "calls": 2, "device_self_duration": 6, "device_total_duration": 6,
         "host_self_duration": 12, "host_total_duration": 14, "tc_eligible": "Yes", "tc_self_ratio": 100.0,
         "tc_total_ratio": 100.0, "has_call_stack": True},
        {"name": "aten::add", "calls": 1, "device_self_duration": 2, "device_total_duration": 2,
         "host_self_duration": 4, "host_total_duration": 5, "tc_eligible": "No", "tc_self_ratio": 0.0,
         "tc_total_ratio": 0.0, "has_call_stack": False},
    ]  # fmt: skip


def test_shapes_tell_rows_apart_and_are_printed_as_python_does():
    calls, groups = grouped(*EVENTS, by_shape=True)
    found = _operators.table(
        calls, groups, _operators.with_stack(calls, by_shape=True), by_shape=True, with_device=False
    )
    assert found["metadata"]["sort"] == "host_self_duration"
    assert [(r["name"], r["input_shape"], r["calls"]) for r in found["data"]] == [
        ("aten::mm", "[[2, 3], []]", 1), ("aten::mm", "[[4]]", 1), ("aten::add", "[]", 1),
    ]  # fmt: skip
    assert "device_self_duration" not in found["data"][0]


def test_stacks_have_a_table_for_each_operator():
    calls, groups = grouped(*EVENTS, by_stack=True)
    found = _operators.stack_tables(calls, groups, by_shape=False, with_device=True)
    assert list(found) == ["aten::mm"]
    assert [(r["calls"], r["call_stack"]) for r in found["aten::mm"]["data"]] == [(2, "a.py(1): f")]
    calls, groups = grouped(*EVENTS, by_shape=True, by_stack=True)
    found = _operators.stack_tables(calls, groups, by_shape=True, with_device=True)
    assert list(found) == ["aten::mm###[[2, 3], []]", "aten::mm###[[4]]"]


def test_pies_hold_what_is_above_zero_longest_first_or_nothing():
    calls, groups = grouped(*EVENTS)
    found = _operators.pies(calls, groups)
    assert found["host_total_time"]["rows"] == [["aten::mm", 14], ["aten::add", 5]]
    assert found["device_total_time"]["title"] == "Device Total Time (us)"
    calls, groups = grouped(op("a", 0, 1))
    assert _operators.pies(calls, groups)["device_self_time"] is None


def test_children_come_before_their_parents():
    calls, groups = grouped(op("outer", 0, 9), op("inner", 1, 2), op("outer", 20, 9))
    assert [calls.names[i] for i in calls.name[groups.first]] == ["inner", "outer"]


def test_shapes_that_are_no_list_are_shown_as_they_are():
    calls, _ = grouped(op("a", 0, 1, Input_Dims="oops"), op("b", 2, 1, Input_Dims=None))
    assert sorted(calls.shapes) == ["[]", "oops"]


def test_no_operators_are_no_rows():
    calls, groups = grouped(kernel("k", 0, 1, 1))
    assert _operators.table(calls, groups, set(), by_shape=False, with_device=True)["data"] == []
