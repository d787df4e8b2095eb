from __future__ import annotations

import plotly.graph_objects as go
from device_traces import DEVICES_2, OTHER_DEVICE, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.steps.device_utilisation import device_utilisation
from stepscope.core.schema import KERNELS, STEPS
from stepscope.renderers import figures


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
