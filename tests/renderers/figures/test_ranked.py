"""Bars of names: the largest first, what is not drawn is said."""

from __future__ import annotations

import polars as pl

from stepscope.renderers import figures
from stepscope.renderers.figures.ranked import ranked


def test_names_are_ranked_summed_over_rows_and_safe():
    frame = pl.DataFrame({"name": ["a<b>", "c", "a<b>"], "total_ns": [1_000_000, 3_000_000, 4_000_000]})
    figure = figures.find("kernels")(frame, lambda row: "/" + row["name"])
    (data,) = figure["data"]
    assert data["x"] == [3.0, 5.0]
    assert data["hovertext"] == ["c", "a&lt;b&gt;"]
    assert data["text"] == ["3 ms (38 %)", "5 ms (62 %)"]
    assert data["customdata"] == ["/c", "/a<b>"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["c", "a&lt;b&gt;"]


def test_names_that_are_cut_alike_keep_bars_of_their_own():
    frame = pl.DataFrame({"name": ["x" * 80 + "1", "x" * 80 + "2"], "total_ns": [1, 2]})
    assert ranked(frame, None, "total_ns")["data"][0]["y"] == [0, 1]


def test_the_first_fifteen_are_drawn_and_that_is_said():
    frame = pl.DataFrame({"name": [str(i) for i in range(20)], "total_ns": range(20)})
    figure = ranked(frame, None, "total_ns")
    assert figure["data"][0]["hovertext"][-1] == "19"
    assert len(figure["data"][0]["x"]) == 15
    assert figure["layout"]["title"]["text"] == "the first 15 of 19"  # one takes no time


def test_operators_are_ranked_by_device_time_where_there_is_any():
    frame = pl.DataFrame({"name": ["a", "b"], "device_self_ns": [5, 1], "host_self_ns": [1, 5]})
    draw = figures.find("operators")
    assert draw(frame)["data"][0]["hovertext"] == ["b", "a"]
    unknown = frame.with_columns(device_self_ns=pl.lit(None, pl.Int64))
    assert draw(unknown)["data"][0]["hovertext"] == ["a", "b"]


def test_where_nothing_took_time_there_is_no_figure():
    assert ranked(pl.DataFrame({"name": ["a"], "total_ns": [0]}), None, "total_ns") is None
    assert ranked(pl.DataFrame({"name": ["a"]}), None, "total_ns") is None


DIFF_DRAW = figures.find("diff")


def test_changes_go_both_ways():
    figure = DIFF_DRAW(pl.DataFrame({"name": ["up", "down", "same"], "delta_ns": [2e6, -5e6, 0.0]}))
    (data,) = figure["data"]
    assert data["x"] == [2.0, -5.0]
    assert data["marker"]["color"][0] != data["marker"]["color"][1]
    assert "title" not in figure["layout"]


def test_parts_are_drawn_where_there_are_no_names_and_unknown_ones_are_called_so():
    figure = DIFF_DRAW(pl.DataFrame({"part": [None, "<a>"], "name": [None, None], "delta_ns": [1.0, 2.0]}))
    assert figure["data"][0]["hovertext"] == ["unknown", "&lt;a&gt;"]


def test_the_first_changes_are_drawn_and_that_is_said():
    figure = DIFF_DRAW(pl.DataFrame({"name": [str(i) for i in range(20)], "delta_ns": [float(i) for i in range(20)]}))
    assert figure["layout"]["title"]["text"] == "the first 15 of 19 changes"


def test_no_change_is_no_figure():
    assert DIFF_DRAW(pl.DataFrame({"name": ["same"], "delta_ns": [0.0]})) is None
    assert DIFF_DRAW(pl.DataFrame({"delta_ns": [1.0]})) is None
