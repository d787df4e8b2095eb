from __future__ import annotations

import zlib

import numpy as np

from stepscope.exports.tensorboard import _ties


def order(*totals):
    return _ties.by_total(np.array(totals)).tolist()


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
    found = _ties._places(values)
    assert [values[i] for i in found] == sorted(values)
    # Those of the equal pairs that NumPy 1.23.5 turns round.
    assert [v for v in range(50) if found[2 * v] > found[2 * v + 1]] == [
        1, 4, 5, 6, 7, 8, 11, 14, 15, 16, 17, 18, 21, 22, 24, 25, 27, 28, 29, 30, 32, 37, 38, 39, 40, 43, 44, 47, 48,
        49,
    ]  # fmt: skip
