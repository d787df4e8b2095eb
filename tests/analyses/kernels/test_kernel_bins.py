from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import GEMM, POINTWISE, percents, sizes_of, spans_of

from stepscope.analyses.kernels.kernel_bins import (
    ANALYSIS,
    KERNEL_BINS,
    KERNEL_RUNS,
    KERNEL_RUNS_ANALYSIS,
    kernel_bins,
    kernel_runs,
    launches_with_state,
    letter,
)
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.trace import Meta, Trace

SPANS_5 = spans_of((GEMM, 50), (POINTWISE, 20), (POINTWISE, 10), (GEMM, 15), ("redzone_checker", 100))
METRICS_5 = percents(sm=[80, 20, 5, 80, 99], dram=[20, 80, 5, 20, 99], tensor=[75, 0, 0, 75, 0])
SIZES_5 = sizes_of(40_000, 40_000, 1_000, 40_000, 40_000)


def test_time_in_each_state_with_matrix_products_apart() -> None:
    got = kernel_bins(SPANS_5, METRICS_5, SIZES_5)
    assert got.rows() == [
        ("HHM", True, 2, 65, pytest.approx(65 / 95)), ("HMH", False, 1, 20, pytest.approx(20 / 95)),
        ("L**", False, 1, 10, pytest.approx(10 / 95)),
    ]  # fmt: skip


def test_without_sizes_the_states_are_coarser() -> None:
    got = kernel_bins(SPANS_5, METRICS_5)
    assert got.select("state", "is_gemm").rows() == [("HM", True), ("LH", False), ("LL", False)]
    with pytest.raises(MissingTable, match="threads"):
        kernel_bins(SPANS_5, METRICS_5, states="casio")


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "ncu"), {"spans": SPANS_5, "kernel_metrics": METRICS_5, "kernels": SIZES_5})
    assert dict(ANALYSIS(trace).schema) == dict(KERNEL_BINS.dtypes)


def test_limits_themselves_are_in_the_middle() -> None:
    frame = pl.DataFrame({"v": [3999, 4000, 32_000, 32_001, None]})
    assert frame.select(letter("v", 4_000, 32_000)).to_series().to_list() == ["L", "M", "M", "H", None]
    ratios = pl.DataFrame({"v": [p / 100 for p in (9.99, 10, 70, 70.01)]})
    assert ratios.select(letter("v", 0.1, 0.7)).to_series().to_list() == ["L", "M", "M", "H"]


def states(kind: str, **counters: list[float | None]) -> list[str | None]:
    n = max(map(len, counters.values()))
    spans = spans_of(*[(GEMM, 1)] * n)
    sizes = sizes_of(*[40_000, 3_000, 4_000][:n])
    return launches_with_state(spans, sizes, percents(**counters), kind, needed_by="x")["state"].to_list()


def test_states_of_casio_have_three_letters_and_few_threads_are_one_state() -> None:
    assert states("casio", sm=[80, 80, 50], dram=[5, 5, None]) == ["HHL", "L**", None]


def test_states_of_tables_have_two_letters() -> None:
    assert states("tensor-dram", tensor=[80, 0], dram=[5, 20]) == ["HL", "LM"]


def test_the_finer_states_are_taken_where_they_can() -> None:
    assert states("auto", sm=[80], dram=[5], tensor=[1]) == ["HHL"]
    assert states("auto", dram=[5], tensor=[1]) == ["LL"]


def test_what_cannot_be_told_is_an_error() -> None:
    with pytest.raises(MissingTable, match="x needs threads, SM and DRAM"):
        states("casio", tensor=[5], dram=[5])
    with pytest.raises(MissingTable, match="x needs tensor-core"):
        states("auto", dram=[5])


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


@pytest.mark.slow
@given(st.lists(st.sampled_from([0, 50, 90]), min_size=3, max_size=40), st.integers(1, 5))
def test_the_window_agrees_with_counting(values, window) -> None:
    spans = spans_of(*[(GEMM, 1)] * len(values))
    got = kernel_runs(spans, percents(tensor=values, dram=[0] * len(values)), window=window)["mean_states"].item()
    windows = [len(set(values[i : i + window])) for i in range(len(values) - window + 1)]
    assert got == (pytest.approx(sum(windows) / len(windows)) if windows else None)


def test_wrong_options_of_kernel_runs_are_refused() -> None:
    with pytest.raises(StepscopeError, match="window is 0"):
        kernel_runs(SPANS_6, METRICS_6, window=0)


def test_kernel_runs_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "ncu"), {"spans": SPANS_6, "kernel_metrics": METRICS_6})
    for by in ("all", "state", "run"):
        got = KERNEL_RUNS_ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: KERNEL_RUNS.dtypes[name] for name in got.columns}
