from __future__ import annotations

import pytest
from chrome_traces import by_name, call, column, kernel, label, linked, op, read, rows, x

LANES = [
    label("process_name", "Ascend Hardware", pid=9),
    label("process_labels", "NPU", pid=9),
    label("thread_name", "Stream 3", pid=9, tid=3),
]


def lane(name, ts, dur, tid=3):
    return x(name, ts, dur, None, pid=9, tid=tid)


def flow(ph, ident, ts, cat="async_npu", *, pid=1, tid=1):
    return {"ph": ph, "cat": cat, "name": "to device", "id": ident, "pid": pid, "tid": tid, "ts": ts}


@pytest.mark.parametrize(
    ("name", "cat", "category"),
    [
        ("ProfilerStep#12", "user_annotation", "step"),
        ("ProfilerStep#12", "cpu_op", "step"),
        ("ProfilerStep#12", "python_function", "python"),
        ("nn.Module: Linear_0", "python_function", "module"),
        ("nn.Module: Linear_0", "cpu_op", "operator"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", "dataloader"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cpu_op", "dataloader"),
        ("forward", "user_annotation", "user_range"),
    ],
)
def test_names_refine_the_recorders_categories(name, cat, category):
    assert column(read([x(name, 0, 1, cat)]).spans, "category") == [category]


@pytest.mark.parametrize(
    ("name", "category"),
    [("Memcpy HtoD", "memcpy"), ("memset_x", "memset"), ("Notify_Wait", "sync"), ("gemm", "kernel")],
)
def test_device_records_that_are_no_kernels(name, category):
    trace = read([kernel(name, 0, 1, 1)])
    assert column(trace.spans, "category") == [category]


def test_arrows_tie_work_without_ids_to_the_innermost_span_at_their_tail():
    trace = read([
        *LANES, op("outer", 0, 10), op("inner", 2, 3), lane("Mul", 20, 2), lane("Add", 30, 2), lane("Sub", 40, 2),
        flow("s", 1, 3), flow("f", 1, 20, pid=9, tid=3),
        flow("s", 2, 8), flow("f", 2, 30, pid=9, tid=3),
        flow("s", 3, 50), flow("f", 3, 40, pid=9, tid=3),  # nothing is open at its tail
        flow("s", 4, 3), flow("f", 4, 21, pid=9, tid=3),  # nothing begins at its head
        flow("f", 5, 40, pid=9, tid=3), flow("s", 6, 3),  # halves
    ])  # fmt: skip
    assert linked(trace, "launch_id") == {"outer": None, "inner": None, "Mul": "inner", "Add": "outer", "Sub": None}
    assert linked(trace, "op_id") == {"outer": None, "inner": None, "Mul": "inner", "Add": "outer", "Sub": None}


def test_arrows_from_operators_prevail_over_those_from_elsewhere():
    trace = read([
        *LANES, x("node", 0, 3, "runtime_layer", tid=2), op("mul", 0, 10), lane("Mul", 20, 2),
        flow("s", 1, 1, "HostToDevice", tid=2), flow("f", 1, 20, "HostToDevice", pid=9, tid=3),
        flow("s", 1, 1), flow("f", 1, 20, pid=9, tid=3),
    ])  # fmt: skip
    assert linked(trace, "op_id")["Mul"] == "mul"


def test_ids_prevail_over_arrows():
    trace = read([
        *LANES, call("cudaLaunchKernel", 0, 1, 5), op("other", 2, 5),
        x("by id", 10, 1, "kernel", pid=9, tid=3, correlation=5),
        flow("s", 1, 3), flow("f", 1, 10, pid=9, tid=3),
    ])  # fmt: skip
    assert linked(trace, "launch_id")["by id"] == "cudaLaunchKernel"


def test_shapes_are_compact_json_and_empty_ones_unknown():
    trace = read([
        op("a", 0, 1, Input_Dims=[[2, 3], []], Input_type=["float", ""], Concrete_Inputs=["", "[1, 2]"]),
        op("b", 2, 1, Input_Dims="[[2, 3], []]", Input_type="", Concrete_Inputs=None),
        op("c", 4, 1, Input_dims=[[4]]),
    ])  # fmt: skip
    assert rows(trace.ops, "input_shapes", "input_types", "concrete_inputs") == [
        ("[[2,3],[]]", '["float",""]', '["","[1, 2]"]'), ("[[2, 3], []]", None, None), ("[[4]]", None, None),
    ]  # fmt: skip


def test_shapes_that_no_text_can_hold_are_kept_as_they_are_written():
    trace = read(
        rb'[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"Input Dims":["\ud83d\ude00","\u00e9"]}}]'
    )
    assert column(trace.ops, "input_shapes") == ['["😀","é"]']


@pytest.mark.parametrize(("recorded", "kept"), [(-1, None), (0, 0), (7, 7)])
def test_sequence_numbers_below_zero_are_none(recorded, kept):
    assert column(read([op("a", 0, 1, Sequence_number=recorded)]).ops, "sequence") == [kept]


def test_forward_threads_are_those_of_backward_operators():
    trace = read(
        [
            op("forward", 0, 1, Fwd_thread_id=0, Sequence_number=4),
            op("backward", 2, 1, Fwd_thread_id=1, Sequence_number=4),
        ]
    )
    assert column(trace.ops, "forward_thread") == [None, 1]


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#" + "9" * 40, "ProfilerStep#" + "9" * 5000, "ProfilerStep#", "ProfilerStep#-1", "ProfilerStep#²"],
)
def test_steps_without_a_number_that_fits_are_no_rows(name):
    trace = read([x(name, 0, 10, "user_annotation"), x("ProfilerStep#7", 20, 10, "user_annotation")])
    assert column(trace.steps, "step") == [7]
    assert by_name(trace, "step")[name] is None


def test_steps_that_overlap_end_where_the_next_begins():
    trace = read([
        x("ProfilerStep#1", 0, 15, "user_annotation"), x("ProfilerStep#2", 10, 10, "user_annotation"), op("a", 5, 1),
        op("b", 12, 1), op("c", 19, 9),
    ])  # fmt: skip
    found = by_name(trace, "step")
    assert (found["a"], found["b"], found["c"]) == (1, 2, 2)
    assert rows(trace.steps, "ts_ns", "dur_ns") == [(0, 15_000), (10_000, 10_000)]


def test_chains_of_overlapping_calls_take_time_in_proportion():
    n = 60_000
    trace = read([call("cudaLaunchKernel", 2 * i, 3, i + 1) for i in range(n)] + [op("first", -1, 2 * n)])
    assert trace.spans["op_id"].null_count() == 1


def test_more_categories_than_a_column_tells_apart():
    trace = read([op("a", 0, 1), *(x("b", i, 1, f"cat {i}") for i in range(2**16 + 9)), op("c", 0, 1)])
    assert trace.spans["category"].value_counts().sort("category").rows() == [("operator", 2), ("other", 2**16 + 9)]
