"""Stacked bars: the parts of steps, of collectives and of a report."""

from __future__ import annotations

import polars as pl

from stepscope.renderers import figures
from stepscope.renderers.figures import COLOURS
from stepscope.renderers.figures.stacked import bars, colour_of

STEPS_DRAW = figures.find("steps")


def device_steps(n=2):
    return pl.DataFrame(
        {
            "step": list(range(1, n + 1)),
            "computation_ns": [3e6] * n,
            "exposed_communication_ns": [0] * n,
            "exposed_memcpy_ns": [0.0] + [1e6] * (n - 1),
            "idle_ns": [1e6] + [0.0] * (n - 1),
        }
    )


def test_steps_are_stacked_by_the_parts_that_were_measured():
    figure = STEPS_DRAW(device_steps(), lambda row: f"/timeline?step={row['step']}")
    assert [trace["name"] for trace in figure["data"]] == ["computation", "exposed memcpy", "idle"]
    assert figure["data"][0]["y"] == [3.0, 3.0]
    assert figure["data"][1]["y"] == [0.0, 1.0]
    assert figure["data"][0]["customdata"] == ["/timeline?step=1", "/timeline?step=2"]
    assert figure["layout"]["barmode"] == "stack"
    assert "title" not in figure["layout"]


def test_without_a_device_the_parts_are_those_of_the_host_and_ranks_are_told_apart():
    frame = pl.DataFrame(
        {"step": [1, 1], "rank": [0, 1], "operator_ns": [3, 4], "dataloader_ns": [1, 1], "other_host_ns": [1, 1]}
    )
    figure = STEPS_DRAW(frame)
    assert [trace["name"] for trace in figure["data"]] == ["operators", "data loading", "Python and other"]
    assert figure["data"][0]["x"] == ["1 r0", "1 r1"]
    assert figure["data"][0]["customdata"] == [None, None]
    talking = STEPS_DRAW(frame.with_columns(exposed_communication_ns=pl.lit(2)))
    assert [trace["name"] for trace in talking["data"]][:2] == ["operators", "exposed communication"]


def test_of_very_many_steps_the_first_are_drawn_and_that_is_said():
    figure = STEPS_DRAW(device_steps(1_234))
    assert len(figure["data"][0]["x"]) == 400
    assert figure["layout"]["title"]["text"] == "the first 400 of 1,234"


def test_steps_of_which_no_part_is_known_have_no_figure():
    assert STEPS_DRAW(pl.DataFrame({"step": [1]})) is None


COMMUNICATION_DRAW = figures.find("communication")


def test_communication_is_split_into_hidden_and_exposed():
    frame = pl.DataFrame({"collective": ["a", "b", "a"], "hidden_ns": [1e6, 2e6, 3e6], "exposed_ns": [5e6, 0, 1e6]})
    exposed, hidden = COMMUNICATION_DRAW(frame)["data"]
    assert (exposed["x"], exposed["y"], hidden["y"]) == (["a", "b"], [6.0, 0.0], [4.0, 2.0])


def test_names_are_literal_and_those_cut_alike_stay_apart():
    names = ["<b>", "x" * 90 + "1", "x" * 90 + "2"]
    frame = pl.DataFrame({"collective": names, "hidden_ns": [1, 1, 1], "exposed_ns": [3, 2, 1]})
    shown = COMMUNICATION_DRAW(frame)["data"][0]["x"]
    assert shown[0] == "&lt;b&gt;"
    assert len(set(shown)) == 3


def test_of_very_many_the_first_are_drawn_and_that_is_said():
    frame = pl.DataFrame({"collective": [str(i) for i in range(20)], "hidden_ns": [1] * 20, "exposed_ns": range(20)})
    figure = COMMUNICATION_DRAW(frame)
    assert figure["data"][0]["x"][0] == "19"
    assert figure["layout"]["title"]["text"] == "the first 15 of 20"


def test_unknown_parts_are_not_drawn():
    none = pl.Series([None], dtype=pl.Int64)
    assert COMMUNICATION_DRAW(pl.DataFrame({"collective": ["a"], "hidden_ns": none, "exposed_ns": none})) is None


def test_bars_of_a_report_are_stacked_with_the_first_on_top():
    figure = bars([("Step", [("computation", 0.75), ("idle", 0.25)]), ("Host", [("idle", 1.0)])])
    first, second = figure["data"]
    assert (first["name"], first["y"], first["x"]) == ("computation", ["Host", "Step"], [None, 0.75])
    assert second["x"] == [1.0, 0.25]
    assert first["marker"]["color"] == COLOURS["computation"]


def test_parts_without_a_colour_get_one_by_their_place():
    assert colour_of("something", 0) != colour_of("something", 1)
