from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepscope.core.report import Bar, Block, Finding, Note, Part, Report
from stepscope.core.table import Column as SchemaColumn
from stepscope.core.table import Name, Table
from stepscope.renderers import Screen, find
from stepscope.renderers.cells import width
from stepscope.renderers.terminal import Column, fit, grid, pad

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
    text = TERMINAL.table(replace(block, frame=block.frame.clear(), note="", command=""), Screen())
    assert text.splitlines()[-1] == "no rows"


def test_an_empty_report_is_its_headline():
    assert TERMINAL.report(Report("nothing"), Screen()) == "nothing\n"


def test_bars_are_in_proportion_and_full():
    parts = (Part("a", 1 / 3), Part("b", 1 / 3), Part("idle", 1 / 3))
    line = TERMINAL.report(Report("h", bars=(Bar("Step", "1 s", parts),)), Screen()).splitlines()[2]
    assert line == "Step  1 s   ████████▒▒▒▒▒▒▒▒▒░░░░░░░░   █ a 33 %   ▒ b 33 %   ░ idle 33 %"


def test_bars_on_one_scale_have_their_own_lengths():
    bars = tuple(Bar(label, "1 s", (Part("busy", 1.0),), length=length) for label, length in (("A", 0.5), ("B", 1.0)))
    a, b = (line.count("█") for line in TERMINAL.report(Report("h", bars=bars), Screen()).splitlines()[2:4])
    assert 0.4 < a / b < 0.6


def test_what_must_be_read_first_stands_before_the_bars(block):
    text = TERMINAL.report(Report("h", bars=(Bar("Step", "1 s"),), first=replace(block, title="First")), Screen())
    assert text.index("First") < text.index("Step  1 s")


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


def test_a_command_is_whole_and_goes_where_it_has_room():
    one = Finding(
        "t" * 70, ("a long detail " * 6, "a short detail"), 1_000, "per step", 0.5, "show operators --by shape"
    )
    lines = TERMINAL.report(Report("h", findings=(one, replace(one, details=()))), Screen()).splitlines()
    assert lines[3] == f"1  {'t' * 70}                1 µs   50 %"
    assert lines[4].endswith("a long detail")
    assert lines[5] == "   a short detail" + "stepscope show operators --by shape".rjust(83)
    assert lines[7] == "   stepscope show operators --by shape"


def test_no_sentence_is_wider_than_the_terminal():
    bar = Bar(
        "Step", "1 s ±10 %", (Part("a", 1.0),), (Note("host during the 70 % idle: operators 40 %, other 20 %", "idle"),)
    )
    found = Report("h", bars=(bar,), quality=("These are many short words of a sentence. " * 6,))
    assert max(map(len, TERMINAL.report(found, Screen(width=50)).splitlines())) <= 50


def test_a_command_is_never_broken():
    one = Finding("one", ("a detail",), 1_000, "per step", 0.5, "show idle")
    path = "a folder/" + "long/" * 30 + "trace.json"
    kernels = Block(
        "Kernels",
        Table("kernels", "", (SchemaColumn("name", Name, ""),)),
        pl.DataFrame({"name": ["a"]}),
        "show kernels",
    )
    found = Report("h", findings=(one,), tables=(kernels,), quality=("A sentence.",), arguments=(path,))
    lines = TERMINAL.report(replace(found, quality_command="show issues"), Screen(width=80)).splitlines()
    for table in ("idle", "kernels", "issues"):
        assert f"stepscope show {table} '{path}'" in [line.strip() for line in lines]


def test_columns_are_aligned_under_headers_that_wrap():
    found = grid([Column("name", ["a", "long name"]), Column("mean duration", ["5 ns", "10 ns"], right=True)], 80)
    assert found.head == ("               mean", "name       duration")
    assert found.body == ("a              5 ns", "long name     10 ns")


def test_the_widest_text_gives_way_first():
    found = grid([Column("a", ["x" * 60], squeeze=True), Column("b", ["y" * 30], squeeze=True)], 82)
    shortened, whole = found.body[0].split("  ")
    assert (len(shortened), whole) == (50, "y" * 30)


def test_sentences_are_broken_into_lines():
    found = grid([Column("a", ["x"]), Column("doc", ["one two three four five six seven"], wrap=True)], 25)
    assert found.body == ("x  one two three four", "   five six seven")


@pytest.mark.parametrize(
    ("room", "left_out"), [(26, ()), (25, ("c",)), (18, ("c", "d")), (11, ("b", "c", "d")), (1, ("b", "c", "d"))]
)
def test_what_can_be_spared_is_left_out_from_the_right(room, left_out):
    cells = ["12345"]
    columns = [Column("a", cells), Column("b", cells), Column("c", cells, spare=2), Column("d", cells, spare=1)]
    assert grid(columns, room).left_out == left_out


SEQUENCE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int) ×3 → "
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(T3) → "
    "void ns::layer_norm_kernel<float>(int) → aten::mul"
)


def test_a_sequence_of_kernels_is_told_by_what_each_does():
    whole = fit(SEQUENCE, 150)
    assert whole == (
        "vectorized_elementwise_kernel<CUDAFunctor_add> ×3 → reduce_kernel<MeanOps> → ns::layer_norm_kernel → aten::mul"
    )
    assert fit(SEQUENCE, 60) == "add ×3 → Mean → layer_norm → mul"
    assert fit(SEQUENCE, 20) == "add ×3 → Mean → lay…"
    assert fit(SEQUENCE, len(SEQUENCE)) == SEQUENCE


def test_no_columns_are_no_lines():
    assert grid([], 80).body == ()


@given(st.text(), st.integers(1, 80))
def test_fitted_text_never_exceeds_its_room_unless_a_sign_is_wider(text, room):
    assert width(fit(text, room)) <= room


@given(st.text(st.characters(categories=["L", "N"])), st.integers(0, 20), st.booleans())
def test_padded_text_keeps_its_letters_and_reaches_its_room(text, room, right):
    padded = pad(text, room, right=right)
    assert padded.strip(" ") == text
    assert width(padded) == max(room, width(text))


@given(
    st.lists(
        st.tuples(st.text("ab c", max_size=30), st.text("xyz:<>", max_size=90), st.booleans()), min_size=1, max_size=6
    ),
    st.integers(40, 160),
)
def test_lines_fit_the_room_whatever_the_columns(columns, room):
    found = grid([Column(header, [cell], squeeze=squeeze) for header, cell, squeeze in columns], room)
    only = len(columns) - len(found.left_out) == 1  # the first column stays even if it is too wide
    assert all(width(line) <= room for line in (*found.head, *found.body)) or only
