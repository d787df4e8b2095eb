from __future__ import annotations

import polars as pl

from stepscope.renderers import figures

DRAW = figures.find("communication")


def test_communication_is_split_into_hidden_and_exposed():
    frame = pl.DataFrame({"collective": ["a", "b", "a"], "hidden_ns": [1e6, 2e6, 3e6], "exposed_ns": [5e6, 0, 1e6]})
    exposed, hidden = DRAW(frame)["data"]
    assert (exposed["x"], exposed["y"], hidden["y"]) == (["a", "b"], [6.0, 0.0], [4.0, 2.0])


def test_names_are_literal_and_those_cut_alike_stay_apart():
    names = ["<b>", "x" * 90 + "1", "x" * 90 + "2"]
    frame = pl.DataFrame({"collective": names, "hidden_ns": [1, 1, 1], "exposed_ns": [3, 2, 1]})
    shown = DRAW(frame)["data"][0]["x"]
    assert shown[0] == "&lt;b&gt;"
    assert len(set(shown)) == 3


def test_of_very_many_the_first_are_drawn_and_that_is_said():
    frame = pl.DataFrame({"collective": [str(i) for i in range(20)], "hidden_ns": [1] * 20, "exposed_ns": range(20)})
    figure = DRAW(frame)
    assert figure["data"][0]["x"][0] == "19"
    assert figure["layout"]["title"]["text"] == "the first 15 of 20"


def test_unknown_parts_are_not_drawn():
    none = pl.Series([None], dtype=pl.Int64)
    assert DRAW(pl.DataFrame({"collective": ["a"], "hidden_ns": none, "exposed_ns": none})) is None
