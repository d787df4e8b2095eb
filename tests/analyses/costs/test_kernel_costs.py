from __future__ import annotations

import polars as pl
import pytest
from device_traces import STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.kernel_costs import counted, moved, role_of
from stepscope.core.schema import KERNEL_METRICS, KERNELS

SASS = "smsp__sass_thread_inst_executed_op_"
SPANS = spans_of(kernel(STREAM_7, 0, 1000, "add"), kernel(STREAM_7, 2000, 500, "copy"))


NO_KERNELS = KERNELS.empty()


def rows(*metrics, spans=SPANS, kernels=NO_KERNELS):
    """Name, precision, FLOP, bytes, reason of each launch; metrics are (span_id, metric, unit, value)."""
    frame = pl.DataFrame(metrics, schema=("span_id", "metric", "unit", "value"), orient="row")
    work = device_work(spans, TRACKS_5, needed_by="test")
    result = counted(work, KERNEL_METRICS.conform(frame), kernels)
    return result.select("name", "precision", "flop", "bytes", "reason").rows() if result.height else []


def test_instructions_and_bytes_of_nsight_compute():
    assert rows(
        (0, SASS + "ffma_pred_on.sum", "inst", 100.0), (0, SASS + "fadd_pred_on.sum", "inst", 10.0),
        (0, SASS + "dmul_pred_on.sum", "inst", 1.0), (0, "dram__bytes.sum", "byte", 64.0),
        (1, "dram__bytes_read.sum", "byte", 5.0), (1, "dram__bytes_write.sum", "byte", 6.0),
    ) == [("add", "fp32", 211.0, 64.0, None), ("copy", None, None, 11.0, "no counters of its operations")]  # fmt: skip


def test_rates_are_multiplied_by_cycles_or_time():
    result = rows(
        (0, SASS + "ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle", 2.0),
        (0, "smsp__cycles_elapsed.max", "cycle", 50.0),
        (0, "dram__bytes.sum.per_second", "byte/s", 1e9),
        (1, "Memory Workload Analysis: Memory Throughput", "byte/s", 2e9),
        (1, "Memory Throughput", "%", 70.0),
    )
    assert [row[2:4] for row in result] == [(200.0, pytest.approx(1000.0)), (None, pytest.approx(1000.0))]


def test_of_several_ways_to_the_same_figure_the_best_is_taken():
    assert rows(
        (0, SASS + "ffma_pred_on.sum", "inst", 100.0),
        (0, SASS + "ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle", 2.0),
        (0, "smsp__cycles_elapsed.max", "cycle", 1.0),
        (0, "dram__bytes_read.sum", "byte", 5.0), (0, "dram__bytes.sum", "byte", 64.0),
    )[0][2:4] == (200.0, 64.0)  # fmt: skip


def test_all_instructions_of_matrix_units_and_each_of_them_are_not_added_up():
    tensor = "sm__ops_path_tensor"
    assert rows(
        (0, tensor + "_src_bf16_dst_fp32.sum", "", 1000.0),
        (0, tensor + "_op_hgmma_src_bf16_dst_fp32_sparsity_off.sum", "", 1000.0),
        (0, tensor + "_op_hmma_src_fp16_dst_fp32_sparsity_off.sum", "", 70.0),
        (0, tensor + "_src_tf32_dst_fp32.sum", "", 0.0),
    )[0][1:3] == ("bf16", 1070.0)  # fmt: skip


def test_totals_of_matrix_units_do_not_hide_rates_of_other_instructions():
    assert rows(
        (0, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", 0.0),
        (0, SASS + "ffma_pred_on.sum.per_cycle_elapsed", "inst/cycle", 2.0),
        (0, "smsp__cycles_elapsed.max", "cycle", 50.0),
    )[0][1:3] == ("fp32", 200.0)  # fmt: skip


def test_half_of_the_bytes_are_not_the_bytes():
    assert rows((0, "FETCH_SIZE", None, 10.0), (1, "FETCH_SIZE", None, 10.0), (1, "WRITE_SIZE", None, 1.0)) == [
        ("add", None, None, None, "no counters of its operations"),
        ("copy", None, None, 11 * 1024.0, "no counters of its operations"),
    ]


def test_counts_of_amd():
    assert rows(
        (0, "SQ_INSTS_VALU_FMA_F32", None, 10.0), (0, "SQ_INSTS_VALU_ADD_F16", None, 1.0),
        (0, "SQ_INSTS_VALU_MFMA_MOPS_BF16", None, 4.0),
    )[0][1:3] == ("bf16", 10 * 2 * 64 + 64 + 4 * 512)  # fmt: skip


def test_what_proton_was_told():
    assert rows((0, "flops16", "FLOP", 7.0), (0, "bytes", "bytes", 3.0))[0] == ("add", "fp16", 7.0, 3.0, None)


def test_operations_of_matrix_units_that_were_not_counted_are_not_told():
    spans = spans_of(kernel(STREAM_7, 0, 1000, "ampere_bf16_s16816gemm_bf16"), kernel(STREAM_7, 2000, 500, "odd"))
    why = "it uses matrix units, which the recorded counters leave out"
    assert rows(
        (0, SASS + "ffma_pred_on.sum", "inst", 100.0), (1, SASS + "ffma_pred_on.sum", "inst", 100.0),
        (1, "sm__inst_executed_pipe_tensor.sum", "inst", 5.0), spans=spans,
    ) == [("ampere_bf16_s16816gemm_bf16", "fp32", None, None, why), ("odd", "fp32", None, None, why)]  # fmt: skip
    assert rows(
        (0, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "", 900.0), (0, SASS + "ffma_pred_on.sum", "inst", 1.0),
        spans=spans,
    )[0][1:3] == ("bf16", 902.0)  # fmt: skip


def test_nothing_counted_is_nothing():
    assert rows((0, "Duration", "ns", 5.0)) == []


@pytest.mark.parametrize("metric", ["dram__bytes.sum.pct_of_peak_sustained_elapsed", "TCC_HIT[0]", "flops"])
def test_other_counters_have_no_role(metric):
    assert role_of(metric, None) is None


def test_bytes_read_and_written_are_told_apart_where_counters_do():
    metrics = pl.DataFrame(
        [
            (0, "dram__bytes_read.sum", "byte", 5.0), (0, "dram__bytes_write.sum", "byte", 6.0),
            (1, "dram__bytes.sum", "byte", 64.0), (2, "FETCH_SIZE", None, 1.0), (3, "other", "byte", 1.0),
        ],
        schema=("span_id", "metric", "unit", "value"),
        orient="row",
    )  # fmt: skip
    launches = pl.DataFrame({"span_id": [0, 1, 2, 3], "dur_ns": [10] * 4}, schema_overrides={"span_id": pl.UInt32})
    result = moved(launches, KERNEL_METRICS.conform(metrics)).sort("span_id")
    assert result.rows() == [(0, 11.0, 5.0, 6.0), (1, 64.0, None, None)]
    assert moved(launches, KERNEL_METRICS.empty()).is_empty()
