from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import GEMM, POINTWISE, percents, spans_of

from stepscope.analyses.kernels.kernel_runs import ANALYSIS, KERNEL_RUNS, kernel_runs
from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.core.trace import Meta, Trace

SPANS_6 = spans_of((GEMM, 10), (GEMM, 20), (POINTWISE, 30), (POINTWISE, 5), (POINTWISE, 5), (GEMM, 30))
METRICS_6 = percents(tensor=[80, 80, 0, 0, 0, 80], dram=[20, 20, 50, 50, 50, 20])


def test_launches_in_succession_in_one_state_are_a_run() -> None:
    got = kernel_runs(SPANS_6, METRICS_6)
    assert got.rows(named=True) == [{
        "n_runs": 3, "calls": 6, "mean_calls": 2.0, "max_calls": 3, "total_ns": 100, "share_ratio": 1.0,
        "gemm_ratio": 0.6, "mean_states": None,
    }]  # fmt: skip


def test_runs_by_state_and_each_by_itself() -> None:
    by_state = kernel_runs(SPANS_6, METRICS_6, by="state")
    assert by_state.select("state", "n_runs", "calls", "mean_calls", "share_ratio", "gemm_ratio").rows() == [
        ("HM", 2, 3, 1.5, 0.6, 1.0), ("LM", 1, 3, 3.0, 0.4, 0.0),
    ]  # fmt: skip
    each = kernel_runs(SPANS_6, METRICS_6, by="run")
    assert each.select("run", "state", "first_id", "calls", "total_ns").rows() == [
        (0, "HM", 0, 2, 30), (1, "LM", 2, 3, 40), (2, "HM", 5, 1, 30),
    ]  # fmt: skip


def test_states_in_a_window_that_slides() -> None:
    assert kernel_runs(SPANS_6, METRICS_6, window=2)["mean_states"].to_list() == [
        pytest.approx((1 + 2 + 1 + 1 + 2) / 5)
    ]
    assert kernel_runs(SPANS_6, METRICS_6, window=6)["mean_states"].to_list() == [2.0]


@given(st.lists(st.sampled_from([0, 50, 90]), min_size=3, max_size=40), st.integers(1, 5))
def test_the_window_agrees_with_counting(values, window) -> None:
    spans = spans_of(*[(GEMM, 1)] * len(values))
    got = kernel_runs(spans, percents(tensor=values, dram=[0] * len(values)), window=window)["mean_states"].item()
    windows = [len(set(values[i : i + window])) for i in range(len(values) - window + 1)]
    assert got == (pytest.approx(sum(windows) / len(windows)) if windows else None)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(UnknownName, match="name"):
        kernel_runs(SPANS_6, METRICS_6, by="name")  # type: ignore[arg-type]
    with pytest.raises(StepscopeError, match="window is 0"):
        kernel_runs(SPANS_6, METRICS_6, window=0)


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "ncu"), {"spans": SPANS_6, "kernel_metrics": METRICS_6})
    for by in ("all", "state", "run"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: KERNEL_RUNS.dtypes[name] for name in got.columns}
