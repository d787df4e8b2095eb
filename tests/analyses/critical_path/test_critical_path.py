from __future__ import annotations

import polars as pl
import pytest
from path_traces import (
    AUTOGRAD,
    MAIN,
    NO_ARROWS,
    NO_OPS,
    NO_STEPS,
    PATH_TRACKS,
    US,
    Row,
    call,
    kernel,
    op,
    spans_of,
    steps_of,
)

from stepscope.analyses.critical_path.critical_path import ANALYSIS, CRITICAL_PATH, WAYS, critical_path
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.trace import Meta, Trace

# One step. The host loads data, runs two operators that launch a kernel each, and waits for the second; the kernels
# follow each other. A helper thread works meanwhile, for nobody.
SPANS = spans_of(
    Row(MAIN, 0, 100, "ProfilerStep#7", "step", step=7),
    Row(MAIN, 0, 10, "enumerate(DataLoader)#next", "dataloader", step=7),
    Row(MAIN, 12, 40, "forward", "user_range", step=7),
    op(15, 10, "aten::mm", key="mm", step=7),
    call(18, 4, key="a", op="mm", step=7),
    op(30, 10, "aten::relu", key="relu", step=7),
    call(33, 4, key="b", op="relu", step=7),
    call(60, 35, "cudaDeviceSynchronize", step=7),
    kernel(25, 45, "a", "ampere_sgemm", op="mm", step=7),
    kernel(72, 20, "b", "relu_kernel", op="relu", step=7),
    op(20, 30, "aten::copy_", AUTOGRAD),
)
STEPS = steps_of((0, 100), first=7)


def path(spans=SPANS, steps=STEPS, **options):
    return critical_path(spans, PATH_TRACKS, steps, NO_OPS, NO_ARROWS, **options)


def us(rows, *columns):
    return rows.select(*columns, pl.col("on_path_ns") // US).rows()


def test_what_bound_the_step_adds_up_to_it():
    result = path()
    assert us(result, "step", "rank", "kind", "calls") == [
        (7, 0, "computation", 2, 65), (7, 0, "dataloader", 1, 10), (7, 0, "other_host", 2, 10),
        (7, 0, "runtime", 1, 4), (7, 0, "operator", 1, 3), (7, 0, "sync", 1, 3), (7, 0, "launch_delay", 1, 3),
        (7, 0, "kernel_wait", 1, 2),
    ]  # fmt: skip
    assert result["on_path_ns"].sum() == result["step_dur_ns"][0] == 100 * US
    assert result["share_ratio"].to_list() == pytest.approx([0.65, 0.1, 0.1, 0.04, 0.03, 0.03, 0.03, 0.02])


def test_what_the_path_hides_is_told_of_what_is_measured_by_spans():
    off = dict(path().select("kind", pl.col("off_path_ns") // US).rows())
    assert off == {
        "computation": 0, "dataloader": 0, "runtime": 4, "operator": 39, "sync": 32, "other_host": None,
        "launch_delay": None, "kernel_wait": None,
    }  # fmt: skip


def test_by_operator_tells_the_operator_behind_each_part():
    assert us(path(by="operator"), "kind", "operator") == [
        ("computation", "aten::mm", 45), ("computation", "aten::relu", 20),
        ("dataloader", "enumerate(DataLoader)#next", 10), ("other_host", None, 7), ("runtime", "aten::mm", 4),
        ("operator", "aten::mm", 3), ("sync", None, 3), ("other_host", "forward", 3), ("launch_delay", "aten::mm", 3),
        ("kernel_wait", "aten::relu", 2),
    ]  # fmt: skip


def test_by_kernel_tells_the_work_and_what_waits_were_for():
    assert us(path(by="kernel").drop_nulls("kernel"), "kind", "kernel") == [
        ("computation", "ampere_sgemm", 45), ("computation", "relu_kernel", 20), ("launch_delay", "ampere_sgemm", 3),
        ("kernel_wait", "relu_kernel", 2),
    ]  # fmt: skip


def test_by_launch_tells_the_call_itself_or_the_one_behind_the_work():
    assert us(path(by="launch").drop_nulls("launch"), "kind", "launch") == [
        ("computation", "cudaLaunchKernel", 65), ("runtime", "cudaLaunchKernel", 4),
        ("sync", "cudaDeviceSynchronize", 3), ("launch_delay", "cudaLaunchKernel", 3),
        ("kernel_wait", "cudaLaunchKernel", 2),
    ]  # fmt: skip


def test_by_piece_is_the_path_in_order_of_time():
    result = path(by="piece")
    assert us(result, pl.col("ts_ns") // US, "kind", "name") == [
        (0, "dataloader", "enumerate(DataLoader)#next", 10), (10, "other_host", "ProfilerStep#7", 2),
        (12, "other_host", "forward", 3), (15, "operator", "aten::mm", 3), (18, "runtime", "cudaLaunchKernel", 4),
        (22, "launch_delay", "ampere_sgemm", 3), (25, "computation", "ampere_sgemm", 45),
        (70, "kernel_wait", "relu_kernel", 2), (72, "computation", "relu_kernel", 20),
        (92, "sync", "cudaDeviceSynchronize", 3), (95, "other_host", "ProfilerStep#7", 5),
    ]  # fmt: skip
    assert result["operator"].to_list()[:6] == ["enumerate(DataLoader)#next", None, "forward", *["aten::mm"] * 3]


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("gemm=1", 100),
        ("gemm=2", 145),  # all of it is on the path
        ("elementwise=0", 80),
        ("gemm=0", 68),  # the second kernel begins 3 µs after its launch, and the host waits for it no longer
        ("sync=0", 97),
        ("launch delay=0,kernel wait=0", 95),
        ("aten::relu=0", 100),  # of the host, it is hidden by the kernel
        ("aten::mm=0", 93),  # the 3 µs before its launch, and the 4 µs of that
        ("dataloader=0", 90),
    ],
)
def test_what_if_some_of_it_took_another_time(scale, expected):
    result = path(scale=scale)
    assert result["scaled_dur_ns"].unique().to_list() == [expected * US]
    assert result.drop("scaled_dur_ns").equals(path())


def test_several_steps_are_each_a_path_of_their_own():
    two = spans_of(
        Row(MAIN, 0, 50, "ProfilerStep#0", "step", step=0), op(0, 40, step=0),
        Row(MAIN, 50, 50, "ProfilerStep#1", "step", step=1), op(55, 5, "aten::relu", step=1),
        call(62, 3, key="a", step=1), kernel(66, 54, "a", step=1),
    )  # fmt: skip
    steps = steps_of((0, 50), (50, 100))
    assert us(path(two, steps), "step", "kind") == [
        (0, "operator", 40), (0, "other_host", 10), (1, "computation", 54), (1, "other_host", 7), (1, "operator", 5),
        (1, "runtime", 3), (1, "launch_delay", 1),
    ]  # fmt: skip
    assert path(two, steps, step=1)["step"].unique().to_list() == [1]
    assert path(two, steps, step=1, scale="gemm=0.5")["scaled_dur_ns"].unique().to_list() == [50 * US]


def test_without_a_device_the_path_lies_on_threads():
    spans = SPANS.filter(pl.col("category") != "kernel")
    assert us(path(spans), "kind") == [
        ("sync", 35), ("other_host", 35), ("operator", 12), ("dataloader", 10), ("runtime", 8),
    ]  # fmt: skip


def test_calls_that_all_have_no_length_bound_nothing():
    with pytest.raises(MissingTable, match="operators and the calls"):
        path(SPANS.with_columns(dur_ns=pl.lit(0, pl.Int64)), within="recording")


def test_the_whole_recording_and_ranges_may_be_asked_for():
    result = path(within="recording")
    assert result["step"].to_list() == [None] * result.height
    assert result["step_dur_ns"][0] == 92 * US
    assert path(within="forw")["step"].unique().to_list() == [0]


@pytest.mark.parametrize(
    ("spans", "steps", "options", "error", "message"),
    [
        (SPANS, NO_STEPS, {}, MissingTable, "steps"),
        (SPANS.filter(pl.col("category") == "kernel"), STEPS, {}, MissingTable, "operators and the calls"),
        (SPANS, STEPS, {"step": 3}, UnknownName, "step"),
        (SPANS, STEPS, {"scale": "x"}, StepscopeError, "not a scale"),
        (SPANS, STEPS, {"scale": "nothing=0"}, StepscopeError, "nothing to scale"),
        (SPANS, STEPS, {"within": "nowhere"}, MissingTable, "ranges"),
    ],
)
def test_what_cannot_be_told_is_refused(spans, steps, options, error, message):
    with pytest.raises(error, match=message):
        path(spans, steps, **options)


@pytest.mark.parametrize("by", WAYS)
def test_the_result_has_the_declared_columns_in_their_order(by):
    result = path(by=by, scale="gemm=0.5")
    declared = [name for name in CRITICAL_PATH.dtypes if name in result.columns]
    assert result.columns == declared
    assert all(result.schema[name] == CRITICAL_PATH.dtypes[name] for name in declared)
    assert result["on_path_ns"].sum() == 100 * US


def test_it_is_an_analysis_of_a_trace():
    trace = Trace(Meta("", "test"), {"spans": SPANS, "tracks": PATH_TRACKS, "steps": STEPS})
    assert ANALYSIS(trace, by="kind").equals(path())
    assert set(ANALYSIS.options()) == {"by", "step", "within", "scale"}
