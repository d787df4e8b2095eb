from __future__ import annotations

from math import inf

import numpy as np
import paddle_profiles as made
import pytest
from paddle_profiles import host, thread

from stepscope.exports.paddle_summary._text import (
    Item,
    Sheet,
    Spread,
    by_thread,
    calls_width,
    centred,
    host_items,
    in_order,
    items,
    ratio,
    time,
    times,
    times_width,
)


@pytest.mark.parametrize(("unit", "text"), [("s", "0.00"), ("ms", "1.23"), ("us", "1234.57"), ("ns", "1234567.00")])
def test_times_have_two_decimals_in_every_unit(unit, text):
    assert time(1_234_567, unit) == text


def test_no_time_is_a_dash_and_a_share_of_nothing_is_zero():
    assert time(inf, "ms") == "-"
    assert (ratio(1, 3), ratio(1, 0)) == ("33.33", "0.00")


def test_five_numbers_in_a_cell():
    assert times(Spread(3_000, 2_000, 1_000), 2, 6_000, "us") == "3.00 / 1.50 / 2.00 / 1.00 / 50.00"
    assert times(Spread(), 0, 0, "us") == "0.00 / 0.00 / 0.00 / - / 0.00"


@pytest.mark.parametrize(
    ("text", "line"), [("ab", "----ab----"), ("abc", "---abc----"), ("abcdefghijk", "abcdefghijk")]
)
def test_the_odd_dash_is_behind_the_text(text, line):
    assert centred(text, 10) == line


def test_a_table_ends_in_two_empty_lines_and_its_lines_in_blanks():
    sheet = Sheet((4, 2))
    sheet.title("T")
    sheet.head("Name", "n")
    sheet.row("longer", "1")
    sheet.note("a note\n")
    assert sheet.done() == "---T----\n----  --  \nName  n   \n----  --  \nlonger  1   \na note\n\n--------\n\n\n"


def test_columns_are_as_wide_as_their_longest_cell():
    assert calls_width([]) == 6
    assert calls_width([Item(0, "a", 12_345_678, Spread(), Spread())]) == 8
    assert times_width(["x" * 41, ""]) == 41
    assert times_width([]) == 40


def test_items_are_in_order_of_first_appearance():
    found = items(np.array([1, 0, 1]), ["a", "b"], np.array([5, 1, 7]), np.array([0, 2, 4]))
    assert found == [
        Item(1, "b", 2, Spread(12, 7, 5), Spread(4, 4, 0)),
        Item(0, "a", 1, Spread(1, 1, 1), Spread(2, 2, 2)),
    ]
    assert items(np.empty(0, np.int64), [], np.empty(0, np.int64), np.empty(0, np.int64)) == []


def test_host_events_are_met_last_child_first(tree):
    found = tree(
        thread((0, host("a", 0, 0, 5)), (0, host("b", 0, 5, 6)), (0, host("a", 0, 6, 9)), (0, host("c", 0, 9, 9)))
    )
    assert [(i.name, i.calls, i.cpu) for i in host_items(found, np.arange(4))] == [
        ("c", 1, Spread(0, 0, 0)), ("a", 2, Spread(8, 5, 3)), ("b", 1, Spread(1, 1, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sorted_by", "names"),
    [
        ("CPUTotal", "bac"),
        ("CPUAvg", "abc"),
        ("CPUMax", "abc"),
        ("CPUMin", "cba"),
        ("GPUTotal", "acb"),
        ("GPUMin", "bac"),
    ],
)
def test_largest_first_but_smallest_minimum_first_and_ties_as_they_came(sorted_by, names):
    a = Item(0, "a", 1, Spread(5, 5, 5), Spread(2, 2, 2))
    b = Item(1, "b", 3, Spread(9, 4, 2), Spread(1, 1, 0))
    c = Item(2, "c", 2, Spread(2, 1, 1), Spread(2, 2, 2))
    assert "".join(item.name for item in in_order([a, b, c], sorted_by)) == names


def test_threads_apart_or_merged(tree):
    other = thread((0, host("b", 0, 0, 5, tid=2)), tid=2)
    found = tree(thread((0, host("a", 0, 0, 5))), other)
    rows = np.arange(2)
    assert [(title, mine.tolist()) for title, mine in by_thread(found, rows, thread_sep=True)] == [
        ("2", [0]),
        ("7", [1]),
    ]
    assert [(title, mine.tolist()) for title, mine in by_thread(found, rows, thread_sep=False)] == [
        ("All threads merged", [0, 1])
    ]
    assert list(by_thread(found, rows[:0], thread_sep=False)) == []
    assert made.TID == 7
