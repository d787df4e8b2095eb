from __future__ import annotations

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.common.device_work import device_work
from stepscope.analyses.costs.cost_engines import is_fused, is_pass
from stepscope.analyses.costs.costs import cost_of
from stepscope.analyses.costs.op_costs import priced
from stepscope.core.schema import OPS

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
    assert cost_of(ATTENTION, SHAPES, TYPES, None, annotation) == "how long its requests are is not annotated"
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
    told, untold = calls.sort("call_id").select("flop", "reason").rows()
    assert told == (cost_of(ATTENTION, SHAPES, TYPES, None, PASS).flop, None)
    assert untold == (None, "how long its requests are is not annotated")
