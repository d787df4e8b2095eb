from __future__ import annotations

import pytest
from kernel_launches_of import GEMM, POINTWISE, percents, sizes_of, spans_of

from stepscope.analyses.kernels.kernel_bins import ANALYSIS, KERNEL_BINS, kernel_bins
from stepscope.core.errors import MissingTable
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
