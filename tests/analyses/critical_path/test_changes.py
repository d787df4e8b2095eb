from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS
from batch_traces import run as recorded_run
from path_traces import AUTOGRAD, MAIN, STREAM_8, US, Row, call, kernel, op, parts_of, queued, spans_of

from stepscope.analyses.critical_path.changes import change_of, rules, scale_of
from stepscope.analyses.critical_path.predictions import predictions
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import CAPTURED
from stepscope.core.schema import SPANS as TABLE_OF_SPANS

SPANS = spans_of(
    Row(MAIN, 0, 40, "ProfilerStep#0", "step"),
    op(2, 10, "aten::linear"),
    op(4, 4, "aten::addmm"),
    call(5, 2, key="a"),
    call(20, 4, "cudaDeviceSynchronize"),
    op(30, 5, "aten::relu", AUTOGRAD),
    kernel(8, 12, "a", "ampere_sgemm_128x64"),
    *queued(25, 2, 30, 5, "ncclDevKernel_AllReduce"),
    Row(STREAM_8, 0, 3, "Memcpy HtoD", "memcpy"),
)


def scaled(text, spans=SPANS):
    threads, work, _ = parts_of(spans)
    return scale_of(rules(text), spans, threads, work)


def on_main(text):
    """When, in µs, the main thread would get to each 10 µs."""
    return (scaled(text).on_thread(0, np.arange(0, 50, 10) * US, 0) / US).tolist()


def test_a_rule_is_a_name_and_a_factor_and_several_are_divided_by_commas():
    result = [
        (rule.what, rule.factor, rule.kind, rule.device_only) for rule in rules("gemm=0.5, launch delay = 0,a,b=2")
    ]
    assert result == [
        ("gemm", 0.5, None, True),
        ("launch delay", 0.0, "launch_delay", False),
        ("a,b", 2.0, None, False),
    ]
    assert [rule.factor for rule in rules("x=.5,y=1e-1")] == [0.5, 0.1]


@pytest.mark.parametrize("text", ["gemm", "gemm=", "gemm=-1", "gemm=half", "a=1,b", "=2", "gemm=0.5x"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(StepscopeError, match="not a scale"):
        rules(text)


def test_no_rule_and_no_pattern_are_refused():
    with pytest.raises(StepscopeError, match="nothing to scale"):
        rules("")
    with pytest.raises(StepscopeError, match="not a regular expression"):
        rules("(=1")


def test_classes_scale_kernels_names_scale_kernels_and_the_host():
    assert scaled("gemm=0.5").work.tolist() == [0.5, 1.0, 1.0]
    assert on_main("gemm=0.5") == [0, 10, 20, 30, 40]
    assert scaled("sgemm=0.5").work.tolist() == [0.5, 1.0, 1.0]


def test_kinds_scale_device_work_of_that_sort():
    assert scaled("computation=0.5").work.tolist() == [0.5, 1.0, 1.0]
    assert scaled("communication=0.5").work.tolist() == [1.0, 0.5, 1.0]
    assert scaled("memcpy=0.5").work.tolist() == [1.0, 1.0, 0.5]


def test_a_name_on_the_host_scales_all_that_lies_in_it():
    assert on_main("aten::linear=0.5") == [0, 6, 15, 25, 35]
    assert on_main("linear|addmm=0") == [0, 2, 10, 20, 30]


def test_a_kind_on_the_host_scales_what_is_innermost():
    assert on_main("operator=0") == [0, 4, 12, 22, 32]
    assert on_main("sync=0") == [0, 10, 20, 26, 36]
    assert on_main("other_host=0") == [0, 8, 10, 16, 16]


def test_of_several_rules_the_first_that_holds_counts():
    assert on_main("addmm=0,linear=0.5") == [0, 4, 13, 23, 33]
    assert on_main("linear=0.5,addmm=0") == on_main("linear=0.5")
    assert scaled("sgemm=0.5,computation=0").work.tolist() == [0.5, 1.0, 1.0]
    assert scaled("kernel wait=0.5,kernel_wait=0").waits.tolist() == [1.0, 0.5, 1.0]


def test_waits_are_scaled_by_their_kind_whether_there_are_any_or_not():
    assert scaled("launch delay=0,kernel-wait=0.5,unexplained=2").waits.tolist() == [0.0, 0.5, 2.0]


@pytest.mark.parametrize("text", ["transformer=0.5", "attention=0.5", "dataloader=0"])
def test_a_rule_that_holds_nowhere_is_refused(text):
    with pytest.raises(StepscopeError, match="nothing to scale"):
        scaled(text)


def test_without_device_work_operators_that_exchange_data_are_communication():
    spans = spans_of(op(0, 10, "c10d::allreduce_"))
    assert scaled("communication=0", spans).on_thread(0, np.array([10 * US]), 0).tolist() == [0.0]


@pytest.mark.parametrize(
    ("text", "subject", "name", "factor"),
    [
        ("class gemm: 2x", "class", "gemm", 0.5),
        ("op ~ aten::mm: 4x", "op", "aten::mm", 0.25),
        ("kernel ~ ^a|b$: removed", "kernel", "^a|b$", 0.0),
        (" range  forward pass :  .5x ", "range", "forward pass", 2.0),
        ("loader: hidden", "loader", "", 0.0),
        ("comm: overlapped", "comm", "", None),
    ],
)
def test_a_change_is_a_subject_and_what_becomes_of_it(text, subject, name, factor):
    change = change_of(text)
    assert (change.subject, change.name, change.factor) == (subject, name, factor)
    assert change_of(str(change)) == change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm", "not a change"),
        ("gemm: 2x", "not a subject"),
        ("class: 2x", "not a change"),
        ("class gemms: 2x", "no class of kernels"),
        ("loader all: hidden", "not a change"),
        ("loader: overlapped", "has no change"),
        ("sync: 2x", "has no change"),
        ("host: 0x", "has no change"),
    ],
)
def test_what_is_no_change_is_refused(text, message):
    with pytest.raises(StepscopeError, match=message):
        change_of(text)


DECODE, PREFILL, MIXED = "step[DECODE bs=4]", "step[EXTEND bs=1 toks=512]", "step[MIXED bs=5 c=1 g=4 c_sq=64 g_sq=4]"
PADDED = "execute_{}_context_0(sq0sk0sqsq0sqsk0)_generation_{}(sq{}sk9sqsq9sqsk9)"


def spans_of_batches(*batches):
    """Batches (name, µs of device work), one behind the other, each queued ahead of its work."""
    at, rows = 0, []
    for i, (name, took) in enumerate(batches):
        rows.append((name, 3 * i, 3, 100 + at, took))
        at += took
    return recorded_run(*rows)


def saved_by(spans, question):
    row = predictions(spans, TABLE_OF_TRACKS, changes=question).row(0, named=True)
    return row["step_ns"] - row["predicted_ns"], row["basis"]


def test_without_prefill_only_decode_remains():
    spans = spans_of_batches((DECODE, 100), (PREFILL, 700), (DECODE, 100), (MIXED, 400), (DECODE, 100))
    assert saved_by(spans, "prefill: removed") == (pytest.approx(700_000 + 300_000, abs=5_000), "replayed")


def test_an_empty_place_takes_what_a_request_takes():
    sizes = [(8, 8), (16, 12), (32, 20), (4, 4)] * 5
    spans = spans_of_batches(*[(PADDED.format(size, n, n), 100 + 10 * n) for size, n in sizes])
    assert saved_by(spans, "padding: removed") == (pytest.approx(5 * 16 * 10_000, rel=0.02), "modelled")


@pytest.mark.parametrize("question", ["padding: removed", "prefill: removed", "sampling: free"])
def test_what_a_recording_does_not_have_is_refused(question):
    for spans in (spans_of_batches((DECODE, 100), (DECODE, 100)), spans_of_batches(("forward", 100))):
        with pytest.raises(StepscopeError, match="nothing to change"):
            saved_by(spans, question)


def test_an_operator_in_a_replayed_graph_speaks_of_its_kernels():
    rows = [  # a graph launch with two operators in it, a nanosecond for each launch
        {"category": "runtime", "name": "cudaGraphLaunch", "ts_ns": 0, "dur_ns": 1000, "track_id": 0},
        {
            "category": "operator",
            "recorded_category": CAPTURED,
            "name": "outer",
            "ts_ns": 0,
            "dur_ns": 2,
            "track_id": 0,
        },
        {"category": "operator", "recorded_category": CAPTURED, "name": "mm", "ts_ns": 0, "dur_ns": 1, "track_id": 0},
        {"category": "operator", "recorded_category": CAPTURED, "name": "add", "ts_ns": 1, "dur_ns": 1, "track_id": 0},
        {"category": "kernel", "name": "k", "ts_ns": 2000, "dur_ns": 9000, "track_id": 1, "launch_id": 0, "op_id": 2},
        {"category": "kernel", "name": "k", "ts_ns": 11000, "dur_ns": 3000, "track_id": 1, "launch_id": 0, "op_id": 3},
    ]
    spans = pl.DataFrame(rows, infer_schema_length=None).with_row_index("span_id").with_columns(
        recorded_category=pl.when(pl.col("category") == "operator").then(pl.lit(CAPTURED))
    )  # fmt: skip
    spans = TABLE_OF_SPANS.conform(spans)
    for name, saved in (("mm", 9000), ("add", 3000), ("outer", 12000)):
        assert saved_by(spans, f"op ~ ^{name}$: removed")[0] == pytest.approx(saved, abs=10)
