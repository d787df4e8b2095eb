from __future__ import annotations

import polars as pl
import pytest
from path_traces import MAIN, NO_ARROWS, NO_OPS, PATH_TRACKS, US, Row, call, kernel, op, spans_of, steps_of

from stepscope.analyses.critical_path.predictions import predictions, recorded_program
from stepscope.analyses.critical_path.scaling import on_device, recorded_batch
from stepscope.core.errors import StepscopeError
from stepscope.core.schema import DEVICES, EVENT_WAITS, OPS

A100 = DEVICES.conform(
    pl.DataFrame({"device_id": [0], "type": ["cuda"], "index": [0], "name": ["NVIDIA A100-SXM4-80GB"]})
)
PRODUCT, ADD = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "vectorized_elementwise_kernel<4, AddFunctor>"
# Two kernels of 100 µs each, for which the host waits.
SPANS = spans_of(
    Row(MAIN, 0, 240, "ProfilerStep#0", "step"),
    op(0, 10, "aten::conv2d", key="conv"),
    call(2, 5, key="a"),
    call(10, 5, key="b"),
    call(20, 200, "cudaDeviceSynchronize"),
    kernel(10, 100, "a", PRODUCT),
    kernel(110, 100, "b", ADD),
)
STEPS = steps_of((0, 240))


def shapes(*inputs: str) -> pl.DataFrame:
    """The inputs of the first operators of SPANS."""
    ids = SPANS.filter(category="operator")["span_id"].head(len(inputs))
    return OPS.conform(pl.DataFrame({"span_id": ids, "input_shapes": list(inputs)}))


def program(devices=A100, ops=NO_OPS):
    return recorded_program(SPANS, PATH_TRACKS, STEPS, ops, NO_ARROWS, EVENT_WAITS.empty(), devices)


def asked(change, devices=A100, ops=NO_OPS):
    frame = predictions(SPANS, PATH_TRACKS, STEPS, ops, devices=devices, changes=change)
    return frame.row(0, named=True)


def factors(name):
    """Of the product and of the addition, at best and at worst."""
    ends = (on_device(program(), name, at_worst=at_worst) for at_worst in (False, True))
    return [list(pair) for pair in zip(*(one.tolist() for one in ends), strict=True)]


def test_another_device_bounds_products_by_peaks_and_what_waits_for_memory_by_bandwidths():
    product, addition = factors("H100 SXM")
    memory, peak = 2039 / 3350, 312 / 989.4
    assert addition == pytest.approx([memory, 1.0])
    assert product == pytest.approx([peak / 1.75, memory * 1.75])


def test_on_a_slower_device_nothing_is_faster_than_within_the_spread():
    product, addition = factors("T4")
    assert addition == pytest.approx([1.0, 2039 / 320])
    assert product == pytest.approx([312 / 65 / 1.75, 156 / 8.1 * 1.75])  # at worst in TF32, which it does as FP32


def test_another_device_gives_a_bound_and_says_why():
    row = asked("gpu: H100 SXM")
    assert row["basis"] == "bound"
    assert "the ratio of the bandwidths" in row["reason"]
    # 40 µs of the host; the product takes 18 to 106 µs, the addition 61 to 100 µs.
    assert row["low_ns"] < (40 + 18.0 + 60.8) * US + US
    assert (40 + 107) * US < row["high_ns"] < 1.05 * (40 + 207) * US
    assert row["predicted_ns"] == pytest.approx((40 + 18.0 + 60.8) * US, rel=0.01)


def test_a_change_that_is_made_with_it_counts_first():
    alone, both = asked("gpu: H100 SXM"), asked("class gemm: 10x\ngpu: H100 SXM")
    assert both["scenario"] == "class gemm: 10x + gpu: H100 SXM"
    assert both["predicted_ns"] == pytest.approx(alone["predicted_ns"] + (10 - 18.0) * US, rel=0.01)


@pytest.mark.parametrize(
    ("change", "devices", "reason"),
    [
        ("gpu: Abacus 3", A100, "no peaks are known of 'Abacus 3'"),
        ("gpu: H100 SXM", DEVICES.empty(), "the device that was recorded is not known"),
        ("batch: 8", A100, "does not say its batch size"),
        ("batch: 0", A100, "no change"),
        ("batch: half", A100, "no change"),
    ],
)
def test_what_cannot_be_bounded_is_refused_with_the_reason(change, devices, reason):
    with pytest.raises(StepscopeError, match=reason) as refused:
        asked(change, devices)
    assert refused.value.hint


def test_another_batch_size_takes_between_as_long_as_now_and_in_proportion():
    row = asked("batch: 3x")
    assert (row["basis"], row["predicted_ns"]) == ("bound", 240 * US)
    assert (40 + 600) * US <= row["high_ns"] < 1.04 * (40 + 600) * US
    assert "in proportion" in row["reason"]
    smaller = asked("batch: 0.5x")
    assert (smaller["predicted_ns"], smaller["high_ns"]) == (140 * US, pytest.approx(240 * US, rel=0.04))


def test_a_batch_size_is_compared_with_the_one_that_shapes_of_inputs_say():
    ops = shapes("[[4,3,32,32],[8,3,3,3]]")
    assert recorded_batch(program(ops=ops)) == 4
    row, times = asked("batch: 12", ops=ops), asked("batch: 3x")
    assert row["scenario"] == "batch: 12"
    assert [row[name] for name in ("low_ns", "high_ns")] == [times[name] for name in ("low_ns", "high_ns")]
