from __future__ import annotations

import pytest
from kernel_launches_of import GEMM, NORM, POINTWISE, spans_of

from stepscope.analyses.kernels.kernel_mix import ANALYSIS, KERNEL_MIX, REST, kernel_mix
from stepscope.analyses.kernels.kernel_mix import GEMM as ALL_GEMM
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Meta, Trace

SPANS_5 = spans_of((GEMM, 30), ("cutlass_gemm_2", 20), (POINTWISE, 25), (NORM, 15), ("softmax_warp", 10))


def test_matrix_products_are_one_name() -> None:
    got = kernel_mix(SPANS_5)
    assert got.select("rank", "name", "calls", "n_names", "share_ratio").rows() == [
        (1, ALL_GEMM, 2, 2, 0.5), (2, POINTWISE, 1, 1, 0.25), (3, NORM, 1, 1, 0.15), (4, "softmax_warp", 1, 1, 0.1),
    ]  # fmt: skip
    assert got["cumulative_ratio"].to_list() == pytest.approx([0.5, 0.75, 0.9, 1.0])
    assert kernel_mix(SPANS_5, merge_gemm=False)["name"].to_list()[0] == GEMM


def test_what_is_beyond_the_top_is_one_row() -> None:
    got = kernel_mix(SPANS_5, top=2)
    assert got.select("name", "calls", "n_names", "total_ns", "share_ratio").rows()[-1] == (REST, 2, 2, 25, 0.25)
    assert got["cumulative_ratio"][-1] == 1.0
    with pytest.raises(StepscopeError, match="top is 0"):
        kernel_mix(SPANS_5, top=0)


def test_the_analysis_returns_what_its_table_declares() -> None:
    assert dict(ANALYSIS(Trace(Meta("x", "ncu"), {"spans": SPANS_5})).schema) == dict(KERNEL_MIX.dtypes)
