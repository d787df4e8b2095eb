from __future__ import annotations

import pytest
from kernel_launches_of import GEMM, POINTWISE, percents, spans_of

from stepscope.analyses.kernels.kernel_classes import ANALYSIS, KERNEL_CLASS_SUMMARY, kernel_classes
from stepscope.core.trace import Meta, Trace

CUTLASS = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128>(T1::Params)"
SPANS_5 = spans_of((GEMM, 10), (CUTLASS, 30), ("Kernel", 20), ("splitKreduce_kernel", 5), (POINTWISE, 35))
METRICS_5 = percents(tensor=[50, 60, 0, 0, 0])


def test_classes_are_told_from_full_names() -> None:
    got = kernel_classes(SPANS_5, METRICS_5)
    assert got.select("kernel_class", "calls", "n_names", "total_ns", "share_ratio", "vague_calls").rows() == [
        ("gemm", 4, 4, 65, 0.65, 1), ("elementwise", 1, 1, 35, pytest.approx(0.35), 0),
    ]  # fmt: skip
    assert got["tensor_ratio"][0] == pytest.approx((10 * 0.5 + 30 * 0.6) / 65)
    assert "sm_ratio" not in got.columns


def test_the_part_of_the_name_that_told_is_shown() -> None:
    got = kernel_classes(SPANS_5, by="rule")
    assert got.select("kernel_class", "rule", "total_ns").rows() == [
        ("elementwise", "elementwise", 35), ("gemm", "cutlass_80_tensorop", 30), ("gemm", "kernel", 20),
        ("gemm", "gemm", 10), ("gemm", "splitk", 5),
    ]  # fmt: skip
    assert kernel_classes(SPANS_5, by="name")["name"].to_list() == [
        POINTWISE, CUTLASS, "Kernel", GEMM, "splitKreduce_kernel",
    ]  # fmt: skip


def test_matrix_products_beside_all_else() -> None:
    got = kernel_classes(SPANS_5, METRICS_5, by="gemm")
    assert got.select("is_gemm", "total_ns", "tensor_ratio").rows() == [
        (True, 65, pytest.approx(23 / 65)), (False, 35, 0.0),
    ]  # fmt: skip


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "ncu-csv"), {"spans": SPANS_5, "kernel_metrics": METRICS_5})
    for by in ("class", "rule", "name", "gemm"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: KERNEL_CLASS_SUMMARY.dtypes[name] for name in got.columns}
