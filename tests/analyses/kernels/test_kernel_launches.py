from __future__ import annotations

import polars as pl
import pytest
from device_traces import STREAM_7, STREAM_8, kernel
from device_traces import spans_of as timed_spans
from kernel_launches_of import GEMM, POINTWISE, percents, sizes_of, spans_of

from stepscope.analyses.kernels.kernel_launches import (
    kernel_launches,
    ranked,
    time_share,
    weighted,
    with_ratios,
    with_threads,
)
from stepscope.core.errors import MissingTable
from stepscope.core.schema import KERNEL_METRICS, KERNELS, SPANS


def test_launches_keep_their_order_without_a_clock_and_take_that_of_time_with_one() -> None:
    got = kernel_launches(spans_of((GEMM, 30), (POINTWISE, 10)), needed_by="x")
    assert got.rows() == [(0, GEMM, 30, "gemm", True), (1, POINTWISE, 10, "elementwise", False)]
    timed = timed_spans(kernel(STREAM_7, 50, 5, "late"), kernel(STREAM_8, 10, 5, "early"))
    assert kernel_launches(timed, needed_by="x")["name"].to_list() == ["early", "late"]


def test_checkers_may_be_left_out() -> None:
    spans = spans_of((GEMM, 1), ("redzone_checker", 2))
    assert kernel_launches(spans, needed_by="x").height == 2
    assert kernel_launches(spans, needed_by="x", without_trials=True)["name"].to_list() == [GEMM]


def test_no_kernels_or_durations_say_who_misses_them() -> None:
    with pytest.raises(MissingTable, match="x needs kernels"):
        kernel_launches(SPANS.empty(), needed_by="x")
    with pytest.raises(MissingTable, match="x needs durations") as caught:
        kernel_launches(spans_of((GEMM, None)), needed_by="x")
    assert "gpu__time_duration.sum" in caught.value.hint


def test_ratios_come_from_counters() -> None:
    launches = kernel_launches(spans_of((GEMM, 1), (POINTWISE, 1)), needed_by="x")
    got = with_ratios(launches, percents(tensor=[50, None], dram=[20, 30]))
    assert got.select("tensor_ratio", "dram_ratio", "sm_ratio", "max_ratio").rows() == [
        (0.5, 0.2, None, 0.5), (None, 0.3, None, 0.3),
    ]  # fmt: skip
    assert with_ratios(launches, KERNEL_METRICS.empty())["max_ratio"].to_list() == [None, None]
    with pytest.raises(MissingTable, match="x needs utilisation"):
        with_ratios(launches, KERNEL_METRICS.empty(), needed_by="x")


def test_threads_are_blocks_by_threads_of_a_block() -> None:
    launches = kernel_launches(spans_of((GEMM, 1), (POINTWISE, 1)), needed_by="x")
    assert with_threads(launches, sizes_of(256))["threads"].to_list() == [256, None]
    assert with_threads(launches, KERNELS.empty())["threads"].to_list() == [None, None]


def test_means_and_shares_are_weighted_by_time() -> None:
    frame = pl.DataFrame({"dur_ns": [1, 3, 6], "v": [1.0, 0.0, None]})
    assert frame.select(weighted("v")).item() == 0.25
    assert frame.select(time_share(pl.col("v") > 0)).item() == 0.1
    assert frame.with_columns(v=pl.lit(None, pl.Float64)).select(weighted("v")).item() is None
    assert frame.with_columns(w=pl.lit(None, pl.Float64)).select(time_share(pl.col("w") > 0, ("w",))).item() is None


def test_rows_are_ranked_by_time_then_name() -> None:
    got = ranked(pl.DataFrame({"name": ["b", "c", "a"], "total_ns": [5, 10, 5]}), "name")
    assert got.rows() == [("c", 10, 0.5), ("a", 5, 0.25), ("b", 5, 0.25)]
