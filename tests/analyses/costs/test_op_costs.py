from __future__ import annotations

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, STREAM_8, TRACKS_5, kernel, spans_of
from operator_calls import cost

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.matrix import Cost
from stepscope.analyses.costs.op_costs import ARGUMENTS, FORMULAS, NO_OPERATOR, cost_of, is_fused, is_pass, priced
from stepscope.core.schema import OPS

MM = ("[[8,4],[4,2]]", '["float","float"]', '["",""]')
NORM = (
    "[[8,4],[],[4],[4],[],[]]",
    '["float","ScalarList","float","float","Scalar","Scalar"]',
    '["","[4]","","","1e-5","True"]',
)
NATIVE = ("[[8,4],[],[4],[4],[]]", '["float","ScalarList","float","float","Scalar"]', '["","[4]","","","1e-5"]')


def ops_of(**calls):
    rows = [(int(i[1:]), *arguments) for i, arguments in calls.items()]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    return OPS.conform(pl.DataFrame(rows, schema=schema, orient="row"))


def calls_of(spans, ops):
    work = device_work(spans, TRACKS_5, needed_by="test").with_columns(tensor_core=pl.lit(False))
    return priced(work, spans, ops)[1].sort("call_id")


def test_the_arguments_may_be_left_out():
    spans = spans_of((HOST, 0, 9, "aten::mm", "operator"), kernel(STREAM_7, 10, 5, "gemm"), op_id=[None, 0])
    work = device_work(spans, TRACKS_5, needed_by="test").with_columns(tensor_core=pl.lit(False))
    ops = OPS.conform(pl.DataFrame([(0, *MM)], schema=("span_id", *ARGUMENTS), orient="row"))
    whole, bare = (priced(work, spans, ops, arguments=wanted)[1] for wanted in (True, False))
    assert set(whole.columns) - set(bare.columns) == {*ARGUMENTS, "annotation"}
    assert whole.select(bare.columns).equals(bare)


def test_the_outermost_operator_with_a_known_cost_stands_for_the_work():
    spans = spans_of(
        (HOST, 0, 100, "aten::linear", "operator"),
        (HOST, 10, 50, "aten::layer_norm", "operator"),
        (HOST, 20, 30, "aten::native_layer_norm", "operator"),
        (HOST, 70, 20, "aten::mm", "operator"),
        kernel(STREAM_7, 200, 10, "norm"),
        kernel(STREAM_7, 300, 30, "gemm"),
        parent_id=[None, 0, 1, 0, None, None],
        op_id=[None, None, None, None, 2, 3],
    )
    got = calls_of(spans, ops_of(_1=NORM, _2=NATIVE, _3=MM))
    assert got.select("name", "family", "device_ns", "flop").rows() == [
        ("aten::layer_norm", "norm", 10, 184.0), ("aten::mm", "gemm", 30, 128.0),
    ]  # fmt: skip


def test_without_a_known_cost_the_nearest_operator_with_a_formula_says_why():
    spans = spans_of(
        (HOST, 0, 100, "aten::layer_norm", "operator"),
        (HOST, 20, 30, "aten::cat", "operator"),
        (HOST, 110, 30, "aten::cat", "operator"),
        kernel(STREAM_7, 200, 10, "cat"),
        kernel(STREAM_7, 220, 20, "cat"),
        kernel(STREAM_7, 300, 30, "loose"),
        kernel(STREAM_8, 300, 5, "loose"),
        parent_id=[None, 0, None, None, None, None, None],
        op_id=[None, None, None, 1, 2, None, None],
    )
    got = calls_of(spans, ops_of(_1=("[[[2],[3]],[]]", '["TensorList","Scalar"]', '["","0"]')))
    assert got.select("name", "reason", "n_work", "device_ns").rows() == [
        (None, NO_OPERATOR, 1, 5), (None, NO_OPERATOR, 1, 30), ("aten::cat", "shapes were not recorded", 1, 10),
        ("aten::cat", "no formula for this operator", 1, 20),
    ]  # fmt: skip


def test_overlapping_work_of_one_call_counts_once():
    spans = spans_of(
        (HOST, 0, 100, "aten::mm", "operator"),
        kernel(STREAM_7, 200, 100, "a"),
        kernel(STREAM_8, 250, 100, "b"),
        op_id=[None, 0, 0],
    )
    got = calls_of(spans, ops_of(_0=MM))
    assert got.select("n_work", "device_ns", "device_id").rows() == [(2, 150, 0)]


def test_every_formula_gives_a_cost_or_a_reason():
    for name in FORMULAS:
        assert isinstance(cost_of(name, "[[2,3],[3,4]]", '["float","float"]', '["",""]'), (Cost, str))
        assert isinstance(cost_of(name, "[]", "[]", "[]"), str)
        assert isinstance(cost_of(name, None, None, None), str)


def test_reasons_are_words():
    assert cost_of("aten::mm", None, None, None) == "shapes were not recorded"
    assert cost_of("aten::mm", "[[2,3],[4,5]]", '["float","float"]', None) == "the factors' shapes do not fit"
    assert (
        cost("aten::mm", ((2, 3), "c10::Weird"), ((3, 4), "c10::Weird")) == "argument 0 is no tensor of a known shape"
    )


def test_equal_calls_are_worked_out_once():
    cost_of.cache_clear()
    first = cost("aten::mm", ((2, 3), "float"), ((3, 4), "float"))
    assert cost("aten::mm", ((2, 3), "float"), ((3, 4), "float")) is first


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_names_are_those_of_operators(name):
    assert "::" in name


ATTENTION = "vllm::unified_attention_with_output"
BF16 = "c10::BFloat16"
SHAPES = "[[6,8,16],[6,2,16],[6,2,16],[6,8,16],[],[],[],[0]]"
TYPES = f'["{BF16}","{BF16}","{BF16}","{BF16}","","","","{BF16}"]'
#: Two requests of 2 and 3 tokens, the second with 4 tokens in the cache before them; one that writes its eighth token.
PASS = "execute_6_context_2(sq5sk9sqsq13sqsk25)_generation_1(sq1sk8sqsq1sqsk8)"


def test_each_token_attends_to_those_before_it():
    cost = cost_of(ATTENTION, SHAPES, TYPES, None, PASS)
    pairs = (2 * 2 - 2 * 2 / 2) + (3 * 7 - 3 * 3 / 2) + 8
    assert cost.flop == 2 * 8 * (16 + 16) * pairs
    assert cost.nbytes == 2 * ((5 + 1) * 8 * 32 + (9 + 8) * 2 * 32)
    assert (cost.family, cost.precision, cost.matrix) == ("attention", "bf16", True)


def test_queries_and_cache_may_be_of_different_types_and_places():
    shapes = "[[1,8,16],[999],[1,8,16],[50,1,2,16],[50,1,2,16],[2]]"
    types = f'["{BF16}","unsigned char","{BF16}","c10::Float8_e4m3fn","c10::Float8_e4m3fn","int"]'
    one = "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk8sqsq1sqsk8)"
    cost = cost_of("sglang_profiler::attention_paged_attention_ragged", shapes, types, None, one)
    assert (cost.flop, cost.nbytes) == (4 * 8 * 16 * 8, 2 * 16 * (8 * 2 + 8 * 2 * 1))


@pytest.mark.parametrize("annotation", [None, "ProfilerStep#1", "execute_context_1(888_788544)_generation_0(0)"])
def test_without_lengths_nothing_is_guessed(annotation):
    assert cost_of(ATTENTION, SHAPES, TYPES, None, annotation) == "the lengths of its requests are not annotated"
    assert cost_of(ATTENTION, "[[6],[6]]", TYPES, None, PASS) == "its recorded arguments are not those that it takes"


def test_names():
    assert is_pass(PASS)
    assert not is_pass("execute_diffusion_1_256x256")
    assert is_fused("triton_red_fused_add_mean_0")
    assert not is_fused("triton_tem_fused_mm_1")


def test_kernels_of_inductor_move_each_tensor_at_least_once():
    args = ("[[8,4],[4],[8,4],[],[]]", f'["{BF16}","float","{BF16}","Scalar","Scalar"]', '["","","","8","4"]')
    cost = cost_of("triton_red_fused_add_mean_mul_pow_rsqrt_0", *args)
    assert (cost.family, cost.flop, cost.nbytes, cost.precision, cost.matrix) == (
        "norm",
        32,
        64 + 16 + 64,
        "bf16",
        False,
    )
    assert cost.written is None
    assert cost_of("triton_poi_fused_add_0", *args).family == "elementwise"
    assert cost_of("triton_poi_fused_add_0", "[[]]", '["Scalar"]', '["8"]') == "no tensors were recorded"


def test_the_range_around_a_call_tells_its_lengths():
    spans = spans_of(
        (HOST, 0, 100, PASS, "user_range"),
        (HOST, 10, 20, "gpt::layer", "operator"),
        (HOST, 12, 5, ATTENTION, "operator"),
        (HOST, 200, 5, ATTENTION, "operator"),
        kernel(STREAM_7, 300, 10, "attn"),
        kernel(STREAM_7, 400, 10, "attn"),
        parent_id=[None, 0, 1, None, None, None],
        op_id=[None, None, None, None, 2, 3],
    )
    rows = [(i, SHAPES, TYPES, None) for i in (2, 3)]
    schema = ("span_id", "input_shapes", "input_types", "concrete_inputs")
    ops = OPS.conform(pl.DataFrame(rows, schema=schema, orient="row"))
    work = device_work(spans, TRACKS_5, needed_by="test").with_columns(tensor_core=pl.lit(True))
    _, calls = priced(work, spans, ops)
    priced_call, unpriced_call = calls.sort("call_id").select("flop", "reason").rows()
    assert priced_call == (cost_of(ATTENTION, SHAPES, TYPES, None, PASS).flop, None)
    assert unpriced_call == (None, "the lengths of its requests are not annotated")
