from __future__ import annotations

import paddle_profiles as made
from paddle_profiles import host, memory, thread

from stepscope.exports.paddle_summary._memory import memory_summary
from stepscope.exports.paddle_summary._tree import tree_of

A, F, R = made.ALLOCATE, made.FREE, made.RESERVED_ALLOCATE


def shown(trace, *nodes):
    found = trace(thread(*nodes))
    return memory_summary(tree_of(found), found.allocations, found.reservations)


def rows(text):
    return [line.split() for line in text.splitlines() if " Allocated  " in line or " Reserved  " in line]


def test_an_operator_has_what_its_children_did_and_they_have_it_too_but_phases(trace):
    text = shown(
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
    text = shown(
        trace,
        (0, host("a", made.RANGE, 0, 9, memory(R, 1, 64, place="Place(gpu:1)"))),
        (0, host("b", made.RANGE, 9, 20, memory(A, 10, 8, place="Place(cpu)"), memory(A, 11, 4, place="Place(gpu:0)"))),
    )
    assert [line.strip("- ") for line in text.splitlines() if "Memory Summary" in line] == [
        "Memory Summary - Place(cpu)", "Memory Summary - Place(gpu:0)",
    ]  # fmt: skip


def test_without_memory_events_there_is_no_table(trace):
    assert shown(trace, (0, host("a", made.RANGE, 0, 9))) == ""


def test_what_hangs_on_no_host_event_is_not_counted(trace):
    found = trace(thread((0, host("a", made.RANGE, 0, 9)), root=memory(A, 1, 64)))
    assert found.allocations.height == 1
    assert memory_summary(tree_of(found), found.allocations, found.reservations) == ""
