from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, x
from hung_trees import first_trees, link, module, outline, root, trees

from stepscope.exports.tensorboard._backward import looked_up, ranges
from stepscope.exports.tensorboard._forest import BACKWARD

# Two layers in a model, their backward on another thread while the main one waits.
FORWARD = (
    module("Net", 10, 40, 1), module("A", 11, 15, 2, 1), op("aten::mm", 12, 10),
    module("B", 30, 15, 3, 1, ident=1), op("aten::relu", 32, 10),
)  # fmt: skip
WAIT = op("aten::wait", 60, 40)
BACKWARD_ROOTS = (
    root("ReluBackward0", 62, 8), op("ReluBackward0", 63, 6, tid=2, External_id=5),
    root("MmBackward0", 75, 10), op("MmBackward0", 76, 8, tid=2, External_id=6),
)  # fmt: skip
LINKS = (*link(1, 12, 76), *link(2, 32, 63))


def node_of(forest, name):
    (node,) = np.flatnonzero(forest.name == forest.names.index(name))
    return node


def test_backward_operators_hang_below_their_modules_where_their_time_falls_in_the_main_thread():
    _, forest, _ = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *LINKS)
    assert outline(forest) == [
        "root", ".Net", "..A", "...aten::mm", "..B", "...aten::relu", ".aten::wait", "..Net.backward", "...B.backward",
        "....eval ReluBackward0", ".....ReluBackward0", "...A.backward", "....eval MmBackward0", ".....MmBackward0",
    ]  # fmt: skip


def test_a_backward_node_lasts_from_its_first_child_to_the_end_of_the_one_that_starts_last():
    _, forest, costs = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *LINKS)
    found = {
        forest.names[forest.name[i]]: (forest.start[i], forest.end[i]) for i in np.flatnonzero(forest.role == BACKWARD)
    }
    assert found == {
        "nn.Module: Net.backward": (62, 85), "nn.Module: B.backward": (62, 70), "nn.Module: A.backward": (75, 85),
    }  # fmt: skip
    net = node_of(forest, "nn.Module: Net.backward")
    assert (costs.host_total[net], costs.host_self[net]) == (23, 23 - 8 - 10)
    assert (forest.row[net], forest.is_op[net], forest.thread[net]) == (-1, False, forest.thread[net + 2])


def test_device_work_moves_with_its_operators_but_steps_keep_what_they_had():
    launched = (
        call("c", 64, 1, 1, tid=2, External_id=5), kernel("k", 80, 7, 1),
        call("c", 77, 1, 2, tid=2, External_id=6), kernel("volta_h884gemm", 90, 5, 2),
    )  # fmt: skip
    step = x("ProfilerStep#1", 0, 200, "user_annotation", tid=2)
    _, forest, costs = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *LINKS, *launched, step)
    found = {forest.names[forest.name[i]]: costs.device_total[i] for i in range(forest.row.size) if forest.row[i] < 0}
    assert found["nn.Module: Net.backward"] == 12
    assert found["nn.Module: A.backward"] == 5
    assert costs.device_total[node_of(forest, "ProfilerStep#1")] == 12
    net, relu = node_of(forest, "nn.Module: Net.backward"), node_of(forest, "nn.Module: B.backward")
    assert (costs.device_self[net], costs.tc_total[net], costs.eligible[net], costs.eligible[relu]) == (
        0,
        5,
        True,
        False,
    )
    held = [forest.names[forest.name[i]] for i in forest.claim_node]
    assert sorted(zip(forest.claim_call.tolist(), held, strict=True)) == [(0, "ReluBackward0"), (1, "MmBackward0")]


def test_roots_whose_forward_lies_in_no_module_vanish_and_so_do_threads_without_anything_left():
    _, forest, costs = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *link(1, 12, 76), *link(2, 3, 63), op("free", 3, 2))
    assert outline(forest) == [
        "root", ".free", ".Net", "..A", "...aten::mm", "..B", "...aten::relu", ".aten::wait", "..Net.backward",
        "...A.backward", "....eval MmBackward0", ".....MmBackward0",
    ]  # fmt: skip
    assert costs.host_total.size == len(forest.row)


def test_gradients_are_accumulated_with_the_operator_before_them():
    accumulate = root("torch::autograd::AccumulateGrad", 71, 2)
    _, forest, _ = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, accumulate, *LINKS)
    below = outline(forest)[outline(forest).index("...B.backward") :]
    assert below[1:4] == ["....eval ReluBackward0", ".....ReluBackward0", "....eval torch::autograd::AccumulateGrad"]


def test_gradients_accumulated_first_of_all_belong_to_nothing():
    accumulate = root("torch::autograd::AccumulateGrad", 60, 1)
    _, forest, _ = trees(*FORWARD, WAIT, accumulate, *BACKWARD_ROOTS, *LINKS)
    assert "AccumulateGrad" not in " ".join(outline(forest))
    assert "....eval ReluBackward0" in outline(forest)


def test_roots_of_one_parent_come_together_when_gradients_are_glued():
    # The accumulation after the step follows, on its level, the root before the step.
    step = x("ProfilerStep#1", 62, 10, "user_annotation", tid=2)
    inner = (root("ReluBackward0", 63, 4), op("ReluBackward0", 64, 2, tid=2))
    outer = (root("MmBackward0", 55, 5), op("MmBackward0", 56, 3, tid=2))
    accumulate = root("torch::autograd::AccumulateGrad", 75, 2)
    _, forest, _ = trees(*FORWARD, WAIT, step, *inner, *outer, accumulate, *link(1, 12, 56), *link(2, 32, 64))
    assert outline(forest)[-7:] == [
        "...A.backward", "....eval MmBackward0", ".....MmBackward0", "....eval torch::autograd::AccumulateGrad",
        "...B.backward", "....eval ReluBackward0", ".....ReluBackward0",
    ]  # fmt: skip


def test_operators_that_start_together_bring_the_backward_once_each():
    twins = (module("A", 10, 30, 1), op("aten::linear", 12, 20), op("aten::mm", 12, 10))
    launched = (call("c", 77, 1, 2, tid=2, External_id=6), kernel("k", 90, 5, 2))
    _, forest, costs = trees(*twins, WAIT, *BACKWARD_ROOTS, *launched, *link(1, 12, 76))
    assert outline(forest)[5:] == [
        "..A.backward", "...eval MmBackward0", "....MmBackward0", "...eval MmBackward0", "....MmBackward0",
    ]  # fmt: skip
    assert costs.device_total[node_of(forest, "nn.Module: A.backward")] == 10
    assert forest.claim_node.tolist() == [7, 9]


def test_the_last_arrow_from_one_start_counts():
    _, forest, _ = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *link(1, 32, 76), *link(2, 32, 63))
    assert outline(forest)[-2:] == ["....eval ReluBackward0", ".....ReluBackward0"]
    assert "....eval MmBackward0" not in outline(forest)


def test_a_root_goes_to_the_first_forward_that_claims_it():
    _, forest, _ = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *link(1, 12, 76), *link(2, 32, 76))
    assert outline(forest)[-4:] == ["..Net.backward", "...A.backward", "....eval MmBackward0", ".....MmBackward0"]


def test_an_arrow_may_end_deep_below_its_root_or_nowhere():
    deep = (op("aten::mul", 63, 5, tid=2), op("aten::mul_", 64, 3, tid=2))
    events = (*FORWARD, WAIT, root("ReluBackward0", 62, 8), op("ReluBackward0", 63, 6, tid=2), *deep)
    _, forest, _ = trees(*events, *link(1, 12, 9999), *link(2, 32, 64))
    assert outline(forest)[-4:] == [
        "....eval ReluBackward0",
        ".....ReluBackward0",
        "......aten::mul",
        ".......aten::mul_",
    ]


def test_a_root_within_a_root_stays_where_it_is():
    events = (
        *FORWARD, WAIT, root("CheckpointBackward", 62, 20), op("CheckpointBackward", 63, 18, tid=2),
        root("MmBackward0", 65, 9), op("MmBackward0", 66, 5, tid=2),
    )  # fmt: skip
    _, forest, _ = trees(*events, *link(1, 12, 66), *link(2, 32, 63))
    assert outline(forest)[-6:] == [
        "..Net.backward", "...B.backward", "....eval CheckpointBackward", ".....CheckpointBackward",
        "......eval MmBackward0", ".......MmBackward0",
    ]  # fmt: skip


def test_modules_inside_an_operator_get_no_backward_of_their_own():
    inside = (op("outer", 5, 40), module("A", 10, 30, 1), op("aten::mm", 12, 10))
    _, forest, _ = trees(
        *inside, module("B", 50, 9, 3), op("aten::relu", 52, 5), WAIT, *BACKWARD_ROOTS, *link(1, 12, 76)
    )
    assert outline(forest) == ["root", ".outer", "..A", "...aten::mm", ".B", "..aten::relu", ".aten::wait"]


def test_nothing_changes_without_arrows_modules_or_backward_operators():
    for events in (
        (*FORWARD, *BACKWARD_ROOTS),
        (*FORWARD, *BACKWARD_ROOTS, *link(1, 12, 76, cat="async")),
        (op("aten::mm", 12, 10), *BACKWARD_ROOTS, *link(1, 12, 76)),
        (*FORWARD, *link(1, 12, 76)),
    ):
        _, before, _ = first_trees(*events)
        _, after, _ = trees(*events)
        assert outline(after) == outline(before)
        assert "Net.backward" not in " ".join(outline(after))


def test_all_backward_operators_vanish_where_no_arrow_meets_any():
    _, forest, _ = trees(*FORWARD, WAIT, *BACKWARD_ROOTS, *link(1, 12, 9999))
    assert outline(forest) == ["root", ".Net", "..A", "...aten::mm", "..B", "...aten::relu", ".aten::wait"]


def test_arrows_of_the_older_category_count_on_mlu_only():
    mlu = {"deviceProperties": [{"id": 0, "name": "MLU370", "totalMem(MiB)": 1}]}
    events = (*FORWARD, WAIT, *BACKWARD_ROOTS, *link(1, 12, 76, cat="forward_backward"))
    assert "..Net.backward" not in outline(trees(*events)[1])
    launched = x("k", 200, 1, "kernel", pid=0, tid=1, device=0, correlation=1)
    assert "..Net.backward" in outline(trees(*events, launched, **mlu)[1])


def test_looking_up_in_nothing_finds_nothing():
    empty = np.empty(0, np.int64)
    assert looked_up(empty, empty, np.array([1, 2])).tolist() == [-1, -1]
    assert looked_up(np.array([1, 4]), np.array([7, 8]), np.array([0, 4, 5])).tolist() == [-1, 8, -1]


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
