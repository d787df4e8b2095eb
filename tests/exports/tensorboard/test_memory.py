from __future__ import annotations

import gc

import numpy as np
import polars as pl
import pytest
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard import _memory
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import grow
from stepscope.exports.tensorboard._json import shown
from stepscope.exports.tensorboard._memory import read_records

MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


def memory(ts, size, *, device=(0, -1), address=1, tid=1, total=None):
    """A memory event; `device` is the recorded type and index."""
    args = {"Device Type": device[0], "Device Id": device[1], "Addr": address, "Bytes": size}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 2 * total}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def recorded(*events, **meta):
    seen = read_events(read(list(events), **meta))
    forest = grow(seen, find_launches(seen))
    return seen, forest, _memory.read_records(seen, forest)


def stats(*events, **meta):
    return _memory.memory_stats(*recorded(*events, **meta))


def owners(*events):
    """The node that each record belongs to, by name."""
    _, forest, records = recorded(*events)
    return [None if i < 0 else forest.names[forest.name[i]] for i in records.node.tolist()]


def test_a_record_belongs_to_the_innermost_node_open_then():
    found = owners(
        op("outer", 10, 30), op("inner", 15, 5), op("empty", 22, 0), op("next", 50, 5),
        memory(9, 4), memory(10, 4), memory(15, 4), memory(19, 4), memory(20, 4), memory(22, 4), memory(40, 4),
        memory(50, 4), memory(55, 4),
    )  # fmt: skip
    assert found == [None, "outer", "inner", "inner", "outer", "outer", "CallTreeRoot", "next", None]


def test_threads_have_records_of_their_own():
    assert owners(op("a", 0, 10), op("b", 0, 10, tid=2), memory(5, 4), memory(5, 4, tid=2), memory(5, 4, tid=3)) == [
        "a", "b", None,
    ]  # fmt: skip


def test_a_trace_of_nothing_but_memory_has_records_without_owners():
    seen, forest, records = recorded(memory(7, 4), memory(3, 4))
    assert records.node.tolist() == [-1, -1]
    assert records.first_ts == 3
    assert _memory.memory_stats(seen, forest, records)["rows"] == {}


def test_time_begins_with_the_first_event_of_any_kind():
    _, _, records = recorded(op("a", 2, 10), memory(5, 4))
    assert records.first_ts == 2


def test_sizes_and_counts_are_an_operators_own_and_with_its_children():
    table = stats(op("outer", 0, 30), op("inner", 10, 10), memory(5, 1024), memory(15, 2048), memory(16, -1024))
    assert [column["name"] for column in table["columns"]] == [
        "Operator Name", "Calls", "Size Increase (KB)", "Self Size Increase (KB)", "Allocation Count",
        "Self Allocation Count", "Allocation Size (KB)", "Self Allocation Size (KB)",
    ]  # fmt: skip
    assert table["rows"] == {"CPU": [["inner", 1, 1.0, 1.0, 1, 1, 2.0, 2.0], ["outer", 1, 2.0, 1.0, 2, 1, 3.0, 1.0]]}
    assert table["metadata"]["default_device"] == "CPU"


def test_operators_that_changed_nothing_are_not_shown():
    assert stats(op("a", 0, 10), op("b", 20, 10), memory(5, 0), memory(25, 8))["rows"] == {
        "CPU": [["b", 1, 0.008, 0.008, 1, 1, 0.008, 0.008]]
    }


def test_a_device_on_which_nothing_changed_is_not_shown():
    table = stats(op("a", 0, 10), memory(5, 0, device=(1, 0)), memory(6, 512))
    assert list(table["rows"]) == ["CPU"]
    assert table["metadata"]["default_device"] == "CPU"


def test_what_modules_and_steps_allocate_themselves_counts_for_none_but_their_operators_do():
    table = stats(
        x("ProfilerStep#1", 0, 50, "user_annotation"), op("aten::mm", 10, 10), memory(5, 512), memory(15, 1024)
    )
    assert table["rows"] == {"CPU": [["aten::mm", 1, 1.0, 1.0, 1, 1, 1.0, 1.0]]}


def test_calls_inside_operators_without_records_are_not_counted():
    table = stats(
        op("outer", 0, 10), op("leaf", 2, 2), memory(3, 1024),
        op("outer", 20, 10), op("leaf", 22, 2),  # the second pair has no record
        op("leaf", 40, 2),
    )  # fmt: skip
    assert [row[:2] for row in table["rows"]["CPU"]] == [["leaf", 2], ["outer", 2]]


def test_devices_stand_in_order_of_the_first_operator_that_used_them():
    table = stats(
        op("outer", 0, 30), op("inner", 5, 5), memory(6, 1024, device=(1, 1)), memory(20, 1024, device=(1, 0)),
        memory(21, 1024),
    )  # fmt: skip
    assert list(table["rows"]) == ["GPU0", "CPU", "GPU1"]
    assert table["metadata"]["default_device"] == "GPU0"


def test_devices_are_called_as_their_vendor_does():
    hip = x("hipLaunchKernel", 0, 1, "cuda_runtime", correlation=1)
    assert list(stats(op("a", 0, 10), hip, memory(5, 512, device=(6, 0)))["rows"]) == ["GPU0"]
    table = stats(op("a", 0, 10), kernel("k", 20, 1, 1), memory(5, 512, device=(20, 0)), **MLU)
    assert list(table["rows"]) == ["MLU0"]
    assert table["metadata"]["default_device"] == "MLU0"


def test_memory_of_an_unknown_device_is_called_by_the_noun_alone():
    trace = read([op("a", 0, 10), memory(5, 512, device=(1, 0))])
    nowhere = trace.table("allocations").with_columns(device_id=pl.lit(None, pl.UInt32()))
    seen = read_events(trace.with_tables(allocations=nowhere))
    forest = grow(seen, find_launches(seen))
    records = _memory.read_records(seen, forest)
    assert list(_memory.memory_stats(seen, forest, records)["rows"]) == ["GPU"]


def test_the_first_device_shown_is_the_first_accelerator_by_name():
    seen, _, _ = recorded(op("a", 0, 10))
    assert _memory.default_device(seen, ["CPU", "GPU1", "GPU0"]) == "GPU0"
    assert _memory.default_device(seen, []) == "CPU"


def test_fractions_of_microseconds_are_compared_as_recorded():
    _, _, records = recorded(op("a", 0.125, 0.25), memory(0.25, 4), memory(0.375, 4))
    assert records.ts.dtype == np.float64
    assert (records.node >= 0).tolist() == [True, False]
    assert records.in_op.tolist() == [True, False]


CPU, GPU = (0, -1), (1, 0)
MB = 1 << 20


def alloc(ts, size, address=1, *, device=CPU, held=None, reserved=None, tid=1):
    args = {"Device Type": device[0], "Device Id": device[1], "Bytes": size}
    found = {"Addr": address, "Total Allocated": held, "Total Reserved": reserved}
    args |= {key: value for key, value in found.items() if value is not None}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def with_records(*events):
    seen = read_events(read(list(events)))
    forest = grow(seen, find_launches(seen))
    return seen, forest, read_records(seen, forest)


def curve(*events):
    seen, _, records = with_records(*events)
    return _memory.memory_curve(seen, records)


def blocks(*events):
    return _memory.memory_events(*with_records(*events))


def test_a_curve_is_drawn_in_steps_per_device():
    found = curve(
        op("a", 1000, 10), alloc(2000, 1, held=MB, reserved=2 * MB), alloc(3000, 1, held=3 * MB, reserved=4 * MB),
        alloc(2500, 1, device=GPU, held=MB, reserved=MB),
    )  # fmt: skip
    assert found["rows"] == {
        "CPU": [[1.0, 1.0, 2.0], [2.0, 1.0, 2.0], [2.0, 3.0, 4.0]],
        "GPU0": [[1.5, 1.0, 1.0]],
    }
    assert found["metadata"] == {
        "default_device": "GPU0", "devices": ["CPU", "GPU0"],
        "peaks": {"CPU": "Peak Memory Usage: 3.0MB", "GPU0": "Peak Memory Usage: 1.0MB"}, "totals": {},
        "first_ts": 1000, "time_metric": "ms", "memory_metric": "MB", "time_factor": 0.001,
        "memory_factor": 9.5367431640625e-07,
    }  # fmt: skip


def test_records_without_address_or_totals_are_no_points():
    found = curve(alloc(1, 4, None, held=4, reserved=4), alloc(2, 4, reserved=4), alloc(3, 4, held=4))
    assert found["rows"] == {}
    assert found["metadata"]["devices"] == []
    assert found["metadata"]["default_device"] == "CPU"


def test_a_peak_is_never_below_zero():
    assert curve(alloc(1, 4, held=-MB, reserved=0))["metadata"]["peaks"] == {"CPU": "Peak Memory Usage: 0.0MB"}


def test_short_curves_are_not_thinned():
    points = np.arange(3.0 * 10_240).reshape(-1, 3)
    assert _memory._thinned(points) is points


def test_thinning_keeps_ends_and_what_stands_out():
    n = 30_000
    points = np.stack((np.arange(n) * 1.0, np.zeros(n), np.zeros(n)), axis=1)
    points[[5_000, 17_001], 1] = 9.0
    found = _memory._thinned(points)
    assert found.shape == (10_240, 3)
    assert found[[0, -1], 0].tolist() == [0.0, n - 1.0]
    assert found[found[:, 1] > 0, 0].tolist() == [5_000.0, 17_001.0]
    assert (np.diff(found[:, 0]) > 0).all()


def test_thinning_by_hand(monkeypatch):
    monkeypatch.setattr(_memory, "_POINTS", 4)
    # Two parts of three and two points; triangles with the point before and the mean of the part behind.
    points = np.array([[0, 0, 0], [1, 5, 1], [2, 1, 2], [3, 4, 3], [4, 0, 4], [5, 7, 5], [6, 0, 6]], float)
    assert _memory._thinned(points)[:, 2].tolist() == [0, 1, 5, 6]


def test_an_allocation_and_the_next_release_of_its_address_are_one_row():
    found = blocks(
        op("aten::mm", 0, 100),
        alloc(10, 2048, 7),
        alloc(30, 1024, 8),
        alloc(60, -1024, 8),
        alloc(90, -2048, 7),
    )
    assert found["rows"] == {"CPU": [["aten::mm", 1.0, 0.03, 0.06, 0.03], ["aten::mm", 2.0, 0.01, 0.09, 0.08]]}
    assert [column["name"] for column in found["columns"]] == [
        "Operator", "Size (KB)", "Allocation Time (ms)", "Release Time (ms)", "Duration (ms)",
    ]  # fmt: skip
    assert found["metadata"] == {"title": "Memory Events", "default_device": "CPU"}


def test_blocks_never_released_follow_and_then_releases_of_unknown_blocks():
    found = blocks(
        op("aten::mm", 0, 100),
        alloc(10, -512, 1),
        alloc(20, 1024, 2),
        alloc(30, 2048, 3),
        alloc(40, -1024, 2),
    )
    assert found["rows"] == {
        "CPU": [
            ["aten::mm", 1.0, 0.02, 0.04, 0.02],
            ["aten::mm", 2.0, 0.03, None, None],
            ["<unknown>", 0.5, None, 0.01, None],
        ]
    }


def test_of_several_allocations_of_one_address_the_last_counts_in_the_place_of_the_first():
    found = blocks(op("a", 0, 99), alloc(10, 1024, 1), alloc(20, 2048, 2), alloc(30, 4096, 1))
    assert [row[1:3] for row in found["rows"]["CPU"]] == [[4.0, 0.03], [2.0, 0.02]]
    found = blocks(op("a", 0, 99), alloc(10, 1024, 1), alloc(20, 2048, 1), alloc(30, -2048, 1))
    assert found["rows"]["CPU"] == [["a", 2.0, 0.02, 0.03, 0.01]]


def test_an_address_released_in_between_stands_where_it_was_allocated_again():
    found = blocks(
        op("a", 0, 99), alloc(10, 1024, 1), alloc(20, 2048, 2), alloc(30, -1024, 1), alloc(40, 512, 1)
    )  # fmt: skip
    assert [row[1] for row in found["rows"]["CPU"]] == [1.0, 2.0, 0.5]


def test_of_several_releases_of_one_address_the_last_counts_in_the_place_of_the_first():
    found = blocks(op("a", 0, 99), alloc(10, -1024, 1), alloc(20, -2048, 2), alloc(30, -4096, 1))
    assert [[row[1], row[3]] for row in found["rows"]["CPU"]] == [[4.0, 0.03], [2.0, 0.02]]


def test_an_allocation_of_nothing_is_a_release():
    assert blocks(op("a", 0, 99), alloc(10, 0, 1))["rows"] == {"CPU": [["<unknown>", 0.0, None, 0.01, None]]}


def test_records_without_an_address_make_no_blocks():
    found = blocks(op("a", 0, 99), alloc(10, 512, None))
    assert found["rows"] == {}


def test_rows_lie_with_the_device_of_the_allocation():
    found = blocks(
        op("a", 0, 99),
        alloc(10, 1024, 1, device=GPU),
        alloc(20, -1024, 1),
        alloc(30, 512, 2),
        alloc(40, -512, 9),
    )
    assert list(found["rows"]) == ["GPU0", "CPU"]
    assert [len(rows) for rows in found["rows"].values()] == [1, 2]
    assert found["metadata"]["default_device"] == "GPU0"


def test_what_allocates_for_others_is_named_with_its_caller():
    found = blocks(
        op("aten::zeros", 0, 50), op("aten::empty", 10, 10), alloc(15, 1024, 1), op("aten::empty_like", 60, 9),
        alloc(65, 512, 2), x("", 70, 20), op("aten::empty", 75, 10), alloc(80, 512, 3), alloc(88, 512, 4),
    )  # fmt: skip
    assert [row[0] for row in found["rows"]["CPU"]] == [
        "aten::zeros (aten::empty)", "CallTreeRoot (aten::empty_like)", "aten::empty", "<unknown>",
    ]  # fmt: skip


def test_allocations_outside_of_operators_have_no_name():
    found = blocks(x("ProfilerStep#1", 0, 99, "user_annotation"), op("a", 50, 9), alloc(10, 1024, 1))
    assert found["rows"] == {"CPU": [["<unknown>", 1.0, 0.01, None, None]]}
    assert blocks(alloc(10, 1024, 1))["rows"] == {"CPU": [["<unknown>", 1.0, 0.0, None, None]]}


def test_rounding_all_at_once_equals_rounding_one_by_one():
    values = [0.0, 0.005, 0.015, 0.0095, 0.00999999999, 0.01, 0.001, 0.0001, 0.125, 0.375, 0.625, 1.005, 1e-7, 3e-13,
              5e-324, 1234.565, 98765.4321, 0.0015, 0.00025]  # fmt: skip
    assert _memory._shown(np.array(values)) == [shown(v) for v in values]
    assert _memory._shown(np.empty(0)) == []


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collecting):
    (gc.enable if collecting else gc.disable)()
    try:
        assert _memory._as_rows(([1, 2], ["a", "b"])) == [[1, "a"], [2, "b"]]
        assert gc.isenabled() is collecting
    finally:
        gc.enable()
