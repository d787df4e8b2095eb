from __future__ import annotations

import pytest
from operator_calls import cost

BF16, F32 = "c10::BFloat16", "float"


def test_products_of_matrices():
    result = cost("aten::mm", ((8, 4), BF16), ((4, 2), BF16))
    assert (result.family, result.flop, result.nbytes, result.precision, result.matrix) == (
        "gemm", 2 * 8 * 4 * 2, 2 * (32 + 8 + 16), "bf16", True,
    )  # fmt: skip
    biased = cost("aten::addmm", ((2,), BF16), ((8, 4), BF16), ((4, 2), BF16), 1, 1)
    assert (biased.flop, biased.nbytes) == (result.flop + 16, result.nbytes + 4)
    batched = cost("aten::bmm", ((3, 8, 4), F32), ((3, 4, 2), F32))
    assert (batched.flop, batched.nbytes) == (3 * 128, 3 * 4 * 56)
    linear = cost("vllm::rocm_unquantized_gemm", ((8, 4), BF16), ((2, 4), BF16), None)
    assert (linear.flop, linear.nbytes) == (result.flop, result.nbytes)
    grouped = cost("aten::_grouped_mm", ((8, 4), BF16), ((3, 4, 2), BF16))
    assert (grouped.flop, grouped.nbytes) == (128, 2 * (32 + 24 + 16))


def test_what_is_written_may_be_of_another_type():
    fp8 = "c10::Float8_e4m3fn"
    scaled = cost("aten::_scaled_mm", ((8, 4), fp8), ((4, 2), fp8), ((1,), F32), ((1,), F32), None, None, 15, False)
    assert (scaled.precision, scaled.nbytes) == ("fp8", 32 + 8 + 2 * 16)
    assert cost("aten::_int_mm", ((8, 4), "signed char"), ((4, 2), "signed char")).nbytes == 40 + 4 * 16


def test_matrix_times_vector():
    result = cost("aten::mv", ((8, 4), F32), ((4,), F32))
    assert (result.flop, result.nbytes, result.matrix) == (64, 4 * (32 + 4 + 8), False)
    assert cost("aten::addmv", ((8,), F32), ((8, 4), F32), ((4,), F32)).flop == 72


CONV = (((2, 3, 8, 8), BF16), ((4, 3, 3, 3), BF16))


def test_convolutions():
    result = cost("aten::convolution", *CONV, ((4,), BF16), "[1, 1]", "[1, 1]", "[1, 1]", False, "[0, 0]", 1)
    out = 2 * 4 * 8 * 8
    assert (result.flop, result.nbytes) == (out * 2 * 27 + out, 2 * (384 + 108 + out + 4))
    strided = cost("aten::convolution", *CONV, None, "[2]", "[1]", "[1]", False, "[0]", 1)
    assert strided.flop == 2 * 4 * 4 * 4 * 2 * 27


def test_transposed_convolutions_work_on_each_input():
    weight = ((3, 2, 3, 3), BF16)
    result = cost("aten::convolution", CONV[0], weight, None, "[2, 2]", "[1, 1]", "[1, 1]", True, "[1, 1]", 2)
    assert result.flop == 2 * 3 * 64 * 2 * 2 * 9
    assert result.nbytes == 2 * (384 + 54 + 2 * 4 * 16 * 16)


@pytest.mark.parametrize(("mask", "parts"), [("[True, True, False]", 2), ("[False, True, False]", 1)])
def test_only_gradients_that_are_wanted_count(mask, parts):
    dout = ((2, 4, 8, 8), BF16)
    result = cost(
        "aten::convolution_backward", dout, *CONV, "[0]", "[1, 1]", "[1, 1]", "[1, 1]", False, "[0, 0]", 1, mask
    )
    assert result.flop == parts * 512 * 2 * 27
    assert result.nbytes == parts * 2 * (512 + 384 + 108)


def heads(n_q, n_kv, q=4, kv=4, depth=8):
    return ((2, q, n_q, depth), BF16), ((2, kv, n_kv, depth), BF16), ((2, kv, n_kv, depth), BF16)


def test_attention():
    name = "aten::_scaled_dot_product_flash_attention"
    result = cost(name, *heads(16, 16), 0.0, False, False, 0.125)
    assert (result.family, result.flop) == ("attention", 2 * 2 * 4 * 16 * 16 * 16)
    assert result.nbytes == 2 * 4 * 2 * 4 * 16 * 8
    assert cost(name, *heads(16, 16), 0.0, True, False, 0.125).flop == result.flop // 2
    assert cost(name, *heads(16, 32), 0.0, True, False, 0.125).flop == 2 * 8 * (16 * 17 // 2) * 16
    efficient = cost("aten::_scaled_dot_product_efficient_attention", *heads(16, 16), None, True, 0.0, False)
    assert efficient.flop == result.flop
    turned = [((s[0], s[2], s[1], s[3]), t) for s, t in heads(16, 16)]
    assert cost("flash_attn::_flash_attn_forward", *turned, 0.0, 0.1, False).flop == result.flop


def test_the_gradient_of_attention_is_five_products():
    rest = (((2, 4, 16, 8), BF16), ((2, 4, 16), F32), None, None, 16, 16, 0.0, False)
    result = cost("aten::_scaled_dot_product_flash_attention_backward", ((2, 4, 16, 8), BF16), *heads(16, 16), *rest)
    assert result.flop == 2 * 2 * 4 * 256 * 5 * 8
    assert result.nbytes == 2 * 7 * 2 * 4 * 16 * 8
