from __future__ import annotations

import polars as pl

from stepscope.renderers import figures

DRAW = figures.find("diff")


def test_changes_go_both_ways():
    figure = DRAW(pl.DataFrame({"name": ["up", "down", "same"], "delta_ns": [2e6, -5e6, 0.0]}))
    (data,) = figure["data"]
    assert data["x"] == [2.0, -5.0]
    assert data["marker"]["color"][0] != data["marker"]["color"][1]
    assert "title" not in figure["layout"]


def test_parts_are_drawn_where_there_are_no_names_and_unknown_ones_are_called_so():
    figure = DRAW(pl.DataFrame({"part": [None, "<a>"], "name": [None, None], "delta_ns": [1.0, 2.0]}))
    assert figure["data"][0]["hovertext"] == ["unknown", "&lt;a&gt;"]


def test_the_first_changes_are_drawn_and_that_is_said():
    figure = DRAW(pl.DataFrame({"name": [str(i) for i in range(20)], "delta_ns": [float(i) for i in range(20)]}))
    assert figure["layout"]["title"]["text"] == "the first 15 of 19 changes"


def test_no_change_is_no_figure():
    assert DRAW(pl.DataFrame({"name": ["same"], "delta_ns": [0.0]})) is None
    assert DRAW(pl.DataFrame({"delta_ns": [1.0]})) is None
