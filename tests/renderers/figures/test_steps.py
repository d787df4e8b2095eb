from __future__ import annotations

import polars as pl

from stepscope.renderers import figures

DRAW = figures.find("steps")


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
    figure = DRAW(device_steps(), lambda row: f"/timeline?step={row['step']}")
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
    figure = DRAW(frame)
    assert [trace["name"] for trace in figure["data"]] == ["operators", "data loading", "Python and other"]
    assert figure["data"][0]["x"] == ["1 r0", "1 r1"]
    assert figure["data"][0]["customdata"] == [None, None]
    talking = DRAW(frame.with_columns(exposed_communication_ns=pl.lit(2)))
    assert [trace["name"] for trace in talking["data"]][:2] == ["operators", "exposed communication"]


def test_of_very_many_steps_the_first_are_drawn_and_that_is_said():
    figure = DRAW(device_steps(1_234))
    assert len(figure["data"][0]["x"]) == 400
    assert figure["layout"]["title"]["text"] == "the first 400 of 1,234"


def test_steps_of_which_no_part_is_known_have_no_figure():
    assert DRAW(pl.DataFrame({"step": [1]})) is None
