from __future__ import annotations

import plotly.graph_objects as go
import polars as pl
import pytest
from device_traces import DEVICES_2, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.steps.timeline import TIMELINE, timeline
from stepscope.renderers import figures

FIGURE = figures.find("timeline")
SPANS = spans_of(
    kernel(STREAM_7, 0, 10_000),
    (STREAM_8, 5_000, 15_000, "Memcpy DtoH", "memcpy"),
    kernel(OTHER_DEVICE, 20_000, 5_000, "ncclDevKernel_AllReduce"),
)


def drawn(frame):
    return go.Figure(FIGURE(frame))


def rows(by="time", devices=DEVICES_2):
    return timeline(SPANS, TRACKS_5, devices, by=by, bucket_ns=10_000)


def test_each_device_has_a_lane_that_its_work_fills():
    figure = drawn(rows())
    assert [note.text for note in figure.layout.annotations] == ["cuda:0", "cuda:1"]
    assert figure.layout.barmode == "stack"
    found = {(trace.name, trace.yaxis): trace for trace in figure.data}
    assert found["computation", "y"].y == (1.0, 0.0, 0.0)
    assert found["exposed memcpy", "y"].y == (0.0, 1.0, 0.0)
    assert found["exposed communication", "y2"].y == (0.0, 0.0, 1.0)
    last = found["computation", "y"]
    assert (last.x, last.width) == ((0.0, 10.0, 20.0), (10.0, 10.0, 5.0))
    assert figure.layout.xaxis.title.text == "time (µs)"


def test_what_never_happens_has_no_place_in_the_legend():
    figure = drawn(rows().filter(pl.col("device") == "cuda:1"))
    assert {trace.name for trace in figure.data} == {"exposed communication"}


def test_streams_are_a_map():
    (streams,) = drawn(rows("stream-time")).data
    assert streams.type == "heatmap"
    assert streams.y == ("cuda:0 stream 7", "cuda:0 stream 8", "cuda:1 stream 7")
    assert streams.x == (0.0, 10.0, 20.0, 25.0)  # edges
    assert [list(z) for z in streams.z] == [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]


def test_lanes_say_whose_they_are_where_it_is_not_clear():
    unnamed = rows(devices=None)
    assert [note.text for note in drawn(unnamed).layout.annotations] == ["device 0", "device 1"]
    nameless = unnamed.with_columns(device_id=pl.lit(None, pl.UInt32))
    assert [note.text for note in drawn(nameless).layout.annotations] == ["device"]
    two = pl.concat([rows(), rows().with_columns(rank=pl.lit(4, pl.Int32))])
    assert [note.text for note in drawn(two).layout.annotations][::2] == ["rank 3 cuda:0", "rank 4 cuda:0"]
    traced = rows().with_columns(trace=pl.lit("<a>"))
    assert drawn(traced).layout.annotations[0].text == "&lt;a&gt; cuda:0"


@pytest.mark.parametrize(("by", "most"), [("time", 16), ("stream-time", 128)])
def test_of_very_many_lanes_some_are_drawn_and_the_rest_told(by, most):
    many = pl.concat([rows(by).head(3).with_columns(device=pl.lit(f"cuda:{i}")) for i in range(most + 2)])
    figure = drawn(many)
    assert "2 more are not drawn" in figure.layout.title.text
    lanes = len(figure.data[0].y) if by == "stream-time" else len(figure.layout.annotations)
    assert lanes == most


def test_nothing_done_is_nothing_drawn():
    assert FIGURE(TIMELINE.empty().drop("stream")) is None
