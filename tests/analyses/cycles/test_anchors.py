from __future__ import annotations

import pytest
from cycle_traces import BACKWARD, MAIN, STREAM, spans_of, training

from stepscope.analyses.cycles.anchors import calls_of, device_anchors, host_anchors, plain_name
from stepscope.core.schema import DEVICE_WORK


def on_host(spans):
    return spans["track_id"].is_in([MAIN, BACKWARD])


def anchors_in(spans, which=host_anchors):
    anchors = which(spans, on_host(spans)) if which is host_anchors else which(spans)
    return {anchor.name: anchor.starts.size for anchor in anchors}


def test_one_or_two_functions_are_tried_for_each_number_of_calls():
    # load and optimize come as often; load has a meaning like optimize and takes less time, so one name remains.
    spans = spans_of(*training(5))
    assert anchors_in(spans) == {"optimize": 5, "autograd::backward": 5, "aten::linear": 20}


def test_a_range_goes_before_a_longer_function_and_both_are_tried():
    rows = [(MAIN, 100 * i, 90, "train.py(3): step", "python") for i in range(4)]
    rows += [(MAIN, 100 * i + 5, 10, "load", "user_range") for i in range(4)]
    anchors = host_anchors(spans_of(*rows), on_host(spans_of(*rows)))
    assert [(a.name, a.kind, a.rank) for a in anchors] == [
        ("train.py(3): step", "function", 2), ("load", "function", 1),
    ]  # fmt: skip
    assert anchors[0].total_ns == 360


def test_calls_inside_a_call_of_the_same_function_do_not_count():
    rows = [(MAIN, 100 * i + k, 80 - 2 * k, "walk", "python") for i in range(3) for k in range(3)]
    assert anchors_in(spans_of(*rows)) == {"walk": 3}


def test_less_than_three_calls_mark_nothing():
    assert anchors_in(spans_of((MAIN, 0, 5, "a", "operator"), (MAIN, 9, 5, "a", "operator"))) == {}
    assert anchors_in(spans_of((MAIN, 0, 5, "a", "step"))) == {}
    # Three calls, two of them inside the first.
    inside = spans_of((MAIN, 0, 50, "a", "operator"), (MAIN, 1, 9, "a", "operator"), (MAIN, 20, 5, "a", "operator"))
    assert anchors_in(inside) == {}


def test_steps_of_serving_engines_are_one_function_whatever_they_do():
    rows = [(MAIN, 10 * i, 9, f"step[{'EXTEND' if i == 1 else 'DECODE'} bs={i}]", "user_range") for i in range(4)]
    assert anchors_in(spans_of(*rows)) == {"step[* bs=#]": 4}


def test_kernels_mark_turns_too():
    spans = spans_of(*training(5))
    assert anchors_in(spans, device_anchors) == {"gemm": 20}
    assert anchors_in(spans_of((MAIN, 0, 1, "a", "operator")), device_anchors) == {}


def test_the_calls_of_a_name_are_those_of_the_track_with_most():
    spans = spans_of(
        (MAIN, 0, 9, "a", "operator"), (MAIN, 2, 3, "a", "operator"), (MAIN, 20, 9, "a", "operator"),
        (BACKWARD, 1, 9, "a", "operator"), (STREAM, 30, 9, "k", "kernel"),
    )  # fmt: skip
    anchor = calls_of(spans, on_host(spans), "a")
    assert (anchor.kind, anchor.starts.tolist(), anchor.ends.tolist()) == ("function", [0, 20], [9, 29])
    assert calls_of(spans, spans["category"].is_in(DEVICE_WORK), "k").kind == "kernel"
    assert calls_of(spans, on_host(spans), "b") is None


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("ProfilerStep#12", "ProfilerStep"),
        ("iteration 7", "iteration #"),
        ("execute_32_context_0(sq0sk0)_generation_32(sq32sk3)", "execute_#_context_#(sq#sk#)_generation_#(sq#sk#)"),
        ("step[DECODE bs=32]", "step[DECODE bs=#]"),
        ("<method f of X object at 0x7fa5>", "<method f of X object at 0x…>"),
        ("layer 12", "layer 12"),
        ("triton_poi_fused_3", "triton_poi_fused_3"),
    ],
)
def test_what_differs_from_turn_to_turn_is_left_out_of_names(name, plain):
    assert plain_name(name) == plain
