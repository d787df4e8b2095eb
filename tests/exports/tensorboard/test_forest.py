from __future__ import annotations

import numpy as np
from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard import _forest
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import costs_of, grow
from stepscope.exports.tensorboard._names import uses_tensor_cores


def grown(*events, **meta):
    seen = read_events(read(list(events), **meta))
    launches = find_launches(seen)
    return seen, launches, grow(seen, launches)


def name(forest, node):
    return forest.names[forest.name[node]] if node >= 0 else None


def parents(forest):
    """Name of each node's parent."""
    return [(name(forest, i), name(forest, p)) for i, p in enumerate(forest.parent.tolist())]


def claims(seen, launches, forest):
    pairs = zip(forest.claim_call, forest.claim_node, strict=True)
    return sorted((seen.names[seen.name[launches.calls[c]]], name(forest, n)) for c, n in pairs)


def costs(*events, **meta):
    """Costs of each node by name."""
    seen, launches, forest = grown(*events, **meta)
    found = costs_of(seen, launches, forest, seen.where(uses_tensor_cores, launches.work))
    keys = ("host_self", "host_total", "device_self", "device_total")
    return {name(forest, i): tuple(getattr(found, k)[i] for k in keys) for i in range(forest.row.size)}


def test_each_thread_has_a_tree_in_order_of_its_first_event():
    _, _, forest = grown(op("late", 5, 1, tid=1), op("outer", 0, 9, tid=2), op("inner", 1, 2, tid=2))
    assert parents(forest) == [
        ("CallTreeRoot", None), ("outer", "CallTreeRoot"), ("inner", "outer"), ("CallTreeRoot", None),
        ("late", "CallTreeRoot"),
    ]  # fmt: skip
    assert (forest.start.tolist()[0], forest.end.tolist()[0]) == (0, 9)


def test_nodes_are_operators_steps_modules_loading_optimizers_and_collectives_but_no_other_ranges():
    _, _, forest = grown(
        x("ProfilerStep#1", 0, 99, "user_annotation"), x("my range", 1, 1, "user_annotation"),
        x("Optimizer.step#SGD.step", 3, 2, "user_annotation"), x("nccl:all_reduce", 6, 1, "user_annotation"),
        op("enumerate(DataLoader)#a.__next__", 8, 1), op("Optimizer.zero_grad#SGD.zero_grad", 10, 1),
        x("nn.Module: A_0", 12, 3, "python_function", Python_id=1, Python_module_id=0), op("aten::mm", 13, 1),
        op("DataParallel.forward", 16, 1), x("f.py(1): g", 18, 1, "python_function", Python_id=2),
        x("PythonOp", 20, 1, "python"),
    )  # fmt: skip
    roles = {name(forest, i): r for i, r in enumerate(forest.role.tolist())}
    assert roles == {
        "CallTreeRoot": _forest.ROOT, "ProfilerStep#1": _forest.STEP_NODE,
        "Optimizer.step#SGD.step": _forest.OPTIMIZER, "nccl:all_reduce": _forest.PLAIN,
        "enumerate(DataLoader)#a.__next__": _forest.LOADING, "Optimizer.zero_grad#SGD.zero_grad": _forest.PLAIN,
        "nn.Module: A_0": _forest.MODULE_NODE, "aten::mm": _forest.PLAIN, "DataParallel.forward": _forest.PLAIN,
        "PythonOp": _forest.PLAIN,
    }  # fmt: skip
    assert [name(forest, i) for i in np.flatnonzero(forest.is_op)] == ["aten::mm"]


def test_the_first_operator_of_an_id_has_all_its_calls_wherever_they_run():
    seen, launches, forest = grown(
        op("a", 0, 3, External_id=4), op("b", 5, 3, External_id=4), call("c", 6, 1, 1, External_id=4),
        call("d", 20, 1, 2, tid=9, External_id=4), call("lost", 22, 1, 3, External_id=5),
    )  # fmt: skip
    assert claims(seen, launches, forest) == [("c", "a"), ("d", "a")]


def test_what_has_no_id_has_the_calls_without_one_but_modules_claim_nothing_else():
    module = x("nn.Module: A_0", 0, 9, "python_function", Python_id=1, Python_module_id=0, External_id=7)
    seen, launches, forest = grown(
        module, op("a", 1, 2, External_id=7), call("c", 1, 1, 1), call("d", 3, 1, 2, External_id=7)
    )
    assert claims(seen, launches, forest) == [("c", "nn.Module: A_0"), ("d", "a")]


def test_calls_of_id_zero_belong_to_their_threads_root_too():
    seen, launches, forest = grown(
        op("a", 0, 9, External_id=0), call("c", 1, 1, 1, External_id=0), call("d", 2, 1, 2, tid=8, External_id=0)
    )
    assert claims(seen, launches, forest) == [("c", "CallTreeRoot"), ("c", "a"), ("d", "a")]


def test_kernels_without_a_call_lie_under_threads_with_steps():
    _, _, forest = grown(op("ProfilerStep#1", 0, 9), op("a", 1, 1, tid=2), kernel("k", 5, 1, 3))
    assert [forest.row[i] for i in forest.loose] == [-1]
    assert forest.loose.tolist() == [0]


def test_an_operator_takes_over_from_its_only_child_of_the_same_name():
    seen, launches, forest = grown(
        op("a", 0, 20, External_id=1), op("a", 1, 18, External_id=2), op("a", 2, 16, External_id=3), op("b", 3, 2),
        call("outer", 0, 1, 1, External_id=1), call("mid", 1, 1, 2, External_id=2), call("in", 8, 1, 3, External_id=3),
    )  # fmt: skip
    assert parents(forest) == [("CallTreeRoot", None), ("a", "CallTreeRoot"), ("b", "a")]
    assert claims(seen, launches, forest) == [("in", "a")]


def test_two_children_of_the_same_name_stay():
    _, _, forest = grown(op("a", 0, 20), op("a", 1, 2), op("a", 5, 2))
    assert parents(forest)[1:] == [("a", "CallTreeRoot"), ("a", "a"), ("a", "a")]


def test_what_overlaps_its_neighbour_is_dropped_with_its_calls():
    seen, launches, forest = grown(
        op("a", 0, 10, External_id=1), op("over", 5, 10, External_id=2), call("c", 6, 1, 1, External_id=2)
    )
    assert parents(forest) == [("CallTreeRoot", None), ("a", "CallTreeRoot")]
    assert claims(seen, launches, forest) == []


def test_own_time_is_without_children_and_calls_and_device_time_adds_up():
    found = costs(
        op("a", 0, 20, External_id=1), op("b", 2, 8, External_id=2), call("c", 3, 2, 1, External_id=2),
        call("d", 12, 1, 2, External_id=1), kernel("k", 30, 4, 1), kernel("l", 40, 5, 2),
    )  # fmt: skip
    assert found["a"] == (20 - 8 - 1, 20, 5, 9)
    assert found["b"] == (8 - 2, 8, 4, 4)


def test_own_time_goes_below_zero_where_calls_run_elsewhere():
    assert costs(op("a", 0, 2, External_id=1), call("c", 9, 5, 1, External_id=1))["a"][0] == -3


def test_a_module_owns_the_device_time_of_its_direct_operators():
    module = x("nn.Module: A_0", 0, 20, "python_function", Python_id=1, Python_module_id=0)
    found = costs(
        module, op("a", 1, 5, External_id=1), op("b", 2, 2, External_id=2), call("c", 2, 1, 1, External_id=2),
        kernel("k", 30, 4, 1),
    )  # fmt: skip
    assert found["nn.Module: A_0"][2:] == (4, 4)
    assert found["a"][2:] == (0, 4)


def test_operators_are_eligible_by_name_by_their_kernels_and_by_their_children():
    seen, launches, forest = grown(
        op("outer", 0, 50), op("mine", 1, 9, External_id=1), call("c", 2, 1, 1, External_id=1),
        kernel("volta_h884gemm", 60, 4, 1), op("aten::mm", 20, 2), op("aten::add", 30, 2),
    )  # fmt: skip
    found = costs_of(seen, launches, forest, seen.where(uses_tensor_cores, launches.work))
    eligible = {name(forest, i): bool(e) for i, e in enumerate(found.eligible)}
    assert eligible == {
        "CallTreeRoot": False, "outer": True, "mine": True, "aten::mm": True, "aten::add": False,
    }  # fmt: skip
    assert found.tc_total.tolist()[1:3] == [4, 4]


def test_calls_inside_calls_count_once_on_an_mlu():
    calls = [
        x(n, ts, dur, "mlu_runtime", correlation=c, External_id=1)
        for n, ts, dur, c in (("cnnl", 1, 6, 1), ("cnInvoke", 2, 2, 2), ("late", 6, 4, 3), ("cn", 7, 3, 4))
    ]
    assert costs(op("a", 0, 20, External_id=1), *calls, kernel("k", 30, 1, 1))["a"][0] == 20 - 6 - 4


def test_nothing_on_the_host_is_no_tree():
    _, _, forest = grown(kernel("k", 0, 1, 1), x("other", 1, 1, "overhead"))
    assert forest.row.size == forest.loose.size == 0
