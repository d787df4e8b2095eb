from __future__ import annotations

import zlib

import numpy as np
import pytest
from chrome_traces import call, kernel, op, read, x

from stepscope.exports.tensorboard import _kernels
from stepscope.exports.tensorboard._events import find_launches, read_events
from stepscope.exports.tensorboard._forest import grow

SHAPE = {"grid": [4, 1, 1], "block": [64, 1, 1], "registers_per_thread": 16, "shared_memory": 1024}
MLU = {"deviceProperties": [{"id": 0, "name": "MLU370"}]}


def by_name(*events, **meta):
    seen = read_events(read(list(events), **meta))
    stats = _kernels.kernel_stats(seen)
    return stats, _kernels.kernel_table(seen, stats)["data"]


def by_op(*events, **meta):
    seen = read_events(read(list(events), **meta))
    launches = find_launches(seen)
    return _kernels.kernel_op_table(seen, launches, grow(seen, launches))["data"]


def titles(table):
    return [column["name"] for column in table["columns"]]


def cells(table, *wanted):
    at = [titles(table).index(name) for name in wanted]
    return [tuple(row[i] for i in at) for row in table["rows"]]


def test_kernels_of_one_name_are_one_row_and_the_longest_total_comes_first():
    stats, table = by_name(kernel("b", 0, 3, 1), kernel("b", 9, 6, 2), kernel("h884_a", 20, 7, 3))
    assert titles(table) == [
        "Name", "Tensor Cores Used", "Calls", "Total Duration (us)", "Mean Duration (us)", "Max Duration (us)",
        "Min Duration (us)",
    ]  # fmt: skip
    assert table["rows"] == [["b", "No", 2, 9, 4, 6, 3], ["h884_a", "Yes", 1, 7, 7, 7, 7]]
    assert _kernels.kernel_pie(stats)["total"]["rows"] == [["b", 9], ["h884_a", 7]]


def test_the_pie_of_tensor_cores_shows_their_share_of_all_kernel_time():
    stats, _ = by_name(kernel("b", 0, 3, 1), kernel("h884_a", 20, 1, 3))
    assert _kernels.tc_pie(stats)["total"]["rows"] == [["Using Tensor Cores", 0.25], ["Not Using Tensor Cores", 0.75]]


def test_kernels_without_a_duration_have_no_share():
    stats, table = by_name(kernel("h884_a", 0, 0, 1, blocks_per_SM=2))
    assert stats.tc_ratio == 0.0
    assert cells(table, "Mean Blocks Per SM") == [(0.0,)]


def test_a_trace_without_kernels_gives_empty_tables():
    stats, table = by_name(op("aten::mm", 0, 9))
    assert table["rows"] == []
    assert _kernels.kernel_pie(stats)["total"]["rows"] == []
    assert by_op(op("aten::mm", 0, 9))["rows"] == []


def test_measures_are_weighted_by_duration_and_count_as_zero_where_not_recorded():
    measured = {"blocks_per_SM": 2, "est. achieved occupancy %": 50, **SHAPE}
    events = (
        op("aten::mm", 0, 9, External_id=1), call("c", 1, 1, 1, External_id=1),
        kernel("k", 10, 3, 1, **measured), kernel("k", 20, 1, 1, **SHAPE),
    )  # fmt: skip
    for _, table in (by_name(*events), (None, by_op(*events))):
        assert cells(table, "Mean Blocks Per SM", "Mean Est. Achieved Occupancy (%)") == [(1.5, 37.5)]


def test_columns_of_measures_are_there_if_any_kernel_has_a_valid_one():
    _, table = by_name(kernel("k", 10, 3, 1, **{"blocks_per_SM": 0, "est. achieved occupancy %": 0, **SHAPE}))
    assert titles(table)[-1] == "Mean Est. Achieved Occupancy (%)"
    assert "Mean Blocks Per SM" not in titles(table)


def test_equal_sums_of_fractions_are_as_equal_as_for_the_plugin():
    # With the rounding carried along, as pandas adds, ten tenths are one.
    values = np.array([0.1] * 10 + [0.2] * 5)
    sums = _kernels._added(values, np.array([0, 10]), np.array([10, 5]))
    assert sums.tolist() == [1.0, 1.0]
    assert sum([0.1] * 10) != 1.0


def test_calls_beyond_those_added_one_by_one_count_too(monkeypatch):
    monkeypatch.setattr(_kernels, "_STEPS", 2)
    sums = _kernels._added(np.array([1.0, 2.0, 4.0, 8.5, 0.5]), np.array([0, 4]), np.array([4, 1]))
    assert sums.tolist() == [15.5, 0.5]


def test_operator_and_launch_properties_tell_rows_apart():
    table = by_op(
        op("aten::mm", 0, 9, External_id=1), op("aten::add", 20, 9, External_id=2),
        call("c", 1, 1, 1, External_id=1), call("c", 2, 1, 2, External_id=1), call("c", 3, 1, 3, External_id=1),
        call("c", 21, 1, 4, External_id=2),
        kernel("h884_k", 30, 4, 1, **SHAPE), kernel("h884_k", 40, 2, 2, **SHAPE),
        kernel("h884_k", 50, 9, 3, **{**SHAPE, "grid": [8, 1, 1]}), kernel("h884_k", 60, 1, 4),
    )  # fmt: skip
    assert titles(table) == [
        "Name", "Operator", "Grid", "Block", "Register Per Thread", "Shared Memory", "Kernel Uses Tensor Cores",
        "Op is Tensor Cores eligible", "Calls", "Total Duration (us)", "Mean Duration (us)", "Max Duration (us)",
        "Min Duration (us)",
    ]  # fmt: skip
    assert table["rows"] == [
        ["h884_k", "aten::mm", "[8, 1, 1]", "[64, 1, 1]", "16", "1024", "Yes", "Yes", 1, 9, 9, 9, 9],
        ["h884_k", "aten::mm", "[4, 1, 1]", "[64, 1, 1]", "16", "1024", "Yes", "Yes", 2, 6, 3, 4, 2],
        ["h884_k", "aten::add", "None", "None", "0", "0", "Yes", "No", 1, 1, 1, 1, 1],
    ]


def test_copies_and_kernels_of_unknown_operators_are_not_among_the_operators_kernels():
    table = by_op(
        op("aten::mm", 0, 9, External_id=1), call("c", 1, 1, 1, External_id=1), call("c", 5, 1, 2, External_id=77),
        kernel("Memcpy", 30, 4, 1, cat="gpu_memcpy"), kernel("k", 40, 2, 2),
    )  # fmt: skip
    assert table["rows"] == []


def test_kernels_without_a_call_belong_to_the_root_of_the_thread_with_steps():
    events = (op("aten::mm", 0, 9, External_id=1), kernel("b", 40, 2, 5), kernel("a", 30, 2, 6))
    assert by_op(*events)["rows"] == []
    step = x("ProfilerStep#1", 0, 20, "user_annotation")
    assert cells(by_op(step, *events), "Name", "Operator") == [("a", "CallTreeRoot"), ("b", "CallTreeRoot")]


def test_a_kernel_of_external_id_zero_is_counted_for_its_operator_and_the_root_under_one_name():
    table = by_op(
        op("aten::mm", 0, 9, External_id=0), call("c", 1, 1, 1, External_id=0), kernel("k", 30, 4, 1)
    )  # fmt: skip
    assert cells(table, "Operator", "Calls", "Total Duration (us)", "Op is Tensor Cores eligible") == [
        ("CallTreeRoot", 2, 8, "No")
    ]


def test_equal_totals_stand_in_order_of_the_tree_children_first():
    table = by_op(
        op("outer", 0, 20, External_id=1), op("inner", 5, 5, External_id=2), call("c", 1, 1, 1, External_id=1),
        call("c", 6, 1, 2, External_id=2), kernel("first", 30, 4, 1), kernel("second", 40, 4, 2),
    )  # fmt: skip
    assert cells(table, "Name", "Operator") == [("second", "inner"), ("first", "outer")]


def test_kernels_that_took_no_time_have_no_measures():
    table = by_op(
        op("aten::mm", 0, 9, External_id=1), call("c", 1, 1, 1, External_id=1),
        kernel("k", 30, 0, 1, blocks_per_SM=2, **SHAPE),
    )  # fmt: skip
    assert cells(table, "Total Duration (us)", "Mean Blocks Per SM") == [(0, 0)]


def test_cambricons_table_shows_dimensions_and_kernel_type_and_no_tensor_cores():
    launched = {"kernel_type": "UNION1", "dimx": 4, "dimy": 1, "dimz": 1}
    events = (
        op("aten::mm", 0, 9, External_id=1), call("c", 1, 1, 1, External_id=1),
        kernel("h884_k", 30, 4, 1, **launched), kernel("h884_k", 40, 2, 1),
    )  # fmt: skip
    table = by_op(*events, **MLU)
    assert titles(table)[:6] == ["Name", "Operator", "DimXYZ", "Kernel Type", "Kernel Uses Tensor Cores", "Calls"]
    assert [row[:6] for row in table["rows"]] == [
        ["h884_k", "aten::mm", "[4, 1, 1]", "UNION1", "No", 1],
        ["h884_k", "aten::mm", "[None, None, None]", None, "No", 1],
    ]
    stats, table = by_name(*events, **MLU)
    assert stats.tc_ratio == 0.0
    assert table["columns"][1]["tooltip"] == (
        "Whether this kernel uses Tensor Cores. It's always NO On MLU devices because MLU does not have Tensor Cores."
    )


@pytest.mark.parametrize(("meta", "noun"), [({}, "GPU"), (MLU, "MLU")])
def test_tooltips_name_the_device(meta, noun):
    _, table = by_name(kernel("k", 0, 3, 1, blocks_per_SM=1.5, **SHAPE), **meta)
    assert f"SM number of this {noun}." in table["columns"][-1]["tooltip"]


def order(*totals):
    return _kernels.by_total(np.array(totals)).tolist()


def test_totals_come_from_the_greatest_down():
    assert order(3, 9, 1.5) == [1, 0, 2]
    assert order() == []


def test_few_equal_totals_stay_in_the_order_of_their_names():
    assert order(5, 7, 5, 7, 5) == [1, 3, 0, 2, 4]


def test_many_equal_totals_are_shuffled_as_the_plugins_libraries_do():
    # pandas 1.5.3 with NumPy 1.23.5: DataFrame({"sum": totals}).sort_values("sum", ascending=False).index
    totals = [5, 5, 7, 9, 5, 5, 9, 7, 5, 5, 9, 9, 9, 5, 5, 5, 9, 5, 5, 5]
    assert order(*totals) == [10, 3, 6, 16, 11, 12, 2, 7, 13, 18, 17, 15, 14, 0, 1, 9, 8, 5, 4, 19]


def test_orders_of_many_sizes_and_numbers_of_ties_equal_those_of_the_plugins_libraries():
    found = 0
    for size in range(1, 200, 7):
        for kinds in (2, 5, 40):
            found = zlib.crc32(str(order(*(i * (i * 31 + 17) % 101 % kinds for i in range(size)))).encode(), found)
    assert found == 2483633930  # as NumPy 1.23.5 sorts them


def test_values_that_split_badly_are_sorted_by_heap():
    values = [*range(200), *reversed(range(200))]
    found = _kernels._places(values)
    assert [values[i] for i in found] == sorted(values)
    # Those of the equal pairs that NumPy 1.23.5 turns round.
    assert [v for v in range(50) if found[2 * v] > found[2 * v + 1]] == [
        1, 4, 5, 6, 7, 8, 11, 14, 15, 16, 17, 18, 21, 22, 24, 25, 27, 28, 29, 30, 32, 37, 38, 39, 40, 43, 44, 47, 48,
        49,
    ]  # fmt: skip
