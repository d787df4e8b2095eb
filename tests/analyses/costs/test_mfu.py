from __future__ import annotations

import json

import polars as pl
import pytest
from device_traces import DEVICES_2, HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.costs.mfu import ANALYSIS, MFU, NO_PRODUCTS, mfu
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.schema import DEVICES, KERNELS, OPS, STEPS
from stepscope.core.trace import Meta, Trace

N = 1024
FLOP = 2 * N**3
SHAPES = f"[[{N},{N}],[{N},{N}]]"
BF16, FP32 = '["c10::BFloat16","c10::BFloat16"]', '["float","float"]'
H100 = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0], "name": ["NVIDIA H100 PCIe"]}))
PEAK, PEAK_TF32, PEAK_FP32 = 756e12, 378e12, 51.2e12
STEPS_2 = STEPS.conform(
    pl.DataFrame({"step": [1, 2], "ts_ns": [0, 10_000], "dur_ns": [10_000, 10_000], "source": ["annotation"] * 2})
)
#: Two products and an addition, launched in two steps; each launch ends as its operator does.
SPANS = spans_of(
    (HOST, 100, 10, "aten::mm", "operator"),
    (HOST, 10_100, 10, "aten::mm", "operator"),
    (HOST, 10_200, 10, "aten::add", "operator"),
    kernel(STREAM_7, 1_000, 4_000, "gemm", 0),
    kernel(STREAM_7, 11_000, 6_000, "gemm", 1),
    kernel(STREAM_7, 18_000, 1_000, "elementwise_kernel", 2),
    op_id=[None, None, None, 0, 1, 2],
    step=[1, 2, 2, 1, 2, 2],
)


def ops_of(*types: str | None) -> pl.DataFrame:
    rows = [(i, SHAPES if kind else None, kind, '["",""]') for i, kind in enumerate(types)]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    return OPS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


NO_KERNELS = KERNELS.empty()


def got(ops=None, devices=H100, spans=SPANS, steps=STEPS_2, kernels=NO_KERNELS, **options):
    ops = ops_of(BF16, BF16, BF16) if ops is None else ops
    return mfu(spans, TRACKS_5, ops, kernels, devices, steps, **options)


def only(frame):
    assert frame.height == 1
    return frame.row(0, named=True)


def test_operations_at_peak_over_the_time_of_the_step():
    frame = got()
    assert frame.select("step", "precision", "window_ns", "flop", "calls", "product_ns", "n_devices").rows() == [
        (1, "bf16", 10_000, FLOP, 1, 4_000, 1), (2, "bf16", 10_000, FLOP, 1, 6_000, 1),
    ]  # fmt: skip
    assert frame["mfu_ratio"].to_list() == pytest.approx([FLOP / PEAK / 10e-6] * 2)
    assert frame["product_ratio"].to_list() == [0.4, 0.6]
    assert frame["product_mfu_ratio"].to_list() == pytest.approx([FLOP / PEAK / 4e-6, FLOP / PEAK / 6e-6])
    assert frame["known_ratio"].to_list() == [1.0, 1.0]
    assert frame["most_mfu_ratio"].to_list() == frame["mfu_ratio"].to_list()
    assert frame["flop_per_s"].to_list() == pytest.approx([FLOP / 10e-6] * 2)
    assert frame["peak_flop_per_s"].to_list() == pytest.approx([PEAK] * 2)
    assert frame.select("accelerator", "reason").rows() == [("H100 PCIe", None)] * 2


def test_all_steps_together():
    row = only(got(by="all"))
    assert "step" not in row
    assert (row["window_ns"], row["flop"], row["calls"], row["precision"]) == (20_000, 2 * FLOP, 2, "bf16")
    assert row["mfu_ratio"] == pytest.approx(2 * FLOP / PEAK / 20e-6)


def test_each_type_is_weighed_by_its_own_peak():
    ops = ops_of(BF16, FP32, BF16)
    row = only(got(ops, by="all"))
    assert row["precision"] == "bf16 50 %, fp32 50 %"
    at_peak = FLOP / PEAK + FLOP / PEAK_FP32
    assert row["mfu_ratio"] == pytest.approx(at_peak / 20e-6)
    assert row["peak_flop_per_s"] == pytest.approx(2 * FLOP / at_peak)
    by_type = got(ops, by="precision")
    assert by_type.select("precision", "peak_flop_per_s", "calls", "product_ns").rows() == [
        ("bf16", PEAK, 1, 4_000), ("fp32", PEAK_FP32, 1, 6_000),
    ]  # fmt: skip
    assert by_type["mfu_ratio"].sum() == pytest.approx(row["mfu_ratio"])
    on_units = KERNELS.conform(pl.DataFrame({"span_id": [4], "tensor_core": [True]}))
    assert got(ops, kernels=on_units, by="precision")["peak_flop_per_s"].to_list() == [PEAK, PEAK_TF32]


def test_types_with_next_to_no_operations_are_not_named():
    tiny = ops_of(BF16, FP32, BF16).with_columns(
        input_shapes=pl.Series([SHAPES, "[[2,2],[2,2]]", SHAPES], dtype=pl.Categorical())
    )
    assert only(got(tiny, by="all"))["precision"] == "bf16"


def test_a_step_lasts_until_the_device_has_done_its_work():
    late = SPANS.with_columns(
        ts_ns=pl.when(pl.col("span_id") == 5).then(25_000).otherwise("ts_ns"),
    )
    frame = got(spans=late)
    assert frame["window_ns"].to_list() == [10_000, 16_000]
    assert frame["mfu_ratio"][1] == pytest.approx(FLOP / PEAK / 16e-6)


def test_two_devices_take_twice_the_time():
    spans = SPANS.with_columns(
        track_id=pl.when(pl.col("span_id") == 4).then(OTHER_DEVICE).otherwise("track_id").cast(pl.UInt32)
    )
    devices = DEVICES_2.with_columns(name=pl.lit("NVIDIA H100 PCIe"))
    frame = got(spans=spans, devices=devices)
    assert frame["n_devices"].to_list() == [2, 2]
    assert frame["mfu_ratio"].to_list() == pytest.approx([FLOP / PEAK / 20e-6] * 2)


def test_without_steps_the_recording_is_one():
    row = only(got(steps=STEPS.empty(), spans=SPANS.with_columns(step=pl.lit(None, pl.Int32))))
    assert (row["step"], row["window_ns"], row["calls"]) == (None, 18_900, 2)


def test_products_of_unknown_operations_bound_the_ratio_from_above():
    row = only(got(ops_of(BF16, None, BF16), by="all"))
    assert row["known_ratio"] == 0.4
    assert row["mfu_ratio"] == pytest.approx(FLOP / PEAK / 20e-6)
    assert row["most_mfu_ratio"] == pytest.approx((FLOP / PEAK + 6e-6) / 20e-6)
    assert row["reason"] == "shapes were not recorded"
    assert row["product_mfu_ratio"] == pytest.approx(FLOP / PEAK / 4e-6)


def test_without_any_operations_the_ratio_is_withheld():
    row = only(got(ops_of(None, None, None), by="all"))
    assert (row["mfu_ratio"], row["flop"], row["known_ratio"], row["precision"]) == (None, None, 0.0, None)
    assert row["most_mfu_ratio"] == 0.5  # all ten of 20 µs at the peak
    assert row["reason"] == "shapes were not recorded"


def test_without_a_known_device_or_peak_the_ratio_is_withheld():
    row = only(got(devices=H100.with_columns(name=pl.lit("Voodoo 2")), by="all"))
    assert (row["mfu_ratio"], row["most_mfu_ratio"], row["accelerator"]) == (None, None, None)
    assert row["flop"] == 2 * FLOP
    assert row["flop_per_s"] == pytest.approx(2 * FLOP / 20e-6)
    assert "'Voodoo 2' is not a known accelerator" in row["reason"]
    v100 = only(got(devices=H100.with_columns(name=pl.lit("Tesla V100-SXM2-16GB")), by="all"))
    assert (v100["mfu_ratio"], v100["reason"]) == (None, "no peak is known for bf16 on matrix units")


def test_a_step_without_products_says_so():
    spans = SPANS.with_columns(
        name=pl.when(pl.col("span_id") == 3).then(pl.lit("elementwise_kernel")).otherwise("name").cast(pl.Categorical())
    )
    first = got(ops_of(None, BF16, BF16), spans=spans).row(0, named=True)
    assert (first["mfu_ratio"], first["product_ratio"], first["known_ratio"]) == (None, 0.0, None)
    assert first["reason"] == NO_PRODUCTS


def test_work_without_a_launch_record_counts_where_it_runs():
    # It was queued before the recording began; the first step begins where it has ended.
    early = spans_of(
        (HOST, 100, 10, "aten::mm", "operator"),
        kernel(STREAM_7, 50, 500, "gemm"),
        kernel(STREAM_7, 1_000, 4_000, "gemm", 0),
        op_id=[None, None, 0],
        step=[1, 1, 1],
    )
    one = STEPS_2.head(1)
    row = only(got(spans=early, steps=one))
    assert (row["window_ns"], row["product_ns"], row["known_ratio"]) == (9_450, 4_000, 1.0)
    # Launches that were lost leave work within the step, which is unknown.
    lost = early.with_columns(ts_ns=pl.when(pl.col("span_id") == 1).then(6_000).otherwise("ts_ns")).sort("span_id")
    row = only(got(spans=lost, steps=one))
    assert (row["window_ns"], row["product_ns"], row["known_ratio"]) == (10_000, 4_500, 4_000 / 4_500)
    assert row["reason"].startswith("no operator")


def test_work_that_lies_in_no_step_belongs_to_none():
    before = spans_of(
        (HOST, 100, 10, "aten::mm", "operator"),
        kernel(STREAM_7, 50, 500, "gemm"),
        op_id=[None, None],
        step=[None, None],
    )
    row = only(got(spans=before, steps=STEPS_2.tail(1)))
    assert (row["step"], row["product_ns"], row["reason"]) == (2, 0, NO_PRODUCTS)


def test_peaks_may_be_given(tmp_path):
    mine = {"name": "Mine", "memory_bytes_per_s": 1e12, "tensor": {"bf16": 1e15}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"accelerators": [mine]}))
    row = only(got(devices=DEVICES.empty(), by="all", hardware=str(path), accelerator="Mine"))
    assert row["mfu_ratio"] == pytest.approx(2 * FLOP / 1e15 / 20e-6)
    assert "does not describe the device" in only(got(devices=DEVICES.empty(), by="all"))["reason"]


def test_what_cannot_be_answered_is_refused():
    copies = spans_of((STREAM_7, 0, 10, "Memcpy HtoD", "memcpy"))
    with pytest.raises(MissingTable, match="mfu needs kernels"):
        got(spans=copies)
    with pytest.raises(StepscopeError, match="cannot read"):
        got(hardware="/none.json")


@pytest.mark.parametrize("by", ["step", "all", "precision"])
def test_the_analysis_returns_what_its_table_declares(by):
    tables = {"spans": SPANS, "tracks": TRACKS_5, "ops": ops_of(BF16, FP32, None), "devices": H100, "steps": STEPS_2}
    frame = ANALYSIS(Trace(Meta("x", "kineto"), tables), by=by)
    assert dict(frame.schema) == {name: MFU.dtypes[name] for name in frame.columns}
    bare = ANALYSIS(Trace(Meta("x", "kineto"), {"spans": SPANS, "tracks": TRACKS_5}), by=by)
    assert bare["mfu_ratio"].null_count() == bare.height
    with pytest.raises(MissingTable, match="start times"):
        ANALYSIS(Trace(Meta("x", "ncu"), tables | {"spans": SPANS.with_columns(ts_ns=pl.lit(None, pl.Int64))}))


SIZES = st.integers(1, 6).map(lambda n: 256 * n)
PRODUCTS = st.tuples(SIZES, SIZES, SIZES, st.sampled_from([BF16, FP32]), st.integers(0, 2), st.integers(1, 50))


@pytest.mark.slow
@given(st.lists(PRODUCTS, min_size=1, max_size=8))
def test_the_ratio_equals_a_plain_sum(products):
    products = sorted(products, key=lambda p: p[4])
    steps = STEPS.conform(pl.DataFrame({"step": [0, 1, 2], "ts_ns": [0, 10**6, 2 * 10**6], "dur_ns": [10**6] * 3}))
    hosts = [(HOST, 10**6 * p[4] + 10 * i, 5, "aten::mm", "operator") for i, p in enumerate(products)]
    works = [kernel(STREAM_8, 10**6 * p[4] + 10_000 * (i + 1), 100 * p[5], "gemm", i) for i, p in enumerate(products)]
    n = len(products)
    spans = spans_of(*hosts, *works, op_id=[None] * n + list(range(n)), step=[p[4] for p in products] * 2)
    rows = [(i, f"[[{m},{k}],[{k},{j}]]", kind, '["",""]') for i, (m, k, j, kind, _, _) in enumerate(products)]
    ops = OPS.conform(
        pl.DataFrame(rows, schema=("span_id", "input_shapes", "input_types", "concrete_inputs"), orient="row")
    )
    for step, ratio in got(ops, spans=spans, steps=steps).select("step", "mfu_ratio").rows():
        seconds = [
            2 * m * k * j / (PEAK if kind == BF16 else PEAK_FP32) for m, k, j, kind, s, _ in products if s == step
        ]
        assert ratio == (pytest.approx(sum(seconds) / 1e-3) if seconds else None)
