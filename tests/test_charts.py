from __future__ import annotations

import json

import polars as pl
import pytest

from stepscope import analyses, charts, load, show


def test_steps_are_stacked_by_the_parts_that_were_measured():
    frame = pl.DataFrame(
        {
            "step": [1, 2],
            "computation_ns": [3e6, 4e6],
            "exposed_communication_ns": [0, 0],
            "exposed_memcpy_ns": [0.0, 1e6],
            "idle_ns": [1e6, 0.0],
        }
    )
    figure = charts.steps(frame, lambda row: f"/timeline?step={row['step']}")
    assert [trace["name"] for trace in figure["data"]] == ["computation", "exposed memcpy", "idle"]
    assert figure["data"][0]["y"] == [3.0, 4.0]
    assert figure["data"][0]["customdata"] == ["/timeline?step=1", "/timeline?step=2"]
    assert figure["layout"]["barmode"] == "stack"


def test_steps_of_several_ranks_are_told_apart():
    frame = pl.DataFrame(
        {"step": [1, 1], "rank": [0, 1], "operator_ns": [3, 4], "dataloader_ns": [1, 1], "other_host_ns": [1, 1]}
    )
    assert charts.steps(frame)["data"][0]["x"] == ["1 r0", "1 r1"]


def test_names_are_ranked_summed_over_rows_and_safe():
    frame = pl.DataFrame({"name": ["a<b>", "c", "a<b>"], "total_ns": [1_000_000, 3_000_000, 4_000_000]})
    data = charts.ranked(frame)["data"][0]
    assert data["x"] == [3.0, 5.0]
    assert data["hovertext"] == ["c", "a&lt;b&gt;"]
    assert data["text"] == ["3 ms (38 %)", "5 ms (62 %)"]


def test_names_that_are_cut_alike_keep_bars_of_their_own():
    frame = pl.DataFrame({"name": ["x" * 80 + "1", "x" * 80 + "2"], "total_ns": [1, 2]})
    assert charts.ranked(frame)["data"][0]["y"] == [0, 1]


def test_communication_is_split_into_hidden_and_exposed():
    frame = pl.DataFrame({"collective": ["a", "b", "a"], "hidden_ns": [1e6, 2e6, 3e6], "exposed_ns": [5e6, 0, 1e6]})
    exposed, hidden = charts.communication(frame)["data"]
    assert (exposed["x"], exposed["y"], hidden["y"]) == (["a", "b"], [6.0, 0.0], [4.0, 2.0])


def test_long_lines_of_memory_keep_their_peaks():
    held = [1] * 10_000
    held[5_555] = 99 << 20
    frame = pl.DataFrame(
        {"ts_ns": range(10_000), "device": ["cuda:0"] * 10_000, "allocated_bytes": held, "reserved_bytes": [0] * 10_000}
    )
    (line,) = charts.memory_over_time(frame)["data"]
    assert max(line["y"]) == 99
    assert len(line["x"]) <= 2_001
    assert line["name"] == "cuda:0 allocated"


def test_changes_go_both_ways():
    figure = charts.changes(pl.DataFrame({"name": ["up", "down", "same"], "delta_ns": [2e6, -5e6, 0.0]}))
    assert figure["data"][0]["x"] == [2.0, -5.0]
    assert charts.changes(pl.DataFrame({"name": ["same"], "delta_ns": [0.0]})) is None
    assert charts.changes(pl.DataFrame({"x": [1]})) is None


@pytest.mark.parametrize("name", ["steps", "operators", "kernels", "communication", "memory"])
def test_a_frame_without_the_columns_has_no_chart(name):
    assert charts.chart_of(name, pl.DataFrame({"x": [1]})) is None
    assert charts.chart_of(name, pl.DataFrame()) is None


def test_tables_without_a_chart_have_none(examples):
    trace = load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz")
    assert charts.chart_of("tracks", trace.tracks) is None


@pytest.mark.parametrize(("name", "options"), [("steps", {}), ("operators", {}), ("memory", {"by": "time"})])
def test_charts_of_a_recording_are_json(examples, name, options):
    assert name in analyses.names()
    frame = show(load(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz"), name, **options)
    figure = charts.chart_of(name, frame)
    assert json.loads(json.dumps(figure, allow_nan=False))["data"]


def test_bars_of_a_report_are_stacked_with_the_first_on_top():
    figure = charts.bars([("Step", [("computation", 0.75), ("idle", 0.25)]), ("Host", [("idle", 1.0)])])
    first, second = figure["data"]
    assert (first["name"], first["y"], first["x"]) == ("computation", ["Host", "Step"], [None, 0.75])
    assert second["x"] == [1.0, 0.25]
