from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import call, host, kernel, thread

from stepscope.exports.paddle_summary._model import communication, distribution_summary, model_summary


def rows(text):
    return [line.split("  ") for line in text.splitlines() if line.endswith("  ") and not line.startswith("-")]


def cells(text):
    return [[cell.strip() for cell in row if cell.strip()] for row in rows(text)[1:]]


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
