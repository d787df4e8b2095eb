from __future__ import annotations

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.kernels.kernels import ANALYSIS, KERNEL_SUMMARY, kernel_times, kernels
from stepscope.core.errors import MissingTable
from stepscope.core.schema import KERNEL_METRICS, KERNELS
from stepscope.core.trace import Meta, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SPANS_8 = spans_of(
    (HOST, 0, 10, "aten::mm", "operator"),
    (HOST, 20, 10, "aten::addmm", "operator"),
    kernel(STREAM_7, 100, 10, "sgemm"),
    kernel(STREAM_7, 200, 20, "sgemm"),
    kernel(STREAM_7, 300, 60, "sgemm"),
    (STREAM_7, 400, 5, "Memset (Device)", "memset"),
    kernel(STREAM_8, 100, 10, NCCL),
    kernel(STREAM_8, 300, 0, "empty"),
    op_id=[None, None, 0, 1, 0, None, None, None],
)
LAUNCHES = KERNELS.conform(
    pl.DataFrame(
        {
            "span_id": [2, 3, 4, 7],
            "grid_x": [1, 1, 2, 1],
            "block_x": [32, 32, 32, 1],
            "blocks_per_sm": [1.0, 4.0, None, 3.0],
            "est_occupancy_ratio": [0.1, 0.4, 0.7, 0.5],
            "tensor_core": [True, True, True, None],
        }
    )
)


def row(frame: pl.DataFrame, name: str) -> dict[str, object]:
    return frame.row(by_predicate=pl.col("name") == name, named=True)


def test_kernels_are_summed_by_name_most_expensive_first() -> None:
    got = kernels(SPANS_8, TRACKS_5, LAUNCHES)
    assert got["name"].to_list() == ["sgemm", NCCL, "empty"]
    gemm = row(got, "sgemm")
    assert (gemm["calls"], gemm["total_ns"], gemm["mean_ns"], gemm["min_ns"], gemm["max_ns"]) == (3, 90, 30.0, 10, 60)
    assert (gemm["p50_ns"], gemm["p95_ns"], gemm["share_ratio"]) == (20.0, 56.0, 0.9)
    assert gemm["std_ns"] == pytest.approx(700**0.5)
    assert (gemm["kernel_class"], gemm["communication"], gemm["tensor_core"]) == ("gemm", False, True)
    assert row(got, NCCL)["communication"]
    assert row(got, NCCL)["std_ns"] is None


def test_launch_figures_are_means_weighted_by_duration() -> None:
    got = kernels(SPANS_8, TRACKS_5, LAUNCHES)
    gemm = row(got, "sgemm")
    assert gemm["blocks_per_sm"] == pytest.approx((10 * 1 + 20 * 4) / 30)
    assert gemm["est_occupancy_ratio"] == pytest.approx((10 * 0.1 + 20 * 0.4 + 60 * 0.7) / 90)
    assert row(got, "empty")["blocks_per_sm"] == 3.0
    assert row(got, NCCL)["est_occupancy_ratio"] is None


def test_the_operator_is_the_one_that_launches_it_most_often() -> None:
    got = kernels(SPANS_8, TRACKS_5)
    assert row(got, "sgemm")["op"] == "aten::mm"
    assert row(got, NCCL)["op"] is None


def test_by_launch_separates_configurations_and_operators() -> None:
    got = kernels(SPANS_8, TRACKS_5, LAUNCHES, by="launch").filter(pl.col("name") == "sgemm")
    assert got.select("grid_x", "block_x", "op", "calls", "total_ns").rows() == [
        (2, 32, "aten::mm", 1, 60),
        (1, 32, "aten::addmm", 1, 20),
        (1, 32, "aten::mm", 1, 10),
    ]


def test_by_launch_separates_what_a_block_needs_and_spells_out_the_launch() -> None:
    launches = LAUNCHES.with_columns(grid_y=2, grid_z=3, registers=pl.Series([16, 32, 32, 1], dtype=pl.Int32))
    same_op = SPANS_8.with_columns(op_id=pl.lit(0, pl.UInt32))
    got = kernels(same_op, TRACKS_5, KERNELS.conform(launches), by="launch").filter(pl.col("name") == "sgemm")
    assert got.select("grid", "block", "registers", "calls").rows() == [
        ("2x2x3", None, 32, 1), ("1x2x3", None, 32, 1), ("1x2x3", None, 16, 1),
    ]  # fmt: skip


def test_by_stream_separates_streams() -> None:
    got = kernels(SPANS_8, TRACKS_5, by="stream")
    assert got.select("name", "stream").rows() == [("sgemm", 7), (NCCL, 8), ("empty", 8)]


def test_by_module_a_trace_without_modules_is_refused() -> None:
    with pytest.raises(MissingTable, match="calls of modules"):
        kernels(SPANS_8, TRACKS_5, by="module")


def test_copies_and_fills_are_there_when_asked_for() -> None:
    assert "Memset (Device)" in kernels(SPANS_8, TRACKS_5, include="device")["name"].to_list()
    with pytest.raises(MissingTable, match="kernels needs kernels"):
        kernels(SPANS_8.filter(pl.col("category") != "kernel"), TRACKS_5)


def test_what_was_measured_of_kernels_stands_beside_their_cost() -> None:
    dram = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
    rows = {"span_id": [2, 3, 7], "metric": [dram] * 3, "unit": ["%"] * 3, "value": [10.0, 40.0, 5.0]}
    got = kernels(SPANS_8, TRACKS_5, LAUNCHES, KERNEL_METRICS.conform(pl.DataFrame(rows)))
    assert row(got, "sgemm")["dram_ratio"] == pytest.approx((10 * 0.1 + 20 * 0.4) / 30)
    assert row(got, NCCL)["dram_ratio"] is None
    assert "tensor_ratio" not in got.columns
    assert "dram_ratio" not in kernels(SPANS_8, TRACKS_5, LAUNCHES).columns


def test_without_durations_kernels_are_still_counted() -> None:
    untimed = SPANS_8.with_columns(ts_ns=pl.lit(None, pl.Int64), dur_ns=pl.lit(None, pl.Int64))
    got = row(kernels(untimed, TRACKS_5), "sgemm")
    assert (got["calls"], got["total_ns"], got["share_ratio"]) == (3, None, None)


def test_the_analysis_returns_what_its_table_declares() -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": SPANS_8, "tracks": TRACKS_5, "kernels": LAUNCHES})
    for by in ("name", "op", "launch", "stream"):
        got = ANALYSIS(trace, by=by)
        assert dict(got.schema) == {name: KERNEL_SUMMARY.dtypes[name] for name in got.columns}


def test_times_of_kernels_are_the_first_columns_of_kernels() -> None:
    columns = ["name", "calls", "total_ns", "share_ratio"]
    work = device_work(SPANS_8, TRACKS_5, needed_by=None)
    assert kernel_times(work).select(columns).equals(kernels(SPANS_8, TRACKS_5).select(columns))
    assert kernel_times(work.filter(pl.col("category") != "kernel")).is_empty()
