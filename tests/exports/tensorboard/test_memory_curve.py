from __future__ import annotations

import gc

import numpy as np
import pytest
from chrome_traces import op, read, x

from stepscope.exports.tensorboard import _memory_curve
from stepscope.exports.tensorboard._events import read_events
from stepscope.exports.tensorboard._forest import grow
from stepscope.exports.tensorboard._launches import find_launches
from stepscope.exports.tensorboard._memory import read_records
from stepscope.exports.tensorboard._numbers import shown

CPU, GPU = (0, -1), (1, 0)
MB = 1 << 20


def memory(ts, size, address=1, *, device=CPU, held=None, reserved=None, tid=1):
    args = {"Device Type": device[0], "Device Id": device[1], "Bytes": size}
    found = {"Addr": address, "Total Allocated": held, "Total Reserved": reserved}
    args |= {key: value for key, value in found.items() if value is not None}
    return {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def recorded(*events):
    seen = read_events(read(list(events)))
    forest = grow(seen, find_launches(seen))
    return seen, forest, read_records(seen, forest)


def curve(*events):
    seen, _, records = recorded(*events)
    return _memory_curve.memory_curve(seen, records)


def blocks(*events, window=()):
    return _memory_curve.memory_events(*recorded(*events), *window)


def test_a_curve_is_drawn_in_steps_per_device():
    found = curve(
        op("a", 1000, 10), memory(2000, 1, held=MB, reserved=2 * MB), memory(3000, 1, held=3 * MB, reserved=4 * MB),
        memory(2500, 1, device=GPU, held=MB, reserved=MB),
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
    found = curve(memory(1, 4, None, held=4, reserved=4), memory(2, 4, reserved=4), memory(3, 4, held=4))
    assert found["rows"] == {}
    assert found["metadata"]["devices"] == []
    assert found["metadata"]["default_device"] == "CPU"


def test_a_peak_is_never_below_zero():
    assert curve(memory(1, 4, held=-MB, reserved=0))["metadata"]["peaks"] == {"CPU": "Peak Memory Usage: 0.0MB"}


def test_short_curves_are_not_thinned():
    points = np.arange(3.0 * 10_240).reshape(-1, 3)
    assert _memory_curve._thinned(points) is points


def test_thinning_keeps_ends_and_what_stands_out():
    n = 30_000
    points = np.stack((np.arange(n) * 1.0, np.zeros(n), np.zeros(n)), axis=1)
    points[[5_000, 17_001], 1] = 9.0
    found = _memory_curve._thinned(points)
    assert found.shape == (10_240, 3)
    assert found[[0, -1], 0].tolist() == [0.0, n - 1.0]
    assert found[found[:, 1] > 0, 0].tolist() == [5_000.0, 17_001.0]
    assert (np.diff(found[:, 0]) > 0).all()


def test_thinning_by_hand(monkeypatch):
    monkeypatch.setattr(_memory_curve, "_POINTS", 4)
    # Two parts of three and two points; triangles with the point before and the mean of the part behind.
    points = np.array([[0, 0, 0], [1, 5, 1], [2, 1, 2], [3, 4, 3], [4, 0, 4], [5, 7, 5], [6, 0, 6]], float)
    assert _memory_curve._thinned(points)[:, 2].tolist() == [0, 1, 5, 6]


def test_an_allocation_and_the_next_release_of_its_address_are_one_row():
    found = blocks(
        op("aten::mm", 0, 100), memory(10, 2048, 7), memory(30, 1024, 8), memory(60, -1024, 8), memory(90, -2048, 7)
    )
    assert found["rows"] == {"CPU": [["aten::mm", 1.0, 0.03, 0.06, 0.03], ["aten::mm", 2.0, 0.01, 0.09, 0.08]]}
    assert [column["name"] for column in found["columns"]] == [
        "Operator", "Size (KB)", "Allocation Time (ms)", "Release Time (ms)", "Duration (ms)",
    ]  # fmt: skip
    assert found["metadata"] == {"title": "Memory Events", "default_device": "CPU"}


def test_blocks_never_released_follow_and_then_releases_of_unknown_blocks():
    found = blocks(
        op("aten::mm", 0, 100), memory(10, -512, 1), memory(20, 1024, 2), memory(30, 2048, 3), memory(40, -1024, 2)
    )
    assert found["rows"] == {
        "CPU": [
            ["aten::mm", 1.0, 0.02, 0.04, 0.02],
            ["aten::mm", 2.0, 0.03, None, None],
            ["<unknown>", 0.5, None, 0.01, None],
        ]
    }


def test_of_several_allocations_of_one_address_the_last_counts_in_the_place_of_the_first():
    found = blocks(op("a", 0, 99), memory(10, 1024, 1), memory(20, 2048, 2), memory(30, 4096, 1))
    assert [row[1:3] for row in found["rows"]["CPU"]] == [[4.0, 0.03], [2.0, 0.02]]
    found = blocks(op("a", 0, 99), memory(10, 1024, 1), memory(20, 2048, 1), memory(30, -2048, 1))
    assert found["rows"]["CPU"] == [["a", 2.0, 0.02, 0.03, 0.01]]


def test_an_address_released_in_between_stands_where_it_was_allocated_again():
    found = blocks(
        op("a", 0, 99), memory(10, 1024, 1), memory(20, 2048, 2), memory(30, -1024, 1), memory(40, 512, 1)
    )  # fmt: skip
    assert [row[1] for row in found["rows"]["CPU"]] == [1.0, 2.0, 0.5]


def test_of_several_releases_of_one_address_the_last_counts_in_the_place_of_the_first():
    found = blocks(op("a", 0, 99), memory(10, -1024, 1), memory(20, -2048, 2), memory(30, -4096, 1))
    assert [[row[1], row[3]] for row in found["rows"]["CPU"]] == [[4.0, 0.03], [2.0, 0.02]]


def test_an_allocation_of_nothing_is_a_release():
    assert blocks(op("a", 0, 99), memory(10, 0, 1))["rows"] == {"CPU": [["<unknown>", 0.0, None, 0.01, None]]}


def test_records_without_an_address_make_no_blocks():
    found = blocks(op("a", 0, 99), memory(10, 512, None))
    assert found["rows"] == {}


def test_rows_lie_with_the_device_of_the_allocation():
    found = blocks(
        op("a", 0, 99), memory(10, 1024, 1, device=GPU), memory(20, -1024, 1), memory(30, 512, 2), memory(40, -512, 9)
    )
    assert list(found["rows"]) == ["GPU0", "CPU"]
    assert [len(rows) for rows in found["rows"].values()] == [1, 2]
    assert found["metadata"]["default_device"] == "GPU0"


def test_what_allocates_for_others_is_named_with_its_caller():
    found = blocks(
        op("aten::zeros", 0, 50), op("aten::empty", 10, 10), memory(15, 1024, 1), op("aten::empty_like", 60, 9),
        memory(65, 512, 2), x("", 70, 20), op("aten::empty", 75, 10), memory(80, 512, 3), memory(88, 512, 4),
    )  # fmt: skip
    assert [row[0] for row in found["rows"]["CPU"]] == [
        "aten::zeros (aten::empty)", "CallTreeRoot (aten::empty_like)", "aten::empty", "<unknown>",
    ]  # fmt: skip


def test_allocations_outside_of_operators_have_no_name():
    found = blocks(x("ProfilerStep#1", 0, 99, "user_annotation"), op("a", 50, 9), memory(10, 1024, 1))
    assert found["rows"] == {"CPU": [["<unknown>", 1.0, 0.01, None, None]]}
    assert blocks(memory(10, 1024, 1))["rows"] == {"CPU": [["<unknown>", 1.0, 0.0, None, None]]}


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((30,), [["a", 1.0, None, 0.04, None]]),
        ((None, 30), [["a", 1.0, 0.01, None, None]]),
        ((0, 50), [["a", 1.0, 0.01, 0.04, 0.03]]),
    ],
)
def test_a_window_cuts_blocks_which_keep_their_operator(window, expected):
    found = blocks(op("a", 0, 20), memory(10, 1024, 1), memory(40, -1024, 1), window=window)
    assert found["rows"] == {"CPU": expected}


def test_rounding_all_at_once_equals_rounding_one_by_one():
    values = [0.0, 0.005, 0.015, 0.0095, 0.00999999999, 0.01, 0.001, 0.0001, 0.125, 0.375, 0.625, 1.005, 1e-7, 3e-13,
              5e-324, 1234.565, 98765.4321, 0.0015, 0.00025]  # fmt: skip
    assert _memory_curve._shown(np.array(values)) == [shown(v) for v in values]
    assert _memory_curve._shown(np.empty(0)) == []


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collecting):
    (gc.enable if collecting else gc.disable)()
    try:
        assert _memory_curve._as_rows(([1, 2], ["a", "b"])) == [[1, "a"], [2, "b"]]
        assert gc.isenabled() is collecting
    finally:
        gc.enable()
