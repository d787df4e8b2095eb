from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.analyses.program.operators import operators
from stepscope.core.errors import MissingTable
from stepscope.reports._host import has_host_work, host_time
from stepscope.reports._summary import scope_of


def timed(trace):
    try:
        table = operators(trace.spans, trace.ops, trace.stacks)
    except MissingTable:
        table = None
    return host_time(trace, table, scope_of(trace))


def costs(trace):
    return {cost.kind: cost for cost in timed(trace).costs}


def training(rows):
    rows.step(1, 0, 100)
    rows.add(0, 0, 30, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader")
    rows.op(10, 5, "aten::stack")
    rows.op(40, 20, "aten::mm")
    rows.add(1, 50, 30, "gloo:all_reduce", "user_range")
    return rows


def test_the_host_divides_into_loading_operators_communication_and_the_rest(rows) -> None:
    found = timed(training(rows).trace())
    assert found.parts == {"operators": 20, "exposed communication": 20, "data loading": 30, "Python and other": 30}
    assert found.by_window["data loading"].tolist() == [30]


def test_operators_share_the_time_in_which_any_runs(rows) -> None:
    rows.step(1, 0, 100)
    rows.op(0, 60, "aten::mm")
    rows.op(0, 40, "aten::add", track=1)
    found = costs(rows.trace())
    assert found["operator aten::mm"].ns == pytest.approx(36)
    assert found["operator aten::mm"].details[0] == "1 call a step, 60 ns"


def test_the_module_and_wide_types_of_an_operator_are_told(rows) -> None:
    rows.step(1, 0, 100)
    rows.add(0, 5, 60, "nn.Module: Linear_0", "module")
    row = rows.op(10, 50, "aten::mm")
    rows.side("ops", row, input_types='["double","double"]')
    details = costs(rows.trace())["operator aten::mm"].details
    assert "float64" in details[1]


def test_an_operator_on_float32_needs_no_word(rows) -> None:
    row = rows.op(10, 50, "aten::mm")
    rows.side("ops", row, input_types='["float","float"]')
    rows.op(70, 5, "aten::view")
    assert len(costs(rows.trace())["operator aten::mm"].details) == 1


def test_communication_and_loading_are_costs_with_advice(rows) -> None:
    found = costs(training(rows).trace())
    assert found["communication"].title == "Communication with other ranks while no operator runs: all-reduce"
    assert "comes late" in found["communication"].details[1]
    assert found["loading"].ns == 30
    assert "num_workers" in found["loading"].details[1]


def test_paddle_has_ranges_and_no_stacks_to_name_the_rest(rows) -> None:
    trace = training(rows).trace()
    found = costs(replace(trace, meta=replace(trace.meta, framework="PaddlePaddle")))
    assert "RecordEvent" in found["other"].details[0]


def test_the_rest_names_the_programs_functions_where_python_was_recorded(rows, new_rows) -> None:
    assert "with_stack=True" in costs(training(rows).trace())["other"].details[0]
    python = new_rows()
    python.step(1, 0, 100)
    python.add(0, 0, 100, "train.py(1): main", "python")
    python.add(0, 10, 80, "train.py(9): tokenize", "python")
    python.add(0, 20, 50, "json/decoder.py(2): decode", "python")
    python.add(0, 30, 20, "<built-in function loads>", "python")
    found = costs(python.trace())["other"]
    assert found.details == ("Most of Python's own time: json/decoder.py(2): decode 50 %, train.py(9): tokenize 30 %",)


def test_only_a_frameworks_spans_are_host_work(rows) -> None:
    rows.add(0, 0, 10, "x", "other")
    assert not has_host_work(rows.trace().spans)
    rows.op(20, 5)
    assert has_host_work(rows.trace().spans)


def test_an_operators_cost_is_its_own_time_and_calls_inside_operators_are_costs_too(rows) -> None:
    op = rows.op(0, 100, "aten::uniform_")
    rows.launch(5, 80, "cudaMalloc", op)
    rows.op(200, 20, "aten::mul")
    found = costs(rows.trace())
    assert found["operator aten::uniform_"].ns == 20
    assert found["operator aten::mul"].ns == 20
    call = found["call cudaMalloc"]
    assert (call.title, call.ns) == ("Runtime call cudaMalloc", 80)
    assert call.details == ("1 call, 80 ns; 100 % of it in aten::uniform_",)


def test_a_call_outside_of_operators_is_no_part_of_theirs(rows) -> None:
    rows.op(0, 100, "aten::mm")
    rows.launch(200, 80, "cudaDeviceSynchronize")
    assert [kind for kind in costs(rows.trace()) if kind.startswith("call")] == []


def test_a_thread_that_only_sleeps_takes_no_part_in_pythons_own_time(rows) -> None:
    rows.step(1, 0, 100)
    rows.add(0, 0, 100, "train.py(1): main", "python")
    rows.add(1, 0, 100, "tqdm/_monitor.py(60): run", "python")
    rows.add(1, 1, 98, "threading.py(655): wait", "python")
    rows.add(1, 2, 96, "threading.py(359): wait", "python")
    assert costs(rows.trace())["other"].details == ("Most of Python's own time: train.py(1): main",)
