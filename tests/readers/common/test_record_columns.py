"""Records by column: values, numbers, and a number for each distinct value."""

from __future__ import annotations

import numpy as np

from stepscope.readers.common.record_columns import ABSENT, CONSTANTS, NUMBER, Column, Records, Rows, integers

ROWS = Rows(
    {
        "a": Column(np.array([NUMBER, 0, 3], np.int32), np.array([7, 0, 0]), [*CONSTANTS, "x"]),
        "b": Column(np.array([1, ABSENT, 2], np.int32), np.zeros(3, np.int64), CONSTANTS),
    },
    3,
)
DICTS = [{"a": 7, "b": True}, {"a": None}, {"a": "x", "b": False}]


def test_rows_are_the_records():
    assert list(ROWS) == [ROWS[i] for i in range(3)] == ROWS[:] == DICTS


def test_columns_of_rows_and_of_single_records_are_the_same():
    both = Records([*DICTS[:1], ROWS, 5, *DICTS])
    numbers, is_known = both.numbers("a")
    assert integers(numbers, is_known).to_list() == [7, 7, None, None, 7, None, None]
    assert both.flags("b").tolist() == [True, True, False, False, True, False, False]
    assert both.mapped(lambda value: value and len(str(value)), "a").tolist() == [
        1,
        1,
        -1,
        1,
        1,
        -1,
        1,
    ]
    assert both.mapped(lambda value: 1 if value is None else 0, "c").tolist() == [1] * 7


def test_a_column_of_values_holds_them():
    for values in ([1, None, 2**63 - 1], [2**70, 1, 1], [[1], "x", True, None, 1.5], [], [True, 0]):
        assert Column.of(values).tolist() == values
