from __future__ import annotations

import polars as pl
import pytest
from device_traces import DEVICES_2, STREAM_7, kernel, spans_of

from stepscope.analyses.costs.roofs import NOT_DESCRIBED, roof_of, roofs_of, uses_matrix_units, with_roofs
from stepscope.core.errors import UnknownName
from stepscope.core.hardware import Accelerator
from stepscope.core.schema import DEVICES, KERNELS

MINE = Accelerator(name="Mine", memory_bytes_per_s=1e12, tensor={"bf16": 1e15, "tf32": 5e14}, vector={"fp32": 1e13})


def call(**changed):
    row = {"device_id": 0, "precision": "bf16", "matrix": True, "tensor_core": True, "flop": 1e6, "bytes": 2e3,
           "reason": None}  # fmt: skip
    return row | changed


def found(*calls, roofs=None):
    schema = {"device_id": pl.UInt32, "precision": pl.String, "matrix": pl.Boolean, "tensor_core": pl.Boolean,
              "flop": pl.Float64, "bytes": pl.Float64, "reason": pl.String}  # fmt: skip
    return with_roofs(pl.DataFrame(calls, schema=schema), roofs or {0: MINE}).to_dicts()


def test_both_times_and_the_longer_of_them():
    (row,) = found(call())
    assert (row["compute_ns"], row["memory_ns"], row["roof_ns"]) == pytest.approx((1.0, 2.0, 2.0))
    assert (row["peak"], row["bandwidth"], row["accelerator"], row["reason"]) == (1e15, 1e12, "Mine", None)


def test_fp32_products_have_the_peak_of_the_units_they_run_on():
    on, off = found(call(precision="fp32"), call(precision="fp32", tensor_core=False))
    assert (on["peak"], off["peak"]) == (5e14, 1e13)


def test_what_has_no_operations_has_memory_as_roof_and_what_has_no_peak_none():
    nothing, whole, none = found(
        call(flop=0.0, precision="fp4"), call(precision=None, matrix=False), call(precision="fp64")
    )
    assert nothing["roof_ns"] == whole["roof_ns"] == pytest.approx(2.0)
    assert (none["roof_ns"], none["reason"]) == (None, "no peak is known for fp64 on matrix units")


def test_without_a_product_the_reason_is_told():
    (row,) = found(call(), roofs={0: "not known"})
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
    assert uses_matrix_units(spans, None).to_list() == [False, True, False]
    assert uses_matrix_units(spans, KERNELS.empty()).to_list() == [False, True, False]
    side = KERNELS.conform(pl.DataFrame({"span_id": [0, 1], "tensor_core": [True, None]}))
    assert uses_matrix_units(spans, side).to_list() == [True, True, False]
