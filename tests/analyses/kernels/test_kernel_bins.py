from __future__ import annotations

import polars as pl
import pytest
from kernel_launches_of import GEMM, POINTWISE, percents, sizes_of, spans_of

from stepscope.analyses.kernels.kernel_bins import ANALYSIS, KERNEL_BINS, kernel_bins, launches_with_state, letter
from stepscope.core.errors import MissingTable, UnknownName
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
    with pytest.raises(UnknownName, match="nope"):
        states("nope", dram=[5])
