from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import call, host, kernel, thread

from stepscope.exports.paddle_summary._operators import operator_summary

NO = "- / - / - / - / -"


def lines(text):
    found = text.split("FLOPs")[1].splitlines()[2:-3]
    return [[cell for cell in line.split("  ") if cell.strip()] for line in found]


def shown(tree, *, op_detail=True, thread_sep=False, sorted_by="CPUTotal"):
    return operator_summary(tree, "ns", sorted_by, op_detail=op_detail, thread_sep=thread_sep)


def launch(at, *names):
    return call("cudaLaunchKernel", at, at + 1, at, *(kernel(name, at, at + 4) for name in names))


def test_direct_children_and_what_they_and_the_operator_launched(tree):
    nodes = [
        (0, host("op", made.OPERATOR, 0, 50, launch(30, "own kernel"))),
        (1, host("op compute", made.INNER, 5, 30, launch(6, "kernel", "kernel"))),
        (1, host("nested", made.OPERATOR, 35, 45)),
        (2, host("deep", made.INNER, 10, 20, launch(11, "deep kernel"))),
    ]
    text = shown(tree(thread(*nodes)))
    assert [[cell.strip() for cell in line] for line in lines(text)[1:]] == [
        ["op", "1", "50.00 / 50.00 / 50.00 / 50.00 / 83.33", "16.00 / 16.00 / 16.00 / 16.00 / 100.00", "0"],
        ["op compute", "1", "25.00 / 25.00 / 25.00 / 25.00 / 50.00", "12.00 / 12.00 / 12.00 / 12.00 / 75.00", "-"],
        ["kernel", "2", NO, "8.00 / 4.00 / 4.00 / 4.00 / 66.67", "-"],
        ["own kernel", "1", NO, "4.00 / 4.00 / 4.00 / 4.00 / 25.00", "-"],
        ["nested", "1", "10.00 / 10.00 / 10.00 / 10.00 / 16.67", "0.00 / 0.00 / 0.00 / 0.00 / 0.00", "0"],
    ]
    assert "\n  op compute  " in text
    assert "\n    kernel  " in text
    assert "deep kernel" not in text
    assert [line[0].strip() for line in lines(shown(tree(thread(*nodes)), op_detail=False))[1:]] == ["op", "nested"]


def test_children_come_in_order_though_the_last_operator_is_met_first(tree):
    nodes = [(0, host("op", made.OPERATOR, 0, 10)), (0, host("op", made.OPERATOR, 10, 20))]
    nodes += [
        (1, host("early", made.INNER, 1, 2)),
        (2, host("late", made.INNER, 11, 12)),
        (2, host("later", made.INNER, 13, 14)),
    ]
    assert [line[0].strip() for line in lines(shown(tree(thread(*nodes))))[1:]] == ["op", "late", "later", "early"]


def test_threads_have_blocks_and_sums_of_their_own(tree):
    other = thread((0, host("op", made.OPERATOR, 0, 30, tid=2)), tid=2)
    text = shown(tree(thread((0, host("op", made.OPERATOR, 0, 10)), (0, host("b", 0, 20, 30))), other), thread_sep=True)
    assert [line[0].strip("- ") if len(line) == 1 else (line[0], line[2][-6:].strip()) for line in lines(text)] == [
        "Thread: 2", ("op", "100.00"), "Thread: 7", ("b", "50.00"), ("op", "50.00"),
    ]  # fmt: skip


def test_names_are_cut_under_operators_only(tree):
    long = "x" * 60
    nodes = [(0, host(long, made.OPERATOR, 0, 10)), (1, host(long, made.INNER, 1, 9, launch(2, long)))]
    names = [
        line[0] for line in shown(tree(thread(*nodes))).splitlines() if "xxx" in line for line in [line.split("  1")]
    ]
    assert names == [long, "  " + "x" * 47 + "...", "    " + "x" * 45 + "..."]


def test_without_operators_there_is_no_table(tree):
    assert shown(tree(thread((0, host("x", made.RANGE, 0, 10))))) == ""
