from __future__ import annotations

from math import inf

import pytest

from stepscope.exports.paddle_summary._text import (
    Item,
    Sheet,
    Spread,
    calls_width,
    centred,
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
