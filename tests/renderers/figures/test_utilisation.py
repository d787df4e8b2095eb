from __future__ import annotations

import plotly.graph_objects as go
from kernel_launches_of import GEMM, POINTWISE, percents, spans_of

from stepscope.analyses.kernels.utilisation import utilisation
from stepscope.renderers import figures


def test_ratios_over_the_time_of_kernels_and_their_classes():
    figure = figures.find("utilisation")
    metrics = percents(tensor=[80, 0], dram=[20, 50])
    frame = utilisation(spans_of((GEMM, 6_000), (POINTWISE, 4_000)), metrics, stretches=5, **figure.options)
    lines = {trace.name: trace for trace in go.Figure(figure(frame)).data}
    assert lines["tensor cores"].y == (0.8, 0.8, 0.8, 0.0, 0.0, 0.0)
    assert lines["memory bandwidth"].x == (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
    assert "multiprocessors" not in lines  # not measured
    assert lines["gemm"].x == (0.0, 2.0, 4.0)
    assert lines["elementwise"].x == (6.0, 8.0)
