from __future__ import annotations

import pytest

from stepscope.exports.latencyprism._pipes import pipe_table


def column(cells, number="g"):
    """The rows of a table of one column, without their pipes."""
    return [line[2:-2] for line in pipe_table(["x"], [[cell] for cell in cells], number).split("\n")[2:]]


def test_numbers_are_set_right_and_texts_left_under_headings_with_room():
    assert pipe_table(["Rank", "Name"], [[1, "a"], [12, "b or more"]]) == (
        "|   Rank | Name      |\n"
        "|-------:|:----------|\n"
        "|      1 | a         |\n"
        "|     12 | b or more |"
    )  # fmt: skip


def test_texts_that_spell_numbers_are_written_anew_with_points_below_each_other():
    assert column(["1561.7183", "0.5000", "+5.91", "-0.00"]) == ["1561.72", "   0.5 ", "   5.91", "  -0   "]
    assert column(["127110906.5", "nan"]) == ["  1.27111e+08", "nan          "]


def test_a_number_with_a_comma_makes_its_column_text():
    assert column(["1,000.00", "2.50"]) == ["1,000.00", "2.50    "]


@pytest.mark.parametrize("odd", ["-", "", "+nan", "+inf", "1 0"])
def test_a_cell_that_spells_no_number_makes_its_column_text(odd):
    assert column(["2.50", odd]) == [cell.ljust(4) for cell in ("2.50", odd)]


def test_whole_numbers_stay_as_they_are():
    assert column(["+12", "3"]) == ["+12", "  3"]


def test_floats_are_written_in_the_format_asked_for_unless_one_is_missing():
    assert column([1234.5, 7.0], ",.2f") == ["1,234.50", "    7.00"]
    assert column([1234.5, "-"], ",.2f") == ["1234.5", "-     "]


def test_a_table_without_rows_has_its_headings():
    assert pipe_table(["a", "bc"], []) == "| a   | bc   |\n|:----|:-----|"
