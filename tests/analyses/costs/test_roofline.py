from __future__ import annotations

import json

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.costs.roofline import (
    ANALYSIS,
    NOT_DESCRIBED,
    ROOFLINE,
    roof_of,
    roofline,
    roofs_of,
    uses_matrix_units,
    with_roofs,
)
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.hardware import Accelerator
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, OPS
from stepscope.core.trace import Meta, Trace

BF16 = '["c10::BFloat16","c10::BFloat16"]'
N = 1024
MM = (f"[[{N},{N}],[{N},{N}]]", BF16, '["",""]')
ADD = (f"[[{N},{N}],[{N},{N}],[]]", '["c10::BFloat16","c10::BFloat16","Scalar"]', '["","","1"]')
FLOP, MOVED = 2 * N**3, 6 * N * N
SPANS = spans_of(
    (HOST, 0, 10, "aten::mm", "operator"),
    (HOST, 20, 10, "aten::mm", "operator"),
    (HOST, 40, 10, "aten::add", "operator"),
    (HOST, 60, 10, "aten::cat", "operator"),
    kernel(STREAM_7, 1_000, 4_000, "gemm"),
    kernel(STREAM_7, 6_000, 6_000, "gemm"),
    kernel(STREAM_7, 20_000, 8_000, "add"),
    kernel(STREAM_7, 30_000, 2_000, "cat"),
    op_id=[None, None, None, None, 0, 1, 2, 3],
    step=[1, 2, 2, 2, 1, 2, 2, 2],
)
OPS_4 = OPS.conform(
    pl.DataFrame(
        [(0, *MM), (1, *MM), (2, *ADD), (3, "[[],[]]", '["TensorList","Scalar"]', '["","0"]')],
        schema=("span_id", "input_shapes", "input_types", "concrete_inputs"),
        orient="row",
    )
)
H100 = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0], "name": ["NVIDIA H100 PCIe"]}))
PEAK, BANDWIDTH = 756e12, 2039e9


def got(devices=H100, **options):
    return roofline(SPANS, TRACKS_5, OPS_4, devices=devices, **options)


def row(frame, name):
    return frame.row(by_predicate=pl.col("name") == name, named=True)


def test_operators_against_both_roofs():
    frame = got()
    assert frame["name"].to_list() == ["aten::mm", "aten::add", "aten::cat"]
    mm, add = row(frame, "aten::mm"), row(frame, "aten::add")
    assert (mm["calls"], mm["device_ns"], mm["mean_ns"], mm["share_ratio"]) == (2, 10_000, 5_000.0, 0.5)
    assert (mm["family"], mm["precision"], mm["flop"], mm["bytes"]) == ("gemm", "bf16", 2 * FLOP, 2 * MOVED)
    assert mm["intensity"] == pytest.approx(FLOP / MOVED)
    assert mm["flop_per_s"] == pytest.approx(2 * FLOP / 10e-6)
    assert mm["bytes_per_s"] == pytest.approx(2 * MOVED / 10e-6)
    at_peak, at_bandwidth = FLOP / PEAK * 1e9, MOVED / BANDWIDTH * 1e9
    assert (mm["bound"], mm["roof_ns"]) == ("memory", pytest.approx(2 * at_bandwidth))
    assert at_bandwidth > at_peak
    assert mm["roof_ratio"] == pytest.approx(2 * at_bandwidth / 10_000)
    assert (add["bound"], add["flop"], add["bytes"]) == ("memory", N * N, 6 * N * N)
    assert (add["accelerator"], add["reason"]) == ("H100 PCIe", None)
    assert (mm["peak_flop_per_s"], mm["peak_bytes_per_s"]) == (PEAK, BANDWIDTH)


def test_what_has_no_cost_has_a_reason():
    cat = row(got(), "aten::cat")
    assert (cat["device_ns"], cat["reason"]) == (2_000, "no formula for this operator")
    assert cat["flop"] is cat["roof_ns"] is cat["bound"] is None


def test_by_args_the_calls_with_equal_arguments_are_a_row():
    frame = got(by="args")
    assert frame.select("name", "input_shapes", "calls").rows()[0] == ("aten::mm", MM[0], 2)


def test_of_an_unknown_device_roofs_are_withheld():
    unknown = H100.with_columns(name=pl.lit("Voodoo 2"))
    mm = row(got(unknown), "aten::mm")
    assert mm["flop_per_s"] is not None
    assert mm["roof_ns"] is mm["roof_ratio"] is mm["bound"] is mm["accelerator"] is None
    assert "'Voodoo 2' is not a known accelerator" in mm["reason"]
    assert "does not describe the device" in row(got(DEVICES.empty()), "aten::mm")["reason"]


def test_a_precision_without_a_peak_withholds_the_roof():
    v100 = H100.with_columns(name=pl.lit("Tesla V100-SXM2-16GB"))
    mm = row(got(v100), "aten::mm")
    assert (mm["roof_ns"], mm["reason"]) == (None, "no peak is known for bf16 on matrix units")


def test_the_product_may_be_named_and_described(tmp_path):
    mine = {"name": "Mine", "memory_bytes_per_s": 1e12, "tensor": {"bf16": 1e15}, "vector": {"fp32": 1e13}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"accelerators": [mine]}))
    mm = row(got(DEVICES.empty(), hardware=str(path), accelerator="Mine"), "aten::mm")
    assert mm["roof_ns"] == pytest.approx(2 * MOVED / 1e12 * 1e9)
    with pytest.raises(UnknownName, match="accelerator named 'Yours'"):
        got(accelerator="Yours")
    with pytest.raises(StepscopeError, match="cannot read"):
        got(hardware="/none.json")


def test_fp32_products_use_matrix_units_where_the_kernel_says_so():
    ops = OPS_4.with_columns(input_types=pl.lit('["float","float"]').cast(pl.Categorical))
    kernels = KERNELS.conform(pl.DataFrame({"span_id": [4, 5], "tensor_core": [True, True]}))
    plain = row(roofline(SPANS, TRACKS_5, ops, devices=H100), "aten::mm")
    tensor = row(roofline(SPANS, TRACKS_5, ops, kernels, devices=H100), "aten::mm")
    assert plain["roof_ns"] == pytest.approx(2 * FLOP / 51.2e12 * 1e9)
    assert tensor["roof_ns"] == pytest.approx(2 * max(FLOP / 378e12, 2 * MOVED / BANDWIDTH) * 1e9)


def test_kernels_by_their_counters():
    metrics = pl.DataFrame(
        [
            (4, "flops16", "FLOP", 4e6),
            (5, "flops16", "FLOP", 6e6),
            (4, "bytes", "bytes", 8e3),
            (5, "bytes", "bytes", 8e3),
        ],
        schema=("span_id", "metric", "unit", "value"),
        orient="row",
    )
    frame = roofline(SPANS, TRACKS_5, OPS_4, kernel_metrics=KERNEL_METRICS.conform(metrics), devices=H100, by="kernel")
    gemm = row(frame, "gemm")
    assert (gemm["calls"], gemm["flop"], gemm["bytes"], gemm["precision"]) == (2, 10e6, 16e3, "fp16")
    assert gemm["flop_per_s"] == pytest.approx(10e6 / 10e-6)
    assert row(frame, "add")["reason"] == "no counters of its operations"
    clockless = SPANS.with_columns(ts_ns=pl.lit(None, pl.Int64))
    trace = Trace(
        Meta("x", "ncu"), {"spans": clockless, "tracks": TRACKS_5, "kernel_metrics": KERNEL_METRICS.conform(metrics)}
    )
    assert ANALYSIS(trace)["flop"].to_list()[0] == 10e6  # without a clock kernels are asked for
    with pytest.raises(MissingTable, match="roofline by op needs start times"):
        ANALYSIS(trace, by="op")


def test_what_cannot_be_told_is_said():
    with pytest.raises(MissingTable, match="counters of operations or bytes"):
        got(by="kernel")


def test_work_without_shapes_and_operators_has_rows():
    frame = roofline(SPANS, TRACKS_5, devices=H100)
    assert set(frame["reason"].to_list()) == {
        "shapes were not recorded",
        "no formula for this operator",
    }
    bare = roofline(SPANS.with_columns(op_id=pl.lit(None, pl.UInt32)), TRACKS_5)
    assert bare.select("name", "calls", "device_ns").rows() == [(None, 4, 20_000)]


@pytest.mark.parametrize("by", ["auto", "op", "args"])
def test_the_result_is_what_its_table_declares(by):
    frame = got(by=by)
    assert dict(frame.schema) == {name: ROOFLINE.dtypes[name] for name in frame.columns}


MINE = Accelerator(name="Mine", memory_bytes_per_s=1e12, tensor={"bf16": 1e15, "tf32": 5e14}, vector={"fp32": 1e13})


def call(**changed):
    row = {"device_id": 0, "precision": "bf16", "matrix": True, "tensor_core": True, "flop": 1e6, "bytes": 2e3,
           "reason": None}  # fmt: skip
    return row | changed


def result(*calls, roofs=None):
    schema = {"device_id": pl.UInt32, "precision": pl.String, "matrix": pl.Boolean, "tensor_core": pl.Boolean,
              "flop": pl.Float64, "bytes": pl.Float64, "reason": pl.String}  # fmt: skip
    return with_roofs(pl.DataFrame(calls, schema=schema), roofs or {0: MINE}).to_dicts()


def test_both_times_and_the_longer_of_them():
    (row,) = result(call())
    assert (row["compute_ns"], row["memory_ns"], row["roof_ns"]) == pytest.approx((1.0, 2.0, 2.0))
    assert (row["peak"], row["bandwidth"], row["accelerator"], row["reason"]) == (1e15, 1e12, "Mine", None)


def test_fp32_products_have_the_peak_of_the_units_they_run_on():
    on, off = result(call(precision="fp32"), call(precision="fp32", tensor_core=False))
    assert (on["peak"], off["peak"]) == (5e14, 1e13)


def test_what_has_no_operations_has_memory_as_roof_and_what_has_no_peak_none():
    nothing, whole, none = result(
        call(flop=0.0, precision="fp4"), call(precision=None, matrix=False), call(precision="fp64")
    )
    assert nothing["roof_ns"] == whole["roof_ns"] == pytest.approx(2.0)
    assert (none["roof_ns"], none["reason"]) == (None, "no peak is known for fp64 on matrix units")


def test_without_a_product_the_reason_is_told():
    (row,) = result(call(), roofs={0: "not known"})
    assert (row["peak"], row["accelerator"], row["reason"], row["unknown"]) == (None, None, "not known", "not known")
    assert roof_of({}, 3) == NOT_DESCRIBED
    assert roof_of({None: MINE}, 3) is MINE


def test_products_of_devices():
    devices = DEVICES.conform(
        pl.DataFrame({"device_id": [0, 1, 2], "type": ["cuda", "cpu", "cuda"], "name": ["NVIDIA H100 PCIe", "x", "y"]})
    )
    roofs = roofs_of(devices, None, None)
    assert set(roofs) == {0, 2}
    assert roofs[0].name == "H100 PCIe"
    assert "not a known accelerator" in roofs[2]
    assert roofs_of(DEVICES_2, None, "A100 40GB SXM")[None].name == "A100 40GB SXM"
    with pytest.raises(UnknownName, match="accelerator named 'Voodoo'"):
        roofs_of(DEVICES_2, None, "Voodoo")


def test_the_recorder_knows_better_than_names_which_kernels_use_matrix_units():
    spans = spans_of(*(kernel(STREAM_7, i, 1, name) for i, name in enumerate(("gemm", "nvjet_tst", "saxpy"))))
    assert uses_matrix_units(spans, KERNELS.empty()).to_list() == [False, True, False]
    assert uses_matrix_units(spans, KERNELS.empty()).to_list() == [False, True, False]
    side = KERNELS.conform(pl.DataFrame({"span_id": [0, 1], "tensor_core": [True, None]}))
    assert uses_matrix_units(spans, side).to_list() == [True, True, False]
