from __future__ import annotations

import polars as pl
import pytest
from path_traces import MAIN, PATH_TRACKS, US, Row, call, kernel, op, spans_of, steps_of

from stepscope.analyses.critical_path.predictions import predictions
from stepscope.core.errors import StepscopeError

# A host that needs 20 µs for a step queues a kernel of 60 µs, and waits for it.
BOUND_BY_DEVICE = spans_of(
    Row(MAIN, 0, 90, "ProfilerStep#0", "step"),
    op(2, 10, "aten::linear"),
    call(5, 5, "cudaLaunchKernel", key="a"),
    call(20, 60, "cudaDeviceSynchronize"),
    kernel(12, 60, "a", "ampere_sgemm_128x64"),
)


def predicted(spans, *changes, **options):
    steps = steps_of((0, 90))
    return predictions(spans, PATH_TRACKS, steps, changes="\n".join(changes), **options).row(0, named=True)


def test_a_share_of_time_is_not_a_gain():
    # The host waits 60 µs for the device, and needs 30 µs of its own.
    row = predicted(BOUND_BY_DEVICE, "class gemm: 2x")
    assert (row["scenario"], row["step_ns"], row["basis"]) == ("class gemm: 2x", 90 * US, "replayed")
    assert row["predicted_ns"] == 60 * US
    assert row["gain_ratio"] == pytest.approx(1 / 3)
    assert predicted(BOUND_BY_DEVICE, "op ~ linear: 2x")["predicted_ns"] < 60 * US


def test_changes_are_made_together():
    both = predicted(BOUND_BY_DEVICE, "class gemm: 2x", "host: 2x")["predicted_ns"]
    assert both < predicted(BOUND_BY_DEVICE, "class gemm: 2x")["predicted_ns"]
    assert predicted(BOUND_BY_DEVICE, "device: 2x", "host: 2x")["scenario"] == "device: 2x + host: 2x"


def test_times_are_scaled_to_the_clock_of_a_step_that_was_measured():
    row = predicted(BOUND_BY_DEVICE, "class gemm: 2x", measured_step="45us")
    assert (row["step_ns"], row["predicted_ns"]) == (45 * US, 30 * US)
    assert row["gain_ratio"] == pytest.approx(1 / 3)


def test_a_change_of_what_is_not_there_is_refused():
    with pytest.raises(StepscopeError, match="nothing to change"):
        predicted(BOUND_BY_DEVICE, "loader: hidden")


def test_without_changes_standard_questions_are_answered_best_first():
    rows = predictions(BOUND_BY_DEVICE, PATH_TRACKS)
    assert {"kernel ~ ^ampere_sgemm_128x64$: 2x", "sync: removed", "device: free"} <= set(
        rows["scenario"].cast(pl.String)
    )
    assert rows["gain_ratio"].is_sorted(descending=True)
