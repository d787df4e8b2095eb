from __future__ import annotations

import numpy as np
import pytest
from chrome_traces import call, kernel, op, x
from hung_trees import link, module, root, trees

from stepscope.exports.tensorboard._modules import module_view

KEYS = ("occurences", "operators", "host_duration", "self_host_duration", "device_duration", "self_device_duration")
LIGHTNING = {"Framework": "pytorch-lightning"}


def frame(ts, dur, python_id, around=0):
    return x("f.py(1): f", ts, dur, "python_function", Python_id=python_id, Python_parent_id=around)


def view(*events, **meta):
    return module_view(*trees(*events, **meta))


def nested(*events, **meta):
    """Names and ids of the modules with what is below them."""

    def inner(rows):
        return [(row["name"], row["id"], inner(row["children"])) for row in rows]

    found = view(*events, **meta)
    return inner(found[1]["data"])


def figures(row):
    return tuple(row[key] for key in KEYS)


def test_the_view_has_the_plugins_columns_and_keys():
    title, found = view(module("A", 0, 9, 1, ident=4), op("aten::mm", 1, 4))
    assert title == "Module"
    assert found == {
        "columns": [
            {"name": "Module Name", "type": "string", "key": "name"},
            {"name": "Occurences", "type": "number", "key": "occurences"},
            {"name": "Operators", "type": "number", "key": "operators"},
            {"name": "Host Total Time", "type": "number", "key": "host_duration"},
            {"name": "Host Self Time", "type": "number", "key": "self_host_duration"},
            {"name": "Device Total Time", "type": "number", "key": "device_duration"},
            {"name": "Device Self Time", "type": "number", "key": "self_device_duration"},
        ],
        "data": [
            {"name": "A", "id": 4, "occurences": 1, "operators": 1, "host_duration": 9, "self_host_duration": 5,
             "device_duration": 0, "self_device_duration": 0, "avg_duration": 9.0, "children": []},
        ],
    }  # fmt: skip
    assert list(found["data"][0])[-3:] == ["self_device_duration", "avg_duration", "children"]


def test_calls_of_one_module_are_summed_and_the_mean_is_that_of_the_device_if_it_was_used():
    _, found = view(
        module("Net", 0, 50, 1), module("A", 1, 20, 2, 1, ident=1), op("aten::linear", 2, 10, External_id=1),
        op("aten::mm", 3, 8, External_id=2), call("c", 4, 2, 1, External_id=2), kernel("k", 9, 30, 1),
        module("A", 30, 15, 3, 1, ident=1), op("aten::linear", 31, 5),
    )  # fmt: skip
    (net,) = found["data"]
    (layer, again) = net["children"]
    assert figures(net) == (1, 0, 50, 15, 30, 0)
    assert net["avg_duration"] == 30
    assert figures(layer) == (2, 2, 35, 20, 30, 30)
    assert layer["avg_duration"] == 15
    assert again == layer


def test_a_module_is_below_the_nearest_module_around_it_whatever_lies_between():
    assert nested(
        module("Net", 0, 50, 1), frame(1, 40, 2, 1), frame(2, 30, 3, 2), module("A", 3, 9, 4, 3, ident=1)
    ) == [("Net", 0, [("A", 1, [])])]  # fmt: skip


def test_equal_calls_are_one_and_different_ones_stay_apart_sorted_by_name():
    assert nested(
        module("Net", 0, 9, 1), module("A", 1, 2, 2, 1), module("Net", 10, 9, 3), module("A", 11, 2, 4, 3),
        module("Net", 20, 9, 5), module("Aux", 30, 9, 6),
    ) == [("Aux", 0, []), ("Net", 0, [("A", 0, [])]), ("Net", 0, [])]  # fmt: skip


def test_siblings_come_in_the_order_of_the_first_innermost_calls_below_them():
    # B begins first, but what is innermost in A comes first of all.
    assert nested(
        module("Net", 0, 90, 1), module("B", 1, 20, 2, 1), frame(30, 5, 4, 3), frame(40, 5, 5, 2),
        module("A", 50, 20, 3, 1),
    ) == [("Net", 0, [("A", 0, []), ("B", 0, [])])]  # fmt: skip


def test_of_calls_with_one_id_the_last_counts():
    assert nested(
        module("Net", 0, 90, 1), module("A", 1, 9, 2, 1), frame(2, 1, 3, 2), module("B", 20, 9, 4, 1),
        frame(21, 1, 3, 4),
    ) == [("Net", 0, [("B", 0, [])])]  # fmt: skip


def test_calls_that_enclose_each_other_do_no_harm_to_what_is_below():
    assert nested(module("A", 0, 9, 1, 2), module("B", 10, 9, 2, 1), module("C", 20, 9, 3, 2)) == [
        ("B", 0, [("C", 0, [])]),
    ]  # fmt: skip


def test_parents_that_come_later_are_found():
    assert nested(module("A", 0, 5, 2, 1), module("Net", 6, 9, 1)) == [("Net", 0, [("A", 0, [])])]


def test_calls_within_a_backward_operator_do_not_count_once_it_hangs_below_a_module():
    recomputed = module("A", 64, 5, 2, 9, tid=2)
    _, found = view(
        module("A", 0, 20, 1), op("aten::mm", 1, 9), op("wait", 50, 50),
        root("CheckpointBackward", 60, 20), op("CheckpointBackward", 61, 15, tid=2), recomputed, *link(1, 1, 61),
    )  # fmt: skip
    assert [figures(row)[:3] for row in found["data"]] == [(1, 1, 20)]


def test_a_module_that_is_no_node_shows_zeros():
    _, found = view(op("over", 0, 10), module("A", 5, 10, 1))
    assert [(row["name"], *figures(row), row["avg_duration"]) for row in found["data"]] == [("A", *[0] * 6, 0)]


def test_without_modules_there_is_no_view():
    assert view(op("aten::mm", 1, 9), frame(0, 20, 1)) is None
    assert view(op("aten::mm", 1, 9), module("A", 0, 20, 1), **LIGHTNING) is None


def test_calls_without_ids_form_no_hierarchy():
    assert view(x("nn.Module: A", 0, 9, "python_function", Python_module_id=0)) is None


def test_lightning_s_modules_nest_by_their_names():
    prefix = "[pl][module]torch.nn.modules."
    title, found = view(
        op("[pl][profile]run_training_batch", 5, 900, External_id=90),
        x("Optimizer.step#SGD", 10, 800, "user_annotation", External_id=91),
        op(prefix + "container.Sequential: net", 20, 300, External_id=1),
        op(prefix + "linear.Linear: net.0", 30, 100, External_id=2), op("aten::linear", 40, 50, External_id=3),
        op("aten::addmm", 45, 20, External_id=4), call("cudaLaunchKernel", 50, 5, 1, External_id=4),
        op(prefix + "activation.ReLU: net.1", 140, 60, External_id=5),
        call("cudaLaunchKernel", 150, 5, 2, External_id=5),
        op(prefix + "linear.LazyLinear: net.0", 400, 100, External_id=6),
        op(prefix + "loss.MSELoss: lost.loss", 500, 50, External_id=7),
        module("ignored", 600, 50, 1), kernel("gemm", 60, 30, 1), kernel("relu", 160, 20, 2), **LIGHTNING,
    )  # fmt: skip
    assert title == "Lightning"
    rows = {row["name"]: row for row in (*found["data"], *found["data"][1]["children"])}
    assert {name: (row["id"], *figures(row), row["avg_duration"]) for name, row in rows.items()} == {
        "lost.loss": (0, 1, 0, 50, 50, 0, 0, 50.0), "net": (0, 1, 0, 300, 140, 50, 0, 50.0),
        "net.0": (0, 2, 1, 200, 150, 30, 30, 15.0), "net.1": (0, 1, 0, 60, 55, 20, 20, 20.0),
    }  # fmt: skip
    assert [row["name"] for row in found["data"]] == ["lost.loss", "net"]
    assert [row["name"] for row in found["data"][1]["children"]] == ["net.0", "net.1"]


@pytest.mark.parametrize("n", [600])
def test_any_depth_is_fine(n):
    events = [module(f"M{i}", i, 2 * n - 2 * i, i + 1, i) for i in range(n)]
    _, found = view(*events)
    depth, rows = 0, found["data"]
    while rows:
        depth, rows = depth + 1, rows[0]["children"]
    assert depth == n
    assert np.isfinite(found["data"][0]["avg_duration"])
