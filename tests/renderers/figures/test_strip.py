from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from stepscope.renderers.figures._strip import strip

MEASURES = {"a_ratio": "first", "b_ratio": "second"}


def frame(**more):
    return pl.DataFrame({"ts_ns": [0, 10_000], "dur_ns": [10_000, 5_000], "a_ratio": [0.5, None], "b_ratio": [None] * 2}
                        | more, schema_overrides={"b_ratio": pl.Float64})  # fmt: skip


def drawn(rows):
    return go.Figure(strip(rows, MEASURES, x="ts_ns", length="dur_ns", x_title="<time>"))


def test_lines_are_steps_up_to_the_end_of_the_last_stretch():
    figure = drawn(frame())
    (line,) = figure.data
    assert (line.name, line.x, line.y) == ("first", (0.0, 10.0, 15.0), (0.5, None, None))
    assert (line.line.shape, line.mode) == ("hv", "lines")
    assert figure.layout.xaxis.title.text == "&lt;time&gt; (µs)"
    assert figure.layout.title.text is None


def test_classes_are_a_strip_below_each_in_its_colour():
    bars = [trace for trace in drawn(frame(kernel_class=["gemm", None])).data if trace.type == "bar"]
    assert [(bar.name, bar.x, bar.width) for bar in bars] == [("gemm", (0.0,), (10.0,)), ("other", (10.0,), (5.0,))]
    assert bars[0].marker.color != bars[1].marker.color


def test_ranks_have_lanes_and_one_legend():
    rows = pl.concat([frame(rank=[0, 0], kernel_class=["gemm", "norm"]), frame(rank=[1, 1], kernel_class=["gemm"] * 2)])
    figure = drawn(rows)
    assert [note.text for note in figure.layout.annotations] == ["rank 0", "rank 1"]
    lines = [trace for trace in figure.data if trace.type == "scatter"]
    assert [(line.yaxis, line.showlegend) for line in lines] == [("y", True), ("y2", False)]
    shown = [bar.name for bar in figure.data if bar.type == "bar" and bar.showlegend]
    assert shown == ["gemm", "norm"]


def test_of_very_many_ranks_some_are_drawn_and_the_rest_told():
    rows = pl.concat([frame(rank=[i, i]) for i in range(20)])
    figure = drawn(rows)
    assert len(figure.data) == 16
    assert "4 more are not drawn" in figure.layout.title.text


def test_without_a_known_value_there_is_no_figure():
    none = frame(a_ratio=[None, None]).with_columns(pl.col("a_ratio").cast(pl.Float64))
    assert strip(none, MEASURES, x="ts_ns", length="dur_ns", x_title="time") is None
