from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.names import KERNEL_CLASSES
from stepscope.renderers.figures._style import (
    COLOUR_OF_CLASS,
    COLOURS,
    axis,
    broken,
    clipped,
    first_of,
    layout,
    literal,
    parts_of,
    time_unit,
    titled,
    wrapped,
)

EVIL = "gemm<float, 4> & <b onclick='x'>\"bold\"</b>"


def test_names_are_drawn_literally():
    # Quotes stay: outside of a tag they mean nothing, and Plotly would draw &quot; letter by letter.
    assert literal(EVIL) == "gemm&lt;float, 4&gt; &amp; &lt;b onclick='x'&gt;\"bold\"&lt;/b&gt;"
    assert layout(note=EVIL)["title"]["text"] == literal(EVIL)
    assert axis(EVIL)["title"]["text"] == literal(EVIL)
    assert clipped(EVIL, 6) == "gemm&lt;…"
    assert wrapped("<a> bb ccc", 4) == "&lt;a&gt;<br>bb<br>ccc"
    assert wrapped("a b c d e", 1, most=2).endswith("…")


def test_a_title_stands_above_the_note_of_a_copy():
    plain = {"data": [1], "layout": layout(note="n<2", height=100)}
    with_title = titled(plain, "A & B")
    assert with_title["layout"]["title"]["text"] == "<b>A &amp; B</b><br><sup>n&lt;2</sup>"
    assert with_title["layout"]["height"] > plain["layout"]["height"]
    assert plain["layout"]["title"]["text"] == "n&lt;2"
    bare = titled({"data": [], "layout": layout()}, "T")
    assert bare["layout"]["title"]["text"] == "<b>T</b>"


def test_legends_are_above_at_the_side_or_nowhere():
    assert layout()["legend"]["orientation"] == "h"
    assert "orientation" not in layout(legend="side")["legend"]
    assert not layout(legend="")["showlegend"]


def test_parts_of_a_step_have_colours_of_their_own():
    together = ("computation", "exposed communication", "exposed memcpy", "idle", "data loading", "synchronisation",
                "launch and runtime calls", "operators", "python and other")  # fmt: skip
    assert len({COLOURS[part] for part in together}) == len(together)
    assert COLOURS["python and other"] == COLOURS["Python and other"]


def test_long_names_are_broken_into_lines_and_cut_off_in_the_end():
    text = broken("word " * 200)
    assert text.count("<br>") == 4
    assert text.endswith("…")
    assert broken("") == "–"
    assert "<" not in broken(EVIL).replace("<br>", "")


@pytest.mark.parametrize(
    ("most", "unit"), [(0, "ns"), (1_999, "ns"), (2_000, "µs"), (5_000_000, "ms"), (3_000_000_000, "s")]
)
def test_the_unit_of_an_axis_fits_its_length(most, unit):
    assert time_unit(pl.Series([0, most]), pl.Series([0, 0]))[0] == unit
    assert time_unit(pl.Series([], dtype=pl.Int64), pl.Series([], dtype=pl.Int64)) == ("ns", 1.0)


def test_each_class_of_kernels_has_a_colour_of_its_own():
    assert set(COLOUR_OF_CLASS) == set(KERNEL_CLASSES)
    assert len(set(COLOUR_OF_CLASS.values())) == len(KERNEL_CLASSES)


def test_rows_are_parted_by_trace_or_rank_where_there_are_several():
    frame = pl.DataFrame({"rank": [0, 0, 1], "x": [1, 2, 3]})
    assert [(name, part["x"].to_list()) for name, part in parts_of(frame)] == [("rank 0", [1, 2]), ("rank 1", [3])]
    assert [name for name, _ in parts_of(frame.head(2))] == [""]
    assert [name for name, _ in parts_of(frame.with_columns(trace=pl.Series(["a", "b", "b"])))] == ["a", "b"]
    assert [name for name, _ in parts_of(frame.drop("rank"))] == [""]


def test_the_note_on_the_first_rows_separates_thousands():
    assert first_of(15, 1234, "changes") == "the first 15 of 1,234 changes"
    assert first_of(15, 20) == "the first 15 of 20"
    assert first_of(15, 15) == ""
