from __future__ import annotations

import json

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of
from kernel_launches_of import DRAM
from kernel_launches_of import spans_of as launches_of

from stepscope.analyses.costs.fusion import ANALYSIS, FUSION, fusion
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.schema import DEVICES, KERNEL_METRICS, OPS
from stepscope.core.trace import Meta, Trace

MUL, ADD, SUM, GEMM = "elementwise_kernel<Mul>", "elementwise_kernel<Add>", "reduce_kernel<Sum>", "ampere_gemm"
N = 1024
TWO = (f"[[{N}],[{N}]]", '["float","float"]', '["",""]')
ONE = (f"[[{N}]]", '["float"]', '[""]')
NAMES = ("aten::mul", "aten::add", "aten::sum", "aten::mm")


def traced(*layers, names=NAMES, kinds=(MUL, ADD, SUM, GEMM)):
    """Layers of mul, add, sum and mm, each at its start; the operators of a layer are called one after another."""
    hosts = [(HOST, 100 * i + 20 * j, 10, name, "operator") for i in range(len(layers)) for j, name in enumerate(names)]
    works = [kernel(STREAM_7, start + 20 * j, 10 * (j + 1), kind) for start in layers for j, kind in enumerate(kinds)]
    n = len(hosts)
    return spans_of(*hosts, *works, op_id=[None] * n + list(range(n)))


def ops_of(*arguments):
    rows = [(i, *a) for i, a in enumerate(arguments) if a]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    return OPS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def counters(*rows):
    schema = ("span_id", "metric", "unit", "value")
    return KERNEL_METRICS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def only(frame):
    (row,) = frame.to_dicts()
    return row


LAYER = (TWO, TWO, ONE, None)


def test_equal_sequences_are_a_row():
    row = only(fusion(traced(0, 1_000), TRACKS_5, ops_of(*LAYER, *LAYER)))
    assert row["kernels"] == f"{MUL} → {ADD} → {SUM}"
    assert row["ops"] == "aten::mul → aten::add → aten::sum"
    assert (row["n_runs"], row["mean_kernels"], row["calls"], row["total_ns"], row["mean_ns"]) == (2, 3, 6, 120, 60)
    assert row["gap_ns"] == 2 * (10 + 0)
    assert row["share_ratio"] == 120 / 200
    traffic = 2 * (12 * N + 12 * N + 4 * N + 4)
    assert (row["bytes"], row["between_bytes"], row["known_ratio"]) == (traffic, traffic - 2 * (4 * N + 4), 1.0)
    assert row["saved_high_ns"] == pytest.approx(120 * row["between_bytes"] / traffic)
    assert row["saved_low_ns"] == pytest.approx(2 * (20 * 4 / 12 + 30 * 4 * N / (4 * N + 4)))
    assert (row["method"], row["reason"], row["first_id"]) == ("shapes", None, 8)


def test_repeated_kernels_and_operators_are_counted():
    spans = traced(0, names=("aten::mul", "aten::mul", "aten::sum", "aten::mm"), kinds=(MUL, MUL, SUM, GEMM))
    row = only(fusion(spans, TRACKS_5))
    assert row["kernels"] == f"{MUL} ×2 → {SUM}"
    assert row["ops"] == "aten::mul ×2 → aten::sum"


def test_without_shapes_or_counters_time_is_told_and_savings_are_not():
    row = only(fusion(traced(0), TRACKS_5, ops_of(("[]", "[]", "[]"))))
    assert (row["total_ns"], row["saved_high_ns"], row["bytes"], row["method"], row["known_ratio"]) == (
        60, None, None, None, 0.0,
    )  # fmt: skip
    assert row["reason"] == "argument 0 is no tensor of a known shape"


def test_an_operator_with_other_work_besides_is_not_known():
    spans = spans_of(
        (HOST, 0, 10, "aten::mul", "operator"),
        (HOST, 20, 10, "aten::add", "operator"),
        kernel(STREAM_7, 0, 10, GEMM),
        kernel(STREAM_7, 20, 10, MUL),
        kernel(STREAM_7, 40, 10, ADD),
        op_id=[None, None, 0, 0, 1],
    )
    row = only(fusion(spans, TRACKS_5, ops_of(TWO, TWO)))
    assert (row["known_ratio"], row["reason"]) == (0.5, "its operator launches other work too")


def test_kernels_of_one_operator_are_one_stage():
    spans = spans_of(
        (HOST, 0, 10, "aten::mul", "operator"),
        (HOST, 20, 10, "aten::add", "operator"),
        kernel(STREAM_7, 0, 10, MUL),
        kernel(STREAM_7, 20, 10, MUL),
        kernel(STREAM_7, 40, 20, ADD),
        op_id=[None, None, 0, 0, 1],
    )
    row = only(fusion(spans, TRACKS_5, ops_of(TWO, TWO)))
    assert (row["bytes"], row["between_bytes"]) == (24 * N, 16 * N)
    assert row["saved_high_ns"] == pytest.approx(40 * 16 / 24)


def test_operators_of_a_run_that_lost_its_launches_are_those_of_another():
    spans = traced(0, 1_000)
    lost = spans.with_columns(op_id=pl.when(pl.col("span_id") >= 12).then("op_id"))
    assert only(fusion(lost, TRACKS_5))["ops"] == "aten::mul → aten::add → aten::sum"
    bare = spans.with_columns(op_id=pl.lit(None, pl.UInt32))
    assert only(fusion(bare, TRACKS_5))["ops"] is None


def test_counters_tell_what_is_read_and_written():
    spans = launches_of((MUL, 100), (SUM, 50), (GEMM, 500))
    metrics = counters(
        (0, "dram__bytes_read.sum", "byte", 800.0), (0, "dram__bytes_write.sum", "byte", 400.0),
        (1, "dram__bytes_read.sum", "byte", 400.0), (1, "dram__bytes_write.sum", "byte", 0.0),
    )  # fmt: skip
    row = only(fusion(spans, TRACKS_5, None, metrics))
    assert (row["method"], row["bytes"], row["between_bytes"], row["gap_ns"]) == ("counters", 1600, 800, None)
    assert row["saved_high_ns"] == pytest.approx(150 * 800 / 1600)
    assert row["saved_low_ns"] == pytest.approx(50.0)
    halves = counters((0, "dram__bytes.sum", "byte", 800.0), (1, "dram__bytes.sum", "byte", 800.0))
    assert only(fusion(spans, TRACKS_5, None, halves))["between_bytes"] == 800


def test_launches_of_an_optimizer_for_parts_of_a_list_are_one_stage():
    adam = "multi_tensor_apply_kernel<FusedAdam>"
    spans = launches_of((adam, 10), (adam, 30), (MUL, 10))
    rows = [(i, what, "byte", n) for i in range(3) for what, n in (
        ("dram__bytes_read.sum", 60.0), ("dram__bytes_write.sum", 40.0),
    )]  # fmt: skip
    row = only(fusion(spans, TRACKS_5, None, counters(*rows)))
    assert row["kernels"] == f"{adam} ×2 → {MUL}"
    # The list is read once, 120 bytes of 300 moved; the last output is 40.
    assert row["between_bytes"] == 300 - 120 - 40
    assert row["saved_low_ns"] == pytest.approx(10 * 60 / 100)
    assert only(fusion(spans.head(2), TRACKS_5, None, counters(*rows)))["saved_high_ns"] is None


def test_amounts_in_different_units_are_not_added():
    spans = launches_of((MUL, 100), (ADD, 100), (SUM, 100), (MUL, 100))
    metrics = counters(
        *((i, "dram__bytes.sum", "byte", 800.0) for i in (0, 1)), *((i, DRAM, "%", 50.0) for i in (2, 3))
    )
    row = only(fusion(spans, TRACKS_5, None, metrics))
    assert row["saved_high_ns"] == pytest.approx(100.0 + 100.0)
    assert (row["bytes"], row["known_ratio"]) == (None, 1.0)


def test_shares_of_bandwidth_tell_time_and_on_a_known_device_bytes():
    spans = launches_of((MUL, 100), (SUM, 100))
    metrics = counters((0, DRAM, "%", 50.0), (1, DRAM, "%", 50.0))
    row = only(fusion(spans, TRACKS_5, None, metrics))
    assert (row["method"], row["bytes"], row["saved_high_ns"]) == ("dram share", None, pytest.approx(100.0))
    named = only(fusion(spans, TRACKS_5, None, metrics, accelerator="H100 PCIe"))
    assert named["bytes"] == pytest.approx(100 * 2039e9 / 1e9)
    assert named["saved_high_ns"] == pytest.approx(100.0)
    device = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "name": ["NVIDIA H100 PCIe"]}))
    tracks = TRACKS_5.with_columns(device_id=pl.lit(0, pl.UInt32))
    assert only(fusion(spans, tracks, None, metrics, device))["bytes"] == named["bytes"]


def test_counters_come_before_shapes_launch_by_launch():
    metrics = counters((4, "dram__bytes.sum", "byte", 1e6))
    row = only(fusion(traced(0), TRACKS_5, ops_of(*LAYER), metrics))
    assert row["bytes"] == 1e6 + 12 * N + 4 * N + 4
    assert row["known_ratio"] == 1.0


def test_each_run_by_itself_and_all_together():
    spans = traced(0, 1_000)
    each = fusion(spans, TRACKS_5, ops_of(*LAYER, *LAYER), by="run")
    assert each.select("run", "n_runs", "ts_ns", "first_id").rows() == [(0, 1, 0, 8), (1, 1, 1_000, 12)]
    row = only(fusion(spans, TRACKS_5, ops_of(*LAYER, *LAYER), by="all"))
    assert (row["n_runs"], row["total_ns"], "kernels" in row) == (2, 120, False)
    assert row["saved_high_ns"] == pytest.approx(each["saved_high_ns"].sum())


def test_the_costliest_sequence_comes_first():
    spans = launches_of((MUL, 1), (ADD, 1), (GEMM, 1), (SUM, 5), (ADD, 5), (GEMM, 1), (MUL, 1), (ADD, 1))
    assert fusion(spans, TRACKS_5).select("total_ns", "n_runs").rows() == [(10, 1), (4, 2)]


def test_no_runs_are_no_rows():
    spans = launches_of((MUL, 1), (GEMM, 1))
    assert fusion(spans, TRACKS_5).is_empty()
    assert fusion(spans, TRACKS_5).columns
    row = only(fusion(spans, TRACKS_5, by="all"))
    assert (row["n_runs"], row["total_ns"], row["saved_high_ns"], row["known_ratio"]) == (0, 0, None, None)


def test_what_cannot_be_answered_is_refused(tmp_path):
    spans = traced(0)
    with pytest.raises(UnknownName, match="grouping of fusion named 'class'"):
        fusion(spans, TRACKS_5, by="class")
    with pytest.raises(StepscopeError, match="min-kernels is 1"):
        fusion(spans, TRACKS_5, min_kernels=1)
    with pytest.raises(StepscopeError, match="max-gap-ns is -1"):
        fusion(spans, TRACKS_5, max_gap_ns=-1)
    with pytest.raises(MissingTable, match="fusion needs kernels"):
        fusion(spans_of((STREAM_7, 0, 10, "Memcpy HtoD", "memcpy")), TRACKS_5)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"accelerators": [{"name": "X"}]}))
    with pytest.raises(StepscopeError, match="no description of accelerators"):
        fusion(spans, TRACKS_5, hardware=str(path))


@pytest.mark.parametrize("by", ["sequence", "run", "all"])
def test_the_analysis_returns_what_its_table_declares(by):
    tables = {"spans": traced(0, 1_000), "tracks": TRACKS_5, "ops": ops_of(*LAYER)}
    got = ANALYSIS(Trace(Meta("x", "kineto"), tables), by=by)
    assert dict(got.schema) == {name: FUSION.dtypes[name] for name in got.columns}
    clockless = Trace(Meta("x", "ncu"), {"spans": launches_of((MUL, 1), (ADD, 1)), "tracks": TRACKS_5})
    assert ANALYSIS(clockless, by=by)["total_ns"].to_list() == [2]
