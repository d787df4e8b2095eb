from __future__ import annotations

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, kernel
from device_traces import spans_of as timed_spans
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import GEMM, NORM, POINTWISE, spans_of

from stepscope.analyses.kernels.kernel_mix import (
    AMDAHL,
    AMDAHL_ANALYSIS,
    ANALYSIS,
    KERNEL_MIX,
    REST,
    amdahl,
    kernel_mix,
)
from stepscope.analyses.kernels.kernel_mix import GEMM as ALL_GEMM
from stepscope.core.errors import MissingTable, StepscopeError
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


SPANS_4 = spans_of((GEMM, 50), (POINTWISE, 20), (POINTWISE, 10), (NORM, 20))


def test_the_most_expensive_names_faster_by_two_and_ten() -> None:
    got = amdahl(SPANS_4)
    assert got.select("rank", "name", "calls", "total_ns").rows() == [
        (1, GEMM, 1, 50),
        (2, POINTWISE, 2, 30),
        (3, NORM, 1, 20),
    ]
    assert got["speedup_2"].to_list() == pytest.approx([100 / 75, 100 / 60, 2.0])
    assert got["speedup_10"].to_list() == pytest.approx([100 / 55, 100 / 28, 10.0])
    assert got["alone_2"].to_list() == pytest.approx([100 / 75, 100 / 85, 100 / 90])
    assert amdahl(SPANS_4, top=1).height == 1


def test_faster_by_class() -> None:
    assert amdahl(SPANS_4, by="class")["name"].to_list() == ["gemm", "elementwise", "norm"]


def test_by_operator_kernels_of_none_count_in_the_whole_only() -> None:
    spans = timed_spans(
        (HOST, 0, 10, "aten::mm", "operator"),
        kernel(STREAM_7, 10, 60),
        kernel(STREAM_7, 90, 40),
        op_id=[None, 0, None],
    )
    got = amdahl(spans, by="op")
    assert got.select("name", "share_ratio", "speedup_2").rows() == [("aten::mm", 0.6, pytest.approx(1 / 0.7))]
    with pytest.raises(MissingTable, match="amdahl by op"):
        amdahl(SPANS_4, by="op")


def test_wrong_options_of_amdahl_are_refused() -> None:
    with pytest.raises(StepscopeError, match="top is 0"):
        amdahl(SPANS_4, top=0)


@pytest.mark.slow
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
def test_the_law_is_what_summing_gives(durations) -> None:
    spans = spans_of(*[(f"k{i}", ns) for i, ns in enumerate(durations)])
    got = amdahl(spans, top=len(durations))
    ordered, whole = sorted(durations, reverse=True), sum(durations)
    for n, found in enumerate(got["speedup_10"], 1):
        assert found == pytest.approx(whole / (sum(ordered[:n]) / 10 + sum(ordered[n:])))


def test_amdahl_returns_what_its_table_declares() -> None:
    got = AMDAHL_ANALYSIS(Trace(Meta("x", "ncu"), {"spans": SPANS_4}))
    assert dict(got.schema) == dict(AMDAHL.dtypes)
    assert got.select(pl.col("share_ratio").sum()).item() == pytest.approx(1)
