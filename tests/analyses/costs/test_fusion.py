from __future__ import annotations

import json
from itertools import pairwise

import polars as pl
import pytest
from device_traces import HOST, OTHER_DEVICE, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from hypothesis import given
from hypothesis import strategies as st
from kernel_launches_of import DRAM
from kernel_launches_of import spans_of as launches_of

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.fusion import ANALYSIS, FUSION, METHODS, fusion, members_of_runs, savings_of
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import FUSIBLE, KERNEL_CLASSES
from stepscope.core.schema import DEVICES, KERNEL_METRICS, KERNELS, OPS
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
    row = only(fusion(spans, TRACKS_5, kernel_metrics=metrics))
    assert (row["method"], row["bytes"], row["between_bytes"], row["gap_ns"]) == ("counters", 1600, 800, None)
    assert row["saved_high_ns"] == pytest.approx(150 * 800 / 1600)
    assert row["saved_low_ns"] == pytest.approx(50.0)
    halves = counters((0, "dram__bytes.sum", "byte", 800.0), (1, "dram__bytes.sum", "byte", 800.0))
    assert only(fusion(spans, TRACKS_5, kernel_metrics=halves))["between_bytes"] == 800


def test_launches_of_an_optimizer_for_parts_of_a_list_are_one_stage():
    adam = "multi_tensor_apply_kernel<FusedAdam>"
    spans = launches_of((adam, 10), (adam, 30), (MUL, 10))
    rows = [(i, what, "byte", n) for i in range(3) for what, n in (
        ("dram__bytes_read.sum", 60.0), ("dram__bytes_write.sum", 40.0),
    )]  # fmt: skip
    row = only(fusion(spans, TRACKS_5, kernel_metrics=counters(*rows)))
    assert row["kernels"] == f"{adam} ×2 → {MUL}"
    # The list is read once, 120 bytes of 300 moved; the last output is 40.
    assert row["between_bytes"] == 300 - 120 - 40
    assert row["saved_low_ns"] == pytest.approx(10 * 60 / 100)
    assert only(fusion(spans.head(2), TRACKS_5, kernel_metrics=counters(*rows)))["saved_high_ns"] is None


def test_amounts_in_different_units_are_not_added():
    spans = launches_of((MUL, 100), (ADD, 100), (SUM, 100), (MUL, 100))
    metrics = counters(
        *((i, "dram__bytes.sum", "byte", 800.0) for i in (0, 1)), *((i, DRAM, "%", 50.0) for i in (2, 3))
    )
    row = only(fusion(spans, TRACKS_5, kernel_metrics=metrics))
    assert row["saved_high_ns"] == pytest.approx(100.0 + 100.0)
    assert (row["bytes"], row["known_ratio"]) == (None, 1.0)


def test_shares_of_bandwidth_tell_time_and_on_a_known_device_bytes():
    spans = launches_of((MUL, 100), (SUM, 100))
    metrics = counters((0, DRAM, "%", 50.0), (1, DRAM, "%", 50.0))
    row = only(fusion(spans, TRACKS_5, kernel_metrics=metrics))
    assert (row["method"], row["bytes"], row["saved_high_ns"]) == ("dram share", None, pytest.approx(100.0))
    named = only(fusion(spans, TRACKS_5, kernel_metrics=metrics, accelerator="H100 PCIe"))
    assert named["bytes"] == pytest.approx(100 * 2039e9 / 1e9)
    assert named["saved_high_ns"] == pytest.approx(100.0)
    device = DEVICES.conform(pl.DataFrame({"device_id": [0], "type": ["cuda"], "name": ["NVIDIA H100 PCIe"]}))
    tracks = TRACKS_5.with_columns(device_id=pl.lit(0, pl.UInt32))
    assert only(fusion(spans, tracks, kernel_metrics=metrics, devices=device))["bytes"] == named["bytes"]


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
    with pytest.raises(StepscopeError, match="min-kernels is 1"):
        fusion(spans, TRACKS_5, min_kernels=1)
    with pytest.raises(StepscopeError, match="max-gap-ns is -1"):
        fusion(spans, TRACKS_5, max_gap_ns=-1)
    with pytest.raises(MissingTable, match="fusion needs kernels"):
        fusion(spans_of((STREAM_7, 0, 10, "Memcpy HtoD", "memcpy")), TRACKS_5)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"accelerators": [{"name": "X"}]}))
    with pytest.raises(StepscopeError, match="does not describe accelerators"):
        fusion(spans, TRACKS_5, hardware=str(path))


@pytest.mark.parametrize("by", ["sequence", "run", "all"])
def test_the_analysis_returns_what_its_table_declares(by):
    tables = {"spans": traced(0, 1_000), "tracks": TRACKS_5, "ops": ops_of(*LAYER)}
    got = ANALYSIS(Trace(Meta("x", "kineto"), tables), by=by)
    assert dict(got.schema) == {name: FUSION.dtypes[name] for name in got.columns}
    clockless = Trace(Meta("x", "ncu"), {"spans": launches_of((MUL, 1), (ADD, 1)), "tracks": TRACKS_5})
    assert ANALYSIS(clockless, by=by)["total_ns"].to_list() == [2]


def grids(*sizes):
    columns = {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"}
    return KERNELS.conform(pl.DataFrame([{**columns, "span_id": i, "grid_x": x} for i, x in enumerate(sizes)]))


def of_launches(*names, **tables):
    """The kernels of sequences in a recording without a clock."""
    spans = launches_of(*((name, 10) for name in names))
    return fusion(spans, TRACKS_5, **tables)["kernels"].to_list()


def test_kernels_that_counters_show_to_be_compute_bound_are_in_no_run():
    assert of_launches(SUM, SUM) == [f"{SUM} ×2"]
    busy = [(i, "sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", 67.0) for i in range(2)]
    metrics = counters(*busy, *((i, DRAM, "%", 4.0) for i in range(2)))
    assert of_launches(SUM, SUM, kernel_metrics=metrics) == []


def test_without_a_clock_a_launch_with_the_same_grid_as_the_one_before_repeats_it():
    assert of_launches(MUL, MUL, MUL, kernels=grids(8, 8, 8)) == []
    assert of_launches(ADD, MUL, MUL, kernels=grids(8, 8, 8)) == [f"{ADD} → {MUL}"]
    assert of_launches(MUL, MUL, kernels=grids(8, 4)) == [f"{MUL} ×2"]
    adam = "multi_tensor_apply_kernel<AdamFunctor>"
    assert of_launches(adam, adam, kernels=grids(8, 8)) == [f"{adam} ×2"]
    spans = spans_of(kernel(STREAM_7, 0, 10, MUL), kernel(STREAM_7, 10, 10, MUL))
    assert fusion(spans, TRACKS_5, kernels=grids(8, 8))["kernels"].to_list() == [f"{MUL} ×2"]


NORM = "layer_norm_kernel"


def runs(spans, min_kernels=2, max_gap_ns=1_000_000):
    """The span ids of each run."""
    work = device_work(spans, TRACKS_5, needed_by="test")
    result = members_of_runs(work, spans, min_kernels=min_kernels, max_gap_ns=max_gap_ns)
    return [part["span_id"].to_list() for part in result.partition_by("run", maintain_order=True)]


def gaps(spans):
    work = device_work(spans, TRACKS_5, needed_by="test")
    return members_of_runs(work, spans, min_kernels=2, max_gap_ns=1_000_000)["gap_ns"].to_list()


def test_other_work_on_the_stream_ends_a_run_and_that_on_other_streams_does_not():
    spans = spans_of(
        kernel(STREAM_7, 0, 10, MUL),
        kernel(STREAM_7, 10, 10, NORM),
        kernel(STREAM_7, 20, 10, GEMM),
        kernel(STREAM_7, 30, 10, ADD),
        kernel(STREAM_7, 40, 10, "softmax_warp_forward"),
        kernel(STREAM_7, 50, 10, "reduce_kernel"),
        kernel(STREAM_8, 5, 10, GEMM),
        kernel(OTHER_DEVICE, 5, 10, ADD),
    )
    assert runs(spans) == [[0, 1], [3, 4, 5]]
    assert runs(spans, min_kernels=3) == [[3, 4, 5]]
    assert runs(spans.head(1)) == []


@pytest.mark.parametrize("name", ["flash_fwd_kernel", "ncclDevKernel_AllReduce", "implicit_convolve_sgemm", "mystery"])
def test_attention_collectives_convolutions_and_what_is_not_known_end_it(name):
    middle = [kernel(STREAM_7, 20, 5, name)]
    assert runs(spans_of(kernel(STREAM_7, 0, 10, MUL), *middle, kernel(STREAM_7, 30, 10, MUL))) == []


def test_classes_that_can_be_fused_are_classes_of_kernels():
    assert set(FUSIBLE) < set(KERNEL_CLASSES)


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("Memset (Device)", "memset", [[0, 2]]),
        ("Memcpy DtoD (Device -> Device)", "memcpy", [[0, 2]]),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy", []),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy", []),
        ("__amd_rocclr_fillBufferAligned", "kernel", [[0, 2]]),
        ("vectorized_elementwise_kernel<FillFunctor>", "kernel", []),
    ],
)
def test_fills_and_copies_within_the_device_lie_beside_a_run(name, category, expected):
    spans = spans_of(kernel(STREAM_7, 0, 10, MUL), (STREAM_7, 20, 5, name, category), kernel(STREAM_7, 30, 10, MUL))
    assert runs(spans) == expected


def test_a_step_ends_it():
    rows = [kernel(STREAM_7, 10 * i, 5, MUL) for i in range(5)]
    assert runs(spans_of(*rows, step=[1, 1, 2, 2, None])) == [[0, 1], [2, 3]]
    assert runs(spans_of(*rows, step=[None] * 5)) == [[0, 1, 2, 3, 4]]


def test_a_long_gap_ends_it_and_time_in_which_other_work_ran_is_no_gap():
    spans = spans_of(
        kernel(STREAM_7, 0, 10, MUL),
        (STREAM_7, 12, 100, "Memset (Device)", "memset"),
        kernel(STREAM_7, 115, 10, MUL),
        kernel(STREAM_7, 120, 10, MUL),  # overlaps, as a recorder may round
        kernel(STREAM_7, 200, 10, MUL),
    )
    assert gaps(spans) == [None, 5, 0, 70]
    assert runs(spans, max_gap_ns=69) == [[0, 2, 3]]
    assert runs(spans, max_gap_ns=4) == [[2, 3]]


def launched(*rows, waits=()):
    """Kernels from (start, name, launch start), and calls of the host that wait, from (start, duration)."""
    calls = [(HOST, at, 2, "cudaLaunchKernel", "runtime") for _, _, at in rows]
    calls += [(HOST, at, dur, "cudaStreamSynchronize", "runtime") for at, dur in waits]
    works = [kernel(STREAM_7, ts, 5, name, i) for i, (ts, name, _) in enumerate(rows)]
    return spans_of(*calls, *works)


def test_a_wait_of_the_host_between_two_launches_ends_it():
    rows = ((100, MUL, 0), (200, MUL, 20), (300, MUL, 40))
    assert runs(launched(*rows)) == [[3, 4, 5]]
    assert runs(launched(*rows, waits=[(25, 10)])) == [[4, 5]]
    assert runs(launched(*rows, waits=[(5, 10), (50, 10)])) == [[6, 7]]
    assert runs(launched(*rows, waits=[(35, 10)])) == [[4, 5, 6]]  # another thread's, still going on


def test_without_a_clock_the_order_alone_counts():
    spans = spans_of(*(kernel(STREAM_7, i, 5, name) for i, name in enumerate((MUL, GEMM, ADD, NORM))))
    spans = spans.with_columns(ts_ns=pl.lit(None, pl.Int64))
    assert runs(spans) == [[2, 3]]
    assert gaps(spans) == [None, None]


ROWS = st.lists(
    st.tuples(
        st.sampled_from([STREAM_7, STREAM_8]), st.integers(0, 6), st.integers(0, 6), st.sampled_from([MUL, NORM, GEMM]),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=14,
)  # fmt: skip


@pytest.mark.slow
@given(ROWS, st.integers(0, 6))
def test_runs_agree_with_a_walk_over_each_stream(rows, max_gap):
    placed, reached = [], {STREAM_7: 0, STREAM_8: 0}
    for track, gap, dur, name, step in rows:
        placed.append((track, reached[track] + gap, dur, name, step))
        reached[track] += gap + dur
    placed.sort(key=lambda row: row[0])
    expected, open_run, before = [], [], None
    for i, (track, ts, dur, name, step) in enumerate(placed):
        member = name != GEMM
        joins = open_run and member and before[0] == track and before[2] == step and ts - before[1] <= max_gap
        if not joins and open_run:
            expected.append(open_run)
            open_run = []
        if member:
            open_run = [*open_run, i]
        before = (track, ts + dur, step)
    expected += [open_run] if open_run else []
    if not placed:
        return
    spans = spans_of(
        *(kernel(track, ts, dur, name) for track, ts, dur, name, _ in placed), step=[row[4] for row in placed]
    )
    assert runs(spans, max_gap_ns=max_gap) == [run for run in expected if len(run) > 1]


def stages(*rows, in_bytes=True):
    """Stages from (run, duration, read, written, largest); read is None where nothing is known."""
    frame = pl.DataFrame(
        rows,
        schema={"run": pl.Int64, "dur_ns": pl.Int64, "read": pl.Float64, "written": pl.Float64, "largest": pl.Float64},
        orient="row",
    )
    known = pl.col("read").is_not_null()
    return frame.with_columns(
        method=pl.when(known).then(pl.lit("shapes")).cast(pl.Enum(METHODS)),
        in_bytes=pl.lit(in_bytes),
        reason=pl.when(~known).then(pl.lit("why")),
    )


def test_at_best_the_largest_input_is_read_and_the_last_output_written():
    row = only(savings_of(stages((0, 100, 64, 64, 64), (0, 150, 128, 64, 64), (0, 50, 64, 8, 64))))
    assert (row["bytes"], row["between_bytes"], row["known_ns"]) == (392, 392 - 64 - 8, 300)
    assert row["saved_high_ns"] == pytest.approx(300 * (392 - 72) / 392)


def test_at_worst_what_is_handed_on_is_not_read_again():
    row = only(savings_of(stages((0, 100, 64, 64, 64), (0, 150, 128, 64, 64), (0, 50, 64, 8, 64))))
    assert row["saved_low_ns"] == pytest.approx(64 / 192 * 150 + 64 / 72 * 50)
    assert (row["method"], row["reason"]) == ("shapes", None)


def test_the_lower_bound_is_never_above_the_upper_one():
    # A slow stage that only reads what it is handed, before a fast one that moves much.
    row = only(savings_of(stages((0, 1, 1, 1, 1), (0, 1000, 1, 0, 1), (0, 1, 1e6, 1e6, 1e6))))
    assert row["saved_low_ns"] <= row["saved_high_ns"]


def test_stages_of_unknown_bytes_part_a_run_and_save_nothing():
    row = only(
        savings_of(
            stages(
                (0, 10, 64, 64, 64),
                (0, 10, 64, 64, 64),
                (0, 30, None, None, None),
                (0, 20, 64, 64, 64),
                (0, 20, 64, 64, 64),
            )
        )
    )
    assert row["saved_high_ns"] == pytest.approx((20 + 40) / 2)
    assert row["saved_low_ns"] == pytest.approx((10 + 20) / 2)
    assert (row["known_ns"], row["bytes"], row["reason"]) == (60, 512, "why")


def test_what_is_saved_is_unknown_where_no_two_in_succession_are_known():
    row = only(savings_of(stages((0, 10, 64, 64, 64), (0, 10, None, None, None), (0, 10, 64, 64, 64))))
    assert row["saved_high_ns"] is row["saved_low_ns"] is row["between_bytes"] is None
    assert (row["bytes"], row["known_ns"]) == (256, 20)
    row = only(savings_of(stages((0, 10, None, None, None), (0, 10, None, None, None))))
    assert row["bytes"] is row["method"] is None
    assert row["known_ns"] == 0


def test_of_work_that_moves_nothing_nothing_can_be_said():
    row = only(savings_of(stages((0, 10, 0, 0, 0), (0, 10, 0, 0, 0))))
    assert row["saved_high_ns"] is row["saved_low_ns"] is None


def test_runs_do_not_mix_and_amounts_that_are_no_bytes_are_not_told_as_such():
    result = savings_of(stages((0, 10, 64, 64, 64), (1, 10, 64, 64, 64), (1, 10, 64, 64, 64), in_bytes=False))
    assert result["saved_high_ns"].to_list() == [None, 10.0]
    assert result["saved_low_ns"].to_list() == [None, 5.0]
    assert result["bytes"].to_list() == [None, None]
    assert result["between_bytes"].to_list() == [None, None]


AMOUNT = st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)))


@given(st.lists(st.tuples(st.integers(0, 9), AMOUNT), min_size=1, max_size=9))
def test_bounds_agree_with_a_walk(rows):
    flat = [(0, t, *(a or (None,) * 3)) for t, a in rows]
    row = only(savings_of(stages(*flat)))
    stretches, now = [], []
    for t, a in [*rows, (0, None)]:
        if a is None:
            stretches.append(now)
            now = []
        else:
            now.append((t, *a))
    low = high = 0.0
    can_save = False
    for stretch in stretches:
        amount, time = sum(r + w for _, r, w, _ in stretch), sum(t for t, *_ in stretch)
        if len(stretch) < 2 or amount == 0:
            continue
        can_save = True
        least = max(largest for *_, largest in stretch) + stretch[-1][2]
        best = time * max(amount - least, 0) / amount
        reread = sum(t * min(w, r) / (r + v) for (_, _, w, _), (t, r, v, _) in pairwise(stretch) if r + v)
        high += best
        low += min(reread, best)
    assert row["saved_high_ns"] == (pytest.approx(high) if can_save else None)
    assert row["saved_low_ns"] == (pytest.approx(low) if can_save else None)
