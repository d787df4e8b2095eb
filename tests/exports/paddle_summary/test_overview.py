from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import call, host, kernel, memcpy, memset, thread

from stepscope.exports.paddle_summary._overview import (
    communication,
    device_summary,
    distribution_summary,
    model_summary,
    overview_summary,
)


def rows(text):
    """Cells of the lines between a table's rules."""
    return [line.split() for line in text.splitlines() if line.endswith("  ") and not line.startswith("-")]


def test_devices_are_busy_while_kernels_of_host_events_run(tree):
    step = host(
        "ProfileStep#1",
        made.STEP,
        0,
        100,
        call("c", 1, 2, 1, kernel("k", 50, 250, index=1), memcpy("m", 3, 4, index=0)),
    )
    found = tree(thread((0, step), root=call("c", 1, 2, 2, kernel("k", 0, 500, index=1))))
    text = device_summary(found, {"Process Cpu Utilization": "1.25", "System Cpu Utilization": "none"})
    assert rows(text)[1:] == [["CPU(Process)", "125.00"], ["CPU(System)", "-"], ["GPU0", "0.00"], ["GPU1", "200.00"]]


def test_types_by_time_each_point_once(tree):
    nodes = [
        (0, host("ProfileStep#1", made.STEP, 0, 100)),
        (1, host("op", made.OPERATOR, 0, 40, call("c", 1, 3, 1, memset(50, 60), kernel("k", 60, 70)))),
        (1, host("op", made.OPERATOR, 50, 60)),
        (1, host("odd", 77, 60, 61)),
        (2, host("op", made.OPERATOR, 10, 30)),
    ]
    text = overview_summary(tree(thread(*nodes, root=call("c", 0, 90, 9))), "ns")
    assert rows(text)[1:] == [
        ["ProfileStep", "1", "100.00", "100.00"],
        ["Operator", "3", "50.00", "50.00"],
        ["CudaRuntime", "1", "2.00", "2.00"],
        ["77", "1", "1.00", "1.00"],
        ["Calls", "GPU", "Time", "Ratio", "(%)"],
        ["Memset", "1", "10.00", "10.00"],
        ["Kernel", "1", "10.00", "10.00"],
    ]


def test_phases_show_the_models_calls_and_plain_sums(tree):
    nodes = [
        (0, host("ProfileStep#1", made.STEP, 0, 100)),
        (1, host("Net", made.FORWARD, 0, 40)),
        (2, host("Linear", made.FORWARD, 5, 20)),
    ]
    assert ["Forward", "1", "40.00", "40.00"] in rows(overview_summary(tree(thread(*nodes)), "ns"))


def test_communication_counts_distinct_times(tree):
    nodes = [(0, host("ProfileStep#1", made.STEP, 0, 100)), *[(1, host("c", made.COMMUNICATION, 10, 20))] * 2]
    nodes += [(1, host("c_allreduce_sum", made.OPERATOR, 15, 30, call("x", 16, 17, 1, kernel("any", 20, 25))))]
    text = overview_summary(tree(thread(*nodes)), "ns")
    assert ["Communication", "2", "20.00", "20.00"] in rows(text)
    assert rows(text)[-1] == ["Communication", "1", "5.00", "5.00"]


def test_nothing_recorded_is_no_table(tree):
    assert overview_summary(tree(thread()), "ns") == ""


def model_rows(text):
    return [line.split("  ") for line in text.splitlines() if line.endswith("  ") and not line.startswith("-")]


def cells(text):
    return [[cell.strip() for cell in row if cell.strip()] for row in model_rows(text)[1:]]


def test_phases_and_what_is_left_of_the_step(tree):
    nodes = [
        (0, host("ProfileStep#1", made.STEP, 0, 100)),
        (1, host("Optimization Step", made.OPTIMIZATION, 60, 90, call("c", 61, 62, 1, kernel("k", 70, 80)))),
        (1, host("Net", made.FORWARD, 0, 40)),
        (3, host("L", made.FORWARD, 5, 20)),
    ]
    assert cells(model_summary(tree(thread(*nodes)), "ns")) == [
        ["ProfileStep", "1", "100.00 / 100.00 / 100.00 / 100.00 / 100.00", "10.00 / 10.00 / 10.00 / 10.00 / 100.00"],
        ["Forward", "1", "40.00 / 40.00 / 40.00 / 40.00 / 40.00", "0.00 / 0.00 / 0.00 / 0.00 / 0.00"],
        ["Optimization", "1", "30.00 / 30.00 / 30.00 / 30.00 / 30.00", "10.00 / 10.00 / 10.00 / 10.00 / 100.00"],
        ["Others", "-", "30.00 / - / - / - / 30.00", "0.00 / - / - / - / 0.00"],
    ]


def test_a_step_alone_is_no_model(tree):
    assert model_summary(tree(thread((0, host("ProfileStep#1", made.STEP, 0, 100)))), "ns") == ""


def test_communication_is_known_by_type_by_some_names_and_by_nccl(tree):
    def launching(name, kind, at, kernel_name):
        return host(name, kind, at, at + 9, call("c", at, at + 1, at, kernel(kernel_name, at, at + 5)))

    nodes = [
        (0, host("ProfileStep#1", made.STEP, 0, 100)),
        (1, launching("anything", made.COMMUNICATION, 0, "a")),
        (1, launching("c_allreduce_sum", made.OPERATOR, 10, "b")),
        (1, launching("all_reduce", made.OPERATOR, 20, "c")),
        (1, launching("matmul", made.OPERATOR, 30, "ncclKernel")),
        (1, host("broadcast", made.OPERATOR, 40, 49)),
        (6, launching("inside", made.INNER, 40, "d")),
    ]
    found = communication(tree(thread(*nodes)))
    assert found.host[0].tolist() == [0, 10, 40]
    assert found.device[0].tolist() == [0, 10, 30, 40]
    assert found.computation[0].tolist() == [20, 40]  # Paddle counts a kernel inside both ways
    assert (found.n_host, found.n_device) == (3, 4)


def test_overlap_is_what_both_have(tree):
    nodes = [
        (0, host("ProfileStep#1", made.STEP, 0, 100)),
        (1, host("c", made.COMMUNICATION, 0, 10, call("x", 0, 1, 1, kernel("nccl", 5, 30)))),
        (1, host("op", made.OPERATOR, 10, 20, call("x", 11, 12, 2, kernel("gemm", 20, 60)))),
    ]
    assert cells(distribution_summary(tree(thread(*nodes)), "ns")) == [
        ["ProfileStep", "100.00", "100.00"], ["Communication", "30.00", "30.00"], ["Computation", "40.00", "40.00"],
        ["Overlap", "10.00", "10.00"],
    ]  # fmt: skip
    assert distribution_summary(tree(thread(nodes[0])), "ns") == ""
