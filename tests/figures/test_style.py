from __future__ import annotations

import polars as pl
import pytest

from stepscope.figures._style import COLOUR_OF_CLASS, broken, layout, literal, parts_of, time_unit
from stepscope.names import KERNEL_CLASSES

EVIL = "gemm<float, 4> & <b onclick='x'>\"bold\"</b>"


def test_names_are_drawn_literally():
    assert literal(EVIL) == "gemm&lt;float, 4&gt; &amp; &lt;b onclick=&#x27;x&#x27;&gt;&quot;bold&quot;&lt;/b&gt;"
    assert "<b " not in layout(EVIL, subtitle=EVIL)["title"]["text"]


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
