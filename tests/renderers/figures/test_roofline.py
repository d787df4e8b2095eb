from __future__ import annotations

import math

import plotly.graph_objects as go
import polars as pl
import pytest

from stepscope.analyses.costs.roofline import ROOFLINE
from stepscope.renderers import figures

FIGURE = figures.find("roofline")
EVIL = "void gemm<float, 4>(<script>alert(1)</script>)"


def drawn(frame):
    return go.Figure(FIGURE(frame))


def row(**changed):
    known = {
        "name": "aten::mm", "family": "gemm", "precision": "bf16", "calls": 3, "device_ns": 1_000_000,
        "roof_ratio": 0.5, "bound": "compute", "flop_per_s": 5e14, "bytes_per_s": 1e12, "intensity": 500.0,
        "flop": 5e11, "bytes": 1e9, "peak_flop_per_s": 1e15, "peak_bytes_per_s": 2e12, "accelerator": "Mine",
    }  # fmt: skip
    return known | changed


ADD = row(name="aten::add", family="elementwise", device_ns=250_000, flop_per_s=1e11, intensity=0.1, bound="memory",
          peak_flop_per_s=1e14)  # fmt: skip


def frame(*rows):
    return ROOFLINE.conform(pl.DataFrame(rows, infer_schema_length=None))


def traces(figure):
    """Lines and points by name."""
    return {trace.name: trace for trace in figure.data}


def test_points_lie_where_they_are_and_their_area_goes_with_time():
    by_name = traces(drawn(frame(row(), ADD)))
    mm, add = by_name["gemm"], by_name["elementwise"]
    assert (mm.x, mm.y) == ((500.0,), (5e14,))
    assert (add.x, add.y) == ((0.1,), (1e11,))
    least = 7.0
    assert (add.marker.size[0] - least) / (mm.marker.size[0] - least) == pytest.approx(math.sqrt(0.25))


def test_roofs_rise_with_bandwidth_up_to_the_peak_of_each_precision():
    by_name = traces(drawn(frame(row(), ADD, row(name="aten::bmm"))))
    lines = [trace for trace in by_name.values() if trace.mode == "lines"]
    assert [line.name for line in lines] == [
        "Mine bf16: 1 PFLOP/s, 2 TB/s", "Mine bf16: 100 TFLOP/s, 2 TB/s",
    ]  # fmt: skip
    for line, peak in zip(lines, (1e15, 1e14), strict=True):
        assert line.x[1] == peak / 2e12
        assert line.y == tuple(min(x * 2e12, peak) for x in line.x)
        assert line.y[1] == line.y[2] == peak


def test_axes_are_logarithmic_and_hold_everything():
    figure = drawn(frame(row(), ADD))
    for axis, values in ((figure.layout.xaxis, (0.1, 500.0)), (figure.layout.yaxis, (1e11, 1e15))):
        assert axis.type == "log"
        low, high = (10**bound for bound in axis.range)
        assert low < min(values)
        assert max(values) < high
        assert all(low <= tick <= high for tick in axis.tickvals)
    assert "1 TFLOP/s" in figure.layout.yaxis.ticktext
    assert "1,000" in figure.layout.xaxis.ticktext


def test_what_a_point_says_is_literal():
    (point,) = (t for t in drawn(frame(row(name=EVIL, input_shapes="[[4,8],[8,2]]"))).data if t.mode == "markers")
    (text,) = point.text
    assert "<script>" not in text
    assert "void gemm&lt;float, 4&gt;(&lt;script&gt;" in text
    assert "[[4,8],[8,2]]" in text
    assert "compute-bound, 50 % of its roof" in text
    assert "500 TFLOP/s, 1 TB/s<br>500 FLOP/byte, bf16<br>1 ms in 3 calls" in text


def test_ranks_are_told():
    several = frame(row(), row()).with_columns(rank=pl.Series([0, 7]))
    (points,) = (trace for trace in drawn(several).data if trace.mode == "markers")
    assert [text.split("<br>")[0] for text in points.text] == ["rank 0", "rank 7"]


def test_rows_without_operations_or_roofs_have_no_place_and_are_counted():
    nothing = row(name="aten::cat", family=None, flop=None, bytes=None, flop_per_s=None, intensity=None, bound=None)
    copies = row(name="aten::copy_", flop=0.0, flop_per_s=0.0, intensity=0.0)
    unknown = row(name=None, family=None, peak_flop_per_s=None, peak_bytes_per_s=None, bound=None, roof_ratio=None,
                  accelerator=None, reason="no such <device>")  # fmt: skip
    figure = drawn(frame(row(), nothing, copies, unknown))
    assert "2 of 4 rows, 50 % of device time; no such &lt;device&gt;" in figure.layout.title.text
    assert len([trace for trace in figure.data if trace.mode == "lines"]) == 1
    other = traces(figure)["other"]
    assert "<b>no operator</b><br>no such &lt;device&gt;" in other.text[0]


def test_without_a_point_there_is_no_figure():
    for rows in (ROOFLINE.empty(), frame(row(flop=None))):
        assert FIGURE(rows) is None


def test_of_very_many_rows_the_longest_are_drawn():
    many = frame(*(row(name=str(i), device_ns=i) for i in range(1, 2_101)))
    (points,) = (trace for trace in drawn(many).data if trace.mode == "markers")
    assert len(points.x) == 2_000
    assert "<b>2100</b>" in points.text[0]
