from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest

from stepscope.core.report import Bar, Finding, Part, Report
from stepscope.renderers import Screen, find
from stepscope.renderers.cells import width

TERMINAL = find("terminal")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")


def visible(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_a_report_on_100_columns(report, snapshot):
    snapshot(TERMINAL.report(report, Screen()), "report.txt")


def test_a_report_in_ascii(report, snapshot):
    text = TERMINAL.report(report, Screen(unicode=False))
    snapshot(text, "report_ascii.txt")
    drawn = text.replace("内核_矩阵乘法 é ω 🚀", "")
    assert "░" not in drawn
    assert "=====" in drawn


def test_a_table_on_100_columns(block, snapshot):
    snapshot(TERMINAL.table(block, Screen()), "table.txt")


def test_a_table_on_a_wide_terminal_shortens_and_leaves_out_nothing(block, snapshot):
    text = TERMINAL.table(block, Screen(width=400))
    snapshot(text, "table_wide.txt")
    assert "CUDAFunctor_add<float>)" in text
    assert "no room" not in text


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 132, 250])
def test_nothing_is_wider_than_the_screen(report, block, columns):
    screen = Screen(width=columns)
    for text in (TERMINAL.report(report, screen), TERMINAL.table(block, screen)):
        assert max(map(width, text.splitlines())) <= max(columns, 60)


@pytest.mark.parametrize("colour", [False, True])
def test_names_are_drawn_literally(report, block, colour):
    screen = Screen(width=300, colour=colour)
    for text in (TERMINAL.report(report, screen), TERMINAL.table(block, screen)):
        assert not CONTROL.search(visible(text))
        assert "[bold red]ampere_sgemm[/bold red]" in text
        assert "\\x1b[31mred" in text


def test_colour_changes_no_letter(report):
    plain, inked = (TERMINAL.report(report, Screen(colour=colour)) for colour in (False, True))
    assert "\x1b[" not in plain
    assert visible(inked) == plain


def test_columns_without_room_are_named(block):
    text = TERMINAL.table(block, Screen(width=40))
    assert "no room for:" in text
    assert "shapes" in text.split("no room for:")[1]


def test_an_empty_table_says_so(block):
    text = TERMINAL.table(replace(block, frame=block.frame.clear(), note=""), Screen())
    assert text.splitlines()[-1] == "no rows"


def test_an_empty_report_is_its_headline():
    assert TERMINAL.report(Report("nothing"), Screen()) == "nothing\n"


def test_bars_are_in_proportion_and_full():
    parts = (Part("a", 1 / 3), Part("b", 1 / 3), Part("idle", 1 / 3))
    line = TERMINAL.report(Report("h", bars=(Bar("Step", "1 s", parts),)), Screen()).splitlines()[2]
    assert line == "Step  1 s   ████████▒▒▒▒▒▒▒▒▒░░░░░░░░   █ a 33 %   ▒ b 33 %   ░ idle 33 %"


def test_a_legend_that_finds_no_room_goes_below_a_wider_bar():
    parts = (Part("a part with a long name", 0.5), Part("another part with a long name", 0.5))
    lines = TERMINAL.report(Report("h", bars=(Bar("Step", "1 s", parts),)), Screen()).splitlines()
    assert lines[2] == "Step  1 s   " + "█" * 30 + "▒" * 30
    assert lines[3] == " " * 12 + "█ a part with a long name 50 %   ▒ another part with a long name 50 %"


def test_labels_of_values_are_given_once_if_they_agree_and_each_if_not():
    one = Finding("one", value_ns=1_000, value_label="per step")
    two = replace(one, title="two", value_label="in all")
    same = TERMINAL.report(Report("h", findings=(one, one)), Screen())
    assert same.count("per step") == 1
    mixed = TERMINAL.report(Report("h", findings=(one, two)), Screen())
    assert "1 µs per step" in mixed
    assert "1 µs in all" in mixed


def test_issues_without_a_sentence_are_counted(report):
    text = TERMINAL.report(replace(report, quality=()), Screen())
    assert "Data: 1,234 × bad|ts." in text
    none = replace(report, quality=(), issues=report.issues.filter(pl.col("severity") == "info"))
    assert "Data:" not in TERMINAL.report(none, Screen())


def test_a_long_command_goes_below_and_leaves_the_title_its_room():
    one = Finding(
        "t" * 70, ("a long detail " * 6, "a short detail"), 1_000, "per step", 0.5, "show operators --by shape"
    )
    lines = TERMINAL.report(Report("h", findings=(one, replace(one, details=()))), Screen()).splitlines()
    assert lines[3] == f"1  {'t' * 70}             1 µs   50 %"
    assert lines[4].endswith("a long detail")
    assert lines[5] == "   a short detail" + "show operators --by shape".rjust(83)
    assert lines[7] == "show operators --by shape".rjust(100)
