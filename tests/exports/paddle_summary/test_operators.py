from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import call, host, kernel, memcpy, memory, thread

from stepscope.exports.paddle_summary._operators import (
    _shown,
    kernel_summary,
    memory_manipulation_summary,
    memory_summary,
    operator_summary,
    user_defined_summary,
)
from stepscope.exports.paddle_summary._tree import tree_of

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


NODES = [
    (0, host("ProfileStep#1", made.STEP, 0, 100)),
    (1, host("my MemCpy", made.RANGE, 0, 10, call("c", 1, 2, 1, memcpy("m", 5, 10)))),
    (1, host("memset inside", made.USER_DEFINED, 10, 20)),
    (1, host("backward", made.USER_DEFINED, 20, 30)),
    (1, host("mine", made.RANGE, 30, 50, call("c", 31, 32, 2, kernel("k", 40, 60)))),
]


def names(text):
    return [line.split("  ")[0] for line in text.splitlines() if " / " in line][1:]


def test_ranges_that_move_memory_by_their_name(tree):
    text = memory_manipulation_summary(tree(thread(*NODES)), "ns")
    assert names(text) == ["memset inside", "my MemCpy"]
    assert "10.00 / 10.00 / 10.00 / 10.00 / 10.00" in text
    assert "5.00 / 5.00 / 5.00 / 5.00 / 20.00" in text
    assert text.splitlines()[-3].startswith("----")


def test_the_programs_own_ranges(tree):
    other = thread((0, host("theirs", made.RANGE, 0, 5, tid=2)), tid=2)
    found = tree(thread(*NODES), other)
    text = user_defined_summary(found, "ns", "CPUTotal", thread_sep=False)
    assert names(text) == ["mine", "theirs"]
    assert "Thread: All threads merged" in text
    assert text.endswith("     \n\n\n")  # without a rule behind the last row
    apart = user_defined_summary(found, "ns", "CPUTotal", thread_sep=True)
    assert apart.index("Thread: 2") < apart.index("theirs") < apart.index("Thread: 7") < apart.index("mine")


def test_without_ranges_there_are_no_tables(tree):
    found = tree(thread(NODES[0]))
    assert (
        memory_manipulation_summary(found, "ns") == user_defined_summary(found, "ns", "GPUMin", thread_sep=True) == ""
    )


def kernel_names(text):
    return [line.split("  ")[0] for line in text.splitlines() if " / " in line][1:]


def test_kernels_by_their_whole_name_even_those_outside_any_host_event(tree):
    launches = call("c", 1, 2, 1, kernel("f<A>(int)", 0, 9), kernel("f<A>(long)", 10, 14), memcpy("m", 20, 90))
    found = tree(
        thread((0, host("op", made.OPERATOR, 0, 50, launches)), root=call("c", 0, 1, 2, kernel("free", 50, 61)))
    )
    text = kernel_summary(found, "ns", "CPUMin")
    assert kernel_names(text) == ["free", "f<A>", "f<A>"]
    assert "11.00 / 11.00 / 11.00 / 11.00 / 45.83" in text
    assert kernel_names(kernel_summary(found, "ns", "GPUMin")) == ["f<A>", "f<A>", "free"]


def test_without_kernels_there_is_no_table(tree):
    assert kernel_summary(tree(thread((0, host("op", made.OPERATOR, 0, 50)))), "ns", "CPUTotal") == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("void f<int>(int*, int)", "void f<int>"),
        ("f(int)", "f(int)"),
        ("f<a>(b<c>(d))", "f<a>(b<c>"),
        ("x" * 91, "x" * 87 + "..."),
        ("x" * 90, "x" * 90),
    ],
)
def test_parameters_go_and_long_names_are_cut(name, shown):
    assert _shown(name) == shown


A, F, R = made.ALLOCATE, made.FREE, made.RESERVED_ALLOCATE


def memory_text(trace, *nodes):
    found = trace(thread(*nodes))
    return memory_summary(tree_of(found), found.allocations, found.reservations)


def rows(text):
    return [line.split() for line in text.splitlines() if " Allocated  " in line or " Reserved  " in line]


def test_an_operator_has_what_its_children_did_and_they_have_it_too_but_phases(trace):
    text = memory_text(
        trace,
        (0, host("op", made.OPERATOR, 0, 50, memory(A, 40, 1, peak=9, peak_reserved=20))),
        (1, host("launch", made.LAUNCH, 1, 20, memory(A, 5, 10, peak=11), memory(F, 6, -4), memory(F, 7, 0))),
        (1, host("phase", made.INNER, 20, 30, memory(A, 25, 100))),
        (3, host("deeper", made.LAUNCH, 21, 22, memory(A, 21, 1000), memory(R, 21, 4096))),
    )
    assert rows(text) == [
        ["deeper", "Allocated", "1", "0", "1000", "0", "1000"],
        ["op", "Allocated", "3", "2", "111", "4", "107"],
        ["launch", "Allocated", "1", "2", "10", "4", "6"],
        ["deeper", "Reserved", "1", "0", "4096", "0", "4096"],
    ]
    assert "Summary - Place(gpu:0)" in text
    assert "\nPeak Allocated Memory: 11\nPeak Reserved Memory: 20\n" in text


def test_a_table_for_each_place_in_which_tensors_were(trace):
    text = memory_text(
        trace,
        (0, host("a", made.RANGE, 0, 9, memory(R, 1, 64, place="Place(gpu:1)"))),
        (0, host("b", made.RANGE, 9, 20, memory(A, 10, 8, place="Place(cpu)"), memory(A, 11, 4, place="Place(gpu:0)"))),
    )
    assert [line.strip("- ") for line in text.splitlines() if "Memory Summary" in line] == [
        "Memory Summary - Place(cpu)", "Memory Summary - Place(gpu:0)",
    ]  # fmt: skip


def test_without_memory_events_there_is_no_table(trace):
    assert memory_text(trace, (0, host("a", made.RANGE, 0, 9))) == ""


def test_what_hangs_on_no_host_event_is_not_counted(trace):
    found = trace(thread((0, host("a", made.RANGE, 0, 9)), root=memory(A, 1, 64)))
    assert found.allocations.height == 1
    assert memory_summary(tree_of(found), found.allocations, found.reservations) == ""
