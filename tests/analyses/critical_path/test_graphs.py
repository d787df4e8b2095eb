from __future__ import annotations

import pytest
from path_traces import MAIN, PATH_TRACKS, US, Row, call, kernel, op, spans_of, steps_of

from stepscope.analyses.critical_path.predictions import predictions


def as_graph(*rows, length):
    spans = spans_of(Row(MAIN, 0, length, "ProfilerStep#0", "step"), *rows)
    return predictions(spans, PATH_TRACKS, steps_of((0, length)), changes="launch: graphs").row(0, named=True)


def copied_in(first_use):
    """A copy to the device whose operator needs so many µs more at first, five small operators, a kernel, a wait."""
    at = 30 + first_use
    return (
        op(0, at, "aten::to"),
        call(at - 20, 20, "cudaMemcpyAsync", key="copy"),
        kernel(at - 12, 8, "copy", "Memcpy HtoD (Pageable -> Device)", category="memcpy", step=0),
        *(op(at + 10 * i, 8, f"aten::view_{i}") for i in range(5)),
        op(at + 60, 20, "aten::mm"),
        call(at + 65, 10, key="k"),
        kernel(at + 80, 50, "k", step=0),
        call(at + 85, 50, "cudaDeviceSynchronize"),
    )


def test_a_graph_is_captured_after_operators_were_used_for_the_first_time():
    usual = as_graph(*copied_in(0), length=200)["predicted_ns"]
    first = as_graph(*copied_in(3000), length=3200)["predicted_ns"]
    assert first == pytest.approx(usual, abs=20 * US)


def test_what_each_operator_takes_stays():
    usual = as_graph(*copied_in(0), length=200)["predicted_ns"]
    slow = as_graph(*copied_in(600), length=800)["predicted_ns"]
    assert slow == pytest.approx(usual + 600 * US)
