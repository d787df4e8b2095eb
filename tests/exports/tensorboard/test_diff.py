from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, x
from hung_trees import link, module, root, trees

from stepscope.exports.tensorboard._diff import diff

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def step(number, ts, dur):
    return x(f"ProfilerStep#{number}", ts, dur, "user_annotation")


def differences(left, right):
    return diff(trees(*left)[1:], trees(*right)[1:])


def names(found):
    """Names on both sides of each pair, and of what is below it."""
    return found["left"]["name"], found["right"]["name"], [names(inner) for inner in found["children"]]


def row(name, calls, *durations):
    keys = ("host_duration", "device_duration", "self_host_duration", "self_device_duration")
    return {"name": name, "calls": calls, **dict(zip(keys, durations, strict=True))}


LEFT = (
    step(1, 0, 1000), op(NEXT, 10, 100), op("aten::to", 15, 20), op("aten::mm", 200, 100, External_id=1),
    call("c", 210, 5, 1, External_id=1), kernel("gemm", 250, 120, 1),
    x("Optimizer.step#SGD.step", 500, 200, "user_annotation"), op("aten::add_", 510, 50), op("aten::item", 800, 30),
    op("outside", 2000, 5),
)  # fmt: skip
RIGHT = (
    step(1, 0, 500), op(NEXT, 10, 300), op("aten::relu", 320, 10), op("aten::mm", 350, 50),
    step(2, 500, 500), x("Optimizer.step#SGD.step", 500, 100, "user_annotation"), op("aten::add_", 510, 40),
)  # fmt: skip


def test_lists_are_cut_at_data_loading_and_optimizers_and_compared_side_by_side():
    found = differences(LEFT, RIGHT)
    assert names(found) == (
        "CompositeNodes", "CompositeNodes",
        [
            (NEXT, NEXT, []),
            ("aten::mm", "CompositeNodes", []),
            ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step", []),
            ("aten::item", "Blank", []),
        ],
    )  # fmt: skip
    assert found["children"][1] == {
        "left": {
            "name": "aten::mm", "duration": 100, "device_duration": 120, "total_duration": 120,
            "aggs": [row("aten::mm", 1, 100, 120, 95, 120)],
        },
        "right": {
            "name": "CompositeNodes", "duration": 60, "device_duration": 0, "total_duration": 60,
            "aggs": [row("aten::relu", 1, 10, 0, 10, 0), row("aten::mm", 1, 50, 0, 50, 0)],
        },
        "children": [],
    }  # fmt: skip
    assert found["children"][3]["right"] == {
        "name": "Blank", "duration": 0, "device_duration": 0, "total_duration": 0, "aggs": [],
    }  # fmt: skip


def test_a_list_s_time_is_that_of_the_device_for_each_node_that_used_it_and_of_the_host_for_all_others():
    found = differences(LEFT, RIGHT)["left"]
    assert (found["duration"], found["device_duration"], found["total_duration"]) == (430, 120, 450)
    assert [agg["name"] for agg in found["aggs"]] == ["aten::to", "aten::mm", "aten::add_", "aten::item"]


def test_operators_come_children_first_and_once_per_name():
    side = (op("aten::linear", 0, 20), op("aten::mm", 1, 10), op("aten::mm", 30, 4), op("aten::linear", 40, 5))
    assert differences(side, side)["left"]["aggs"] == [
        row("aten::mm", 2, 14, 0, 14, 0),
        row("aten::linear", 2, 25, 0, 15, 0),
    ]


def test_without_steps_all_of_the_first_thread_is_compared():
    side = (op("a", 0, 10), op("b", 20, 10), op("other thread", 5, 9, tid=2))
    assert names(differences(side, side[:1])) == ("CompositeNodes", "a", [])


def test_matches_keep_their_order():
    left = (module("A", 0, 9, 1), module("B", 10, 9, 2), module("A", 20, 9, 3), op("a", 30, 5))
    right = (module("B", 0, 9, 1), module("A", 10, 9, 2), op("a", 30, 5))
    assert names(differences(left, right))[2] == [
        ("Blank", "nn.Module: B", []), ("nn.Module: A", "nn.Module: A", []), ("CompositeNodes", "a", []),
    ]  # fmt: skip


def test_what_is_inside_two_nodes_alone_on_their_sides_is_compared_whatever_their_names():
    left = (op("a", 0, 50), module("A", 1, 20, 1), op("x", 2, 5))
    right = (op("b", 0, 50), op("y", 1, 2), module("A", 10, 20, 1), op("x", 12, 5))
    found = differences(left, right)
    assert names(found) == ("a", "b", [("Blank", "y", []), ("nn.Module: A", "nn.Module: A", [])])
    assert found["left"]["aggs"] == [row("x", 1, 5, 0, 5, 0), row("a", 1, 50, 0, 30, 0)]
    assert [agg["name"] for agg in found["right"]["aggs"]] == ["y", "x", "b"]


def test_backward_nodes_match_each_other():
    side = (
        step(1, 0, 100), module("A", 1, 20, 1), op("aten::mm", 2, 9), op("wait", 30, 60),
        root("MmBackward0", 40, 20), op("MmBackward0", 41, 10, tid=2), *link(1, 2, 41),
    )  # fmt: skip
    backward = "nn.Module: A.backward"
    assert names(differences(side, side))[2] == [
        ("nn.Module: A", "nn.Module: A", []), ("wait", "wait", [(backward, backward, [])]),
    ]  # fmt: skip


def test_lightning_s_modules_are_not_matched():
    meta = {"Framework": "pytorch-lightning"}
    side = trees(op("[pl][module]L: net", 0, 9), op("a", 1, 2), op("b", 20, 9), **meta)[1:]
    assert diff(side, side)["children"] == []


def test_a_side_without_host_work_is_blank():
    assert names(differences((kernel("k", 0, 1, 1),), (op("a", 0, 1),))) == ("Blank", "a", [])
    assert names(differences((kernel("k", 0, 1, 1),), (kernel("k", 0, 1, 1),))) == ("Blank", "Blank", [])


@pytest.mark.slow
def test_any_depth_and_many_equal_names_are_fine():
    n = 1500
    deep = [module(f"M{i}", i, 2 * n - 2 * i, i + 1, i) for i in range(n)]
    found, depth = differences(deep, deep), 0
    while found["children"]:
        (found,), depth = found["children"], depth + 1
    assert depth == n - 1
    flat = [op(NEXT, 10 * i, 5) for i in range(n)]
    assert len(differences(flat, flat)["children"]) == n
    assert np.isfinite(depth)
