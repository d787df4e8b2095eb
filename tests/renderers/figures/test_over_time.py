"""Figures over time: lanes of devices, streams and ratios, and lines of memory."""

from __future__ import annotations

from itertools import pairwise

import plotly.graph_objects as go
import polars as pl
import pytest
from device_traces import DEVICES_2, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from kernel_launches_of import GEMM, POINTWISE, percents
from kernel_launches_of import spans_of as launches_of

from stepscope.analyses.kernels.utilisation import utilisation
from stepscope.analyses.steps.device_utilisation import device_utilisation
from stepscope.analyses.steps.timeline import TIMELINE, timeline
from stepscope.core.schema import KERNELS, STEPS
from stepscope.renderers import figures
from stepscope.renderers.figures.over_time import lane, lane_axes, ratio_lanes


def test_lanes_lie_below_each_other_on_the_axis_of_the_lowest():
    axes = lane_axes(["<a>", "", "c"], "time", apart=0.1, range=[0, 1])
    domains = [axes[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1
    assert domains[2][0] == pytest.approx(0)
    for upper, lower in pairwise(domains):
        assert upper[0] - lower[1] == pytest.approx(0.1)
    assert axes["xaxis"]["anchor"] == lane(2) == "y3"
    assert axes["yaxis2"]["range"] == [0, 1]
    assert [note["text"] for note in axes["annotations"]] == ["&lt;a&gt;", "c"]


FIGURE = figures.find("timeline")
SPANS = spans_of(
    kernel(STREAM_7, 0, 10_000),
    (STREAM_8, 5_000, 15_000, "Memcpy DtoH", "memcpy"),
    kernel(OTHER_DEVICE, 20_000, 5_000, "ncclDevKernel_AllReduce"),
)


def drawn_timeline(frame):
    return go.Figure(FIGURE(frame))


def rows_timeline(by="time", devices=DEVICES_2):
    return timeline(SPANS, TRACKS_5, devices, by=by, bucket_ns=10_000)


def test_each_device_has_a_lane_that_its_work_fills():
    figure = drawn_timeline(rows_timeline())
    assert [note.text for note in figure.layout.annotations] == ["cuda:0", "cuda:1"]
    assert figure.layout.barmode == "stack"
    traces = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert traces["computation", "y"].y == (1.0, 0.0, 0.0)
    assert traces["exposed memcpy", "y"].y == (0.0, 1.0, 0.0)
    assert traces["exposed communication", "y2"].y == (0.0, 0.0, 1.0)
    last = traces["computation", "y"]
    assert (last.x, last.width) == ((0.0, 10.0, 20.0), (10.0, 10.0, 5.0))
    assert figure.layout.xaxis.title.text == "time (µs)"


def test_what_never_happens_has_no_place_in_the_legend():
    figure = drawn_timeline(rows_timeline().filter(pl.col("device") == "cuda:1"))
    assert {trace.name for trace in figure.data} == {"exposed communication"}


def test_streams_are_a_map():
    (streams,) = drawn_timeline(rows_timeline("stream-time")).data
    assert streams.type == "heatmap"
    assert streams.y == ("cuda:0 stream 7", "cuda:0 stream 8", "cuda:1 stream 7")
    assert streams.x == (0.0, 10.0, 20.0, 25.0)  # edges
    assert [list(z) for z in streams.z] == [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_lanes_say_whose_they_are_where_it_is_not_clear():
    unnamed = rows_timeline(devices=DEVICES_2.clear())
    assert [note.text for note in drawn_timeline(unnamed).layout.annotations] == ["device 0", "device 1"]
    nameless = unnamed.with_columns(device_id=pl.lit(None, pl.UInt32))
    assert [note.text for note in drawn_timeline(nameless).layout.annotations] == ["device"]
    two = pl.concat([rows_timeline(), rows_timeline().with_columns(rank=pl.lit(4, pl.Int32))])
    assert [note.text for note in drawn_timeline(two).layout.annotations][::2] == ["rank 3 cuda:0", "rank 4 cuda:0"]
    traced = rows_timeline().with_columns(trace=pl.lit("<a>"))
    assert drawn_timeline(traced).layout.annotations[0].text == "&lt;a&gt; cuda:0"


@pytest.mark.slow
@pytest.mark.parametrize(("by", "most"), [("time", 16), ("stream-time", 128)])
def test_of_very_many_lanes_some_are_drawn_and_the_rest_told(by, most):
    many = pl.concat([rows_timeline(by).head(3).with_columns(device=pl.lit(f"cuda:{i}")) for i in range(most + 2)])
    figure = drawn_timeline(many)
    assert "2 more are not drawn" in figure.layout.title.text
    lanes = len(figure.data[0].y) if by == "stream-time" else len(figure.layout.annotations)
    assert lanes == most


def test_nothing_done_is_nothing_drawn():
    assert FIGURE(TIMELINE.empty().drop("stream")) is None


def test_each_device_has_a_lane():
    figure = figures.find("device-utilisation")
    spans = spans_of(kernel(STREAM_7, 0, 3_000), kernel(OTHER_DEVICE, 0, 4_000))
    frame = device_utilisation(
        spans, TRACKS_5, DEVICES_2, STEPS.empty(), KERNELS.empty(), bucket_ns=2_000, **figure.options
    )
    drawn = go.Figure(figure(frame))
    assert [note.text for note in drawn.layout.annotations] == ["cuda:0", "cuda:1"]
    busy = [trace.y for trace in drawn.data if trace.name == "busy"]
    assert busy == [(1.0, 0.5, 0.5), (1.0, 1.0, 1.0)]
    assert {trace.name for trace in drawn.data} == {"busy", "tensor cores"}


def test_ratios_over_the_time_of_kernels_and_their_classes():
    figure = figures.find("utilisation")
    metrics = percents(tensor=[80, 0], dram=[20, 50])
    frame = utilisation(launches_of((GEMM, 6_000), (POINTWISE, 4_000)), metrics, stretches=5, **figure.options)
    lines = {trace.name: trace for trace in go.Figure(figure(frame)).data}
    assert lines["tensor cores"].y == (0.8, 0.8, 0.8, 0.0, 0.0, 0.0)
    assert lines["memory bandwidth"].x == (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    assert "multiprocessors" not in lines  # not measured
    assert lines["gemm"].x == (0.0, 2.0, 4.0)
    assert lines["elementwise"].x == (6.0, 8.0)


MEASURES = {"a_ratio": "first", "b_ratio": "second"}


def ratios(**more):
    return pl.DataFrame({"ts_ns": [0, 10_000], "dur_ns": [10_000, 5_000], "a_ratio": [0.5, None], "b_ratio": [None] * 2}
                        | more, schema_overrides={"b_ratio": pl.Float64})  # fmt: skip


def drawn_ratios(rows):
    return go.Figure(ratio_lanes(rows, MEASURES, x="ts_ns", length="dur_ns", x_title="<time>"))


def test_lines_are_steps_up_to_the_end_of_the_last_stretch():
    figure = drawn_ratios(ratios())
    (line,) = figure.data
    assert (line.name, line.x, line.y) == ("first", (0.0, 10.0, 15.0), (0.5, None, None))
    assert (line.line.shape, line.mode) == ("hv", "lines")
    assert figure.layout.xaxis.title.text == "&lt;time&gt; (µs)"
    assert figure.layout.title.text is None


def test_classes_are_a_strip_below_each_in_its_colour():
    bars = [trace for trace in drawn_ratios(ratios(kernel_class=["gemm", None])).data if trace.type == "bar"]
    assert [(bar.name, bar.x, bar.width) for bar in bars] == [("gemm", (0.0,), (10.0,)), ("other", (10.0,), (5.0,))]
    assert bars[0].marker.color != bars[1].marker.color


def test_ranks_have_lanes_and_one_legend():
    rows = pl.concat(
        [
            ratios(rank=[0, 0], kernel_class=["gemm", "norm"]),
            ratios(rank=[1, 1], kernel_class=["gemm"] * 2),
        ]
    )
    figure = drawn_ratios(rows)
    assert [note.text for note in figure.layout.annotations] == ["rank 0", "rank 1"]
    lines = [trace for trace in figure.data if trace.type == "scatter"]
    assert [(line.yaxis, line.showlegend) for line in lines] == [("y", True), ("y2", False)]
    shown = [bar.name for bar in figure.data if bar.type == "bar" and bar.showlegend]
    assert shown == ["gemm", "norm"]


def test_of_very_many_ranks_some_are_drawn_and_the_rest_told():
    rows = pl.concat([ratios(rank=[i, i]) for i in range(20)])
    figure = drawn_ratios(rows)
    assert len(figure.data) == 16
    assert "4 more are not drawn" in figure.layout.title.text


def test_without_a_known_value_there_is_no_figure():
    none = ratios(a_ratio=[None, None]).with_columns(pl.col("a_ratio").cast(pl.Float64))
    assert ratio_lanes(none, MEASURES, x="ts_ns", length="dur_ns", x_title="time") is None


MEMORY_DRAW = figures.find("memory")


def test_long_lines_of_memory_keep_their_peaks():
    held = [1] * 10_000
    held[5_555] = 99 << 20
    frame = pl.DataFrame(
        {"ts_ns": range(10_000), "device": ["cuda:0"] * 10_000, "allocated_bytes": held, "reserved_bytes": [0] * 10_000}
    )
    (line,) = MEMORY_DRAW(frame)["data"]
    assert max(line["y"]) == 99
    assert len(line["x"]) <= 2_001
    assert line["name"] == "cuda:0 allocated"


def test_devices_of_ranks_have_a_colour_each_and_the_allocator_a_dotted_line():
    frame = pl.DataFrame(
        {"ts_ns": [0, 0], "rank": [0, 1], "device": ["<d>", None], "allocated_bytes": [1, 1], "reserved_bytes": [2, 2]}
    )
    lines = MEMORY_DRAW(frame)["data"]
    assert [line["name"] for line in lines] == [
        "rank 0 &lt;d&gt; allocated", "rank 0 &lt;d&gt; reserved", "rank 1 allocated", "rank 1 reserved",
    ]  # fmt: skip
    assert [line["line"]["dash"] for line in lines] == ["solid", "dot"] * 2
    assert lines[0]["line"]["color"] == lines[1]["line"]["color"] != lines[2]["line"]["color"]


def test_without_devices_all_is_one_line_and_without_values_none():
    frame = pl.DataFrame({"ts_ns": [0], "allocated_bytes": [1]})
    assert [line["name"] for line in MEMORY_DRAW(frame)["data"]] == ["allocated"]
    assert MEMORY_DRAW(frame.with_columns(allocated_bytes=0)) is None
    assert MEMORY_DRAW(frame.with_columns(allocated_bytes=pl.lit(None, pl.Int64))) is None
