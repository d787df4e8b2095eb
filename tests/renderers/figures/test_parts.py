from __future__ import annotations

import plotly.graph_objects as go
import polars as pl
import pytest

from stepscope.renderers import figures

DRAW = figures.find("parts")


def rows(*parts, **more):
    names, base, other = zip(*parts, strict=True)
    frame = pl.DataFrame({"part": names, "base_ns": base, "other_ns": other, **more})
    return frame.with_columns(delta_ns=pl.col("other_ns") - pl.col("base_ns"))


def test_the_changes_lead_from_the_base_to_the_other():
    figure = go.Figure(DRAW(rows(("computation", 60e6, 80e6), ("idle", 40e6, 10e6), ("<b>", 5e6, 5e6))))
    bar = figure.data[0]
    assert bar.y == (105.0, 20.0, -30.0, 95.0)
    assert bar.base == (0.0, 105.0, 125.0, 0.0)
    assert figure.layout.xaxis.ticktext == ("base", "computation", "idle", "other")
    assert figure.data[2].text == ("105 ms", "+20 ms", "−30 ms", "95 ms")
    assert figure.data[2].y == (105.0, 125.0, 125.0, 95.0)
    assert figure.layout.title.text.startswith("−10 ms (−9.5 %)")
    assert len(set(bar.marker.color)) == 3


def test_each_bar_begins_where_the_one_before_ends():
    figure = DRAW(rows(("a", 1e6, 3e6), ("b", 3e6, 1e6), ("c", 0.0, 2e6)))
    bar, joints = figure["data"][:2]
    ends = [bar["base"][i] + bar["y"][i] for i in range(4)]
    assert bar["base"][1:4] == pytest.approx(ends[:3])
    assert ends[3] == pytest.approx(bar["y"][4])
    assert joints["y"][:2] == [bar["y"][0]] * 2


def test_bounds_of_a_change_are_lines_at_its_bar_and_are_told():
    frame = rows(("a", 10e6, 20e6), ("b", 10e6, 12e6), low_ns=[8e6, None], high_ns=[13e6, None])
    bar = DRAW(frame)["data"][0]
    assert bar["error_y"]["array"] == [0.0, 3.0, 0.0, 0.0]
    assert bar["error_y"]["arrayminus"] == [0.0, 2.0, 0.0, 0.0]
    assert bar["error_y"]["visible"]
    assert "(95 %: +8 ms to +13 ms)" in bar["hovertext"][1]
    assert "95 %" not in bar["hovertext"][2]
    assert not DRAW(frame.drop("low_ns", "high_ns"))["data"][0]["error_y"]["visible"]


def test_what_changed_little_is_one_bar():
    frame = rows(("a", 100e6, 150e6), *((str(i), 1e6, 1.05e6) for i in range(9)))
    figure = DRAW(frame)
    assert figure["layout"]["xaxis"]["ticktext"] == ["base", "a", "all else", "other"]
    assert figure["data"][0]["y"][2] == pytest.approx(0.45)


def test_of_very_many_parts_those_that_changed_most_are_drawn_in_their_order():
    figure = DRAW(rows(*((f"p{i}", 1e6, 2e6 + i * 1e5) for i in range(20))))
    names = figure["layout"]["xaxis"]["ticktext"]
    assert names == ["base", *(f"p{i}" for i in range(8, 20)), "all else", "other"]


def test_the_axis_begins_at_nothing_unless_changes_are_small_beside_the_step():
    large, small = DRAW(rows(("a", 10e6, 20e6))), DRAW(rows(("a", 100e6, 101e6)))
    assert large["layout"]["yaxis"]["range"][0] == 0
    low, high = small["layout"]["yaxis"]["range"]
    assert 50 < low < 100
    assert high > 101
    assert "the axis begins at" in small["layout"]["title"]["text"]
    assert "the axis" not in large["layout"]["title"]["text"]


def test_names_are_literal():
    figure = DRAW(rows(("<img src=x>", 1e6, 2e6)))
    assert "<img" not in str(figure).replace("<br>", "")


def test_no_parts_are_no_figure_and_a_side_without_time_is_one():
    empty = rows(("a", None, None)).with_columns(pl.col("base_ns", "other_ns", "delta_ns").cast(pl.Float64))
    assert DRAW(empty) is None
    figure = DRAW(rows(("a", 0.0, 2e6)))
    assert figure["layout"]["title"]["text"] == "+2 ms"
