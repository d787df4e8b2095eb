from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, x
from hung_trees import link, module, outline, root, trees

from stepscope.exports.tensorboard._grafts import ranges

LAYERS = (
    module("A", 0, 9, 1), op("aten::a", 1, 2), module("B", 10, 9, 2), op("aten::b", 11, 2),
    module("C", 20, 9, 3), op("aten::c", 21, 2),
)  # fmt: skip
FORWARDS = (1, 11, 21)


def backward(*starts, dur=10, tid=2):
    """Roots of that length that start then, each with one operator, and their arrows from the layers in turn."""
    events = []
    for i, (start, forward) in enumerate(zip(starts, FORWARDS, strict=False)):
        events += [root(f"r{i}", start, dur, tid=tid), op("r", start + 1, dur - 2, tid=tid)]
        events += link(i, forward, start + 1)
    return events


def placed(*events):
    """The outline without what lies below modules and backward roots."""
    found = outline(trees(*LAYERS, *events)[1])
    return [line for line in found if line.strip(".")[:6] not in ("aten::", "eval r", "r")]


def test_ranges_of_numbers():
    assert ranges(np.array([7, 2, 5]), np.array([2, 3, 0])).tolist() == [7, 8, 2, 3, 4]
    assert ranges(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((op("x", 40, 60), *backward(50)), ["..A.backward"]),
        ((op("x", 40, 60), op("y", 45, 20), *backward(50)), ["..y", "...A.backward"]),
        ((op("x", 40, 60), op("y", 65, 20), *backward(50)), ["..A.backward", "..y"]),
        ((op("x", 40, 60), op("y", 41, 9), *backward(50)), ["..y", "..A.backward"]),
        ((op("x", 40, 60), op("y", 55, 30), *backward(50)), ["..y", "...A.backward"]),
        ((op("x", 40, 60), op("y", 41, 5), *backward(50, 70)), ["..y", "..A.backward", "..B.backward"]),
        ((op("x", 40, 60), op("y", 45, 20), *backward(50, 70)), ["..y", "...A.backward", "..B.backward"]),
        ((op("x", 40, 60), op("y", 45, 20), *backward(50, 65)), ["..y", "...A.backward", "...B.backward"]),
        ((op("x", 40, 60), op("y", 45, 20), op("z", 70, 9), *backward(50, 71)),
         ["..y", "...A.backward", "..z", "...B.backward"]),
    ],
    ids=[
        "at the end of a leaf", "deeper inside", "before a child", "after a child that ends as it starts",
        "in a child that begins later", "one after the other", "out again", "in what ends as it starts", "out and in",
    ],
)  # fmt: skip
def test_a_backward_node_goes_down_into_what_it_overlaps(events, expected):
    assert placed(*events)[5:] == expected


def test_between_roots_of_the_tree_it_hangs_below_its_root():
    assert placed(op("x", 60, 9), *backward(40)) == ["root", ".A", ".B", ".C", ".A.backward", ".x"]


def test_outside_the_main_thread_s_range_it_vanishes():
    assert placed(op("x", 40, 60), *backward(50, 200, 300)) == ["root", ".A", ".B", ".C", ".x", "..A.backward"]
    late = [op("x", 140, 60, tid=3), x("ProfilerStep#1", 139, 70, "user_annotation", tid=3)]
    tree = placed(*late, *backward(50, 150))
    assert tree == ["root", ".A", ".B", ".C", "root", ".ProfilerStep#1", "..x", "...B.backward"]


def test_the_main_thread_is_the_last_with_steps():
    steps = [x("ProfilerStep#1", 0, 100 + tid, "user_annotation", tid=tid) for tid in (4, 3)]
    tree = placed(*steps, *backward(50))
    assert tree == ["root", ".A", ".B", ".C", "root", ".ProfilerStep#1", "root", ".ProfilerStep#1", "..A.backward"]


def test_without_steps_it_is_the_longest_thread_but_for_that_of_backward_operators():
    assert placed(op("x", 0, 90, tid=3), *backward(50, 900)) == ["root", ".A", ".B", ".C", "root", ".x", "..A.backward"]


def test_backward_operators_may_run_on_the_only_thread():
    assert placed(op("x", 60, 9), *backward(40, tid=1)) == ["root", ".A", ".B", ".C", ".A.backward", ".x"]


def test_work_of_id_zero_and_kernels_without_a_call_stay_with_roots_that_stay():
    lost = (call("c", 51, 1, 1, tid=2, External_id=0), kernel("k", 60, 1, 1))
    kept = (call("c", 45, 1, 2, External_id=0), kernel("k", 60, 1, 2), kernel("free", 70, 5, 3))
    step = x("ProfilerStep#1", 0, 100, "user_annotation")
    _, forest, _ = trees(*LAYERS, step, *lost, *kept, *backward(50))
    assert outline(forest)[0] == "root"
    assert (forest.claim_call.tolist(), forest.claim_node.tolist(), forest.loose.tolist()) == ([0], [0], [0])
