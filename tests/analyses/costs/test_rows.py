from __future__ import annotations

import pytest
from operator_calls import cost

BF16, F32, I64 = "c10::BFloat16", "float", "long int"


@pytest.mark.parametrize(
    ("name", "arguments", "flop", "nbytes"),
    [
        ("aten::silu", [((8, 4), BF16)], 32, 128),
        ("aten::relu_", [((8, 4), F32)], 32, 256),
        ("aten::copy_", [((8, 4), BF16), ((8, 4), F32), False], 32, 192),
        ("aten::fill_", [((8, 4), BF16), 0], 0, 64),
        ("aten::pow", [((8,), F32), 2], 8, 64),
        ("aten::pow", [((8,), F32), ((8,), F32)], 8, 96),
        ("aten::add", [((8, 4), BF16), ((8, 4), BF16), 1], 32, 192),
        ("aten::add", [((8, 4), BF16), ((4,), F32), 1], 32, 64 + 16 + 128),
        ("aten::add_", [((8, 4), BF16), ((4,), F32), 1], 32, 64 + 16 + 64),
        ("aten::mul", [((8, 4), BF16), ((), "double")], 32, 64 + 8 + 64),
        ("aten::div", [((8, 4), BF16), 49], 32, 64 + 4 + 64),
        ("aten::mul", [((), BF16), ((8, 4), F32)], 32, 2 + 128 + 128),
        ("aten::eq", [((8, 4), I64), 0], 32, 256 + 4 + 32),
        ("aten::mean", [((8, 4), F32), "[-1]", True, None], 32, 128 + 32),
        ("aten::sum", [((8, 4), F32), "[]", False, None], 32, 128 + 4),
        ("aten::sum", [((8, 4), F32), None], 32, 128 + 4),
        ("aten::max", [((8, 4), F32), -1, False], 32, 128 + 32),
        ("aten::min", [((8,), F32), ((8,), F32)], 8, 96),
        ("aten::cumsum", [((8,), F32), 0, None], 8, 64),
        ("aten::_softmax", [((8, 4), F32), -1, False], 96, 256),
        ("aten::_log_softmax_backward_data", [((8, 4), F32), ((8, 4), F32), -1], 192, 512),
        ("aten::upsample_nearest1d", [((1, 2, 8), F32), "[16]", None], 32, 64 + 128),
        ("sgl_kernel::silu_and_mul", [((8, 4), BF16), ((8, 8), BF16)], 160, 64 + 128),
        ("sgl_kernel::rotary_embedding", [((8,), I64), ((8, 4), BF16), ((8, 2), BF16), 2], 144, 192),
        ("sglang::store_cache", [((8, 4), BF16), ((8, 4), BF16)], 0, 256),
    ],
)
def test_elements_and_rows(name, arguments, flop, nbytes):
    result = cost(name, *arguments)
    assert (result.flop, result.nbytes, result.matrix) == (flop, nbytes, False)


def test_shapes_that_do_not_fit_are_refused():
    assert cost("aten::add", ((8, 4), F32), ((3,), F32)) == "the operands' shapes do not fit"
    assert cost("aten::upsample_nearest1d", ((1, 2, 8), F32), "[]") == "the size of the output is not recorded"


N, C = 2 * 6 * 4, 4
X = ((2, 6, 4), F32)
W = ((4,), F32)


def test_norms_count_the_weights_that_are_there():
    full = cost("aten::layer_norm", X, "[4]", W, W, 1e-5, True)
    assert (full.family, full.flop, full.nbytes) == ("norm", 5 * N + 6 * C, 8 * N + 4 * C * 6)
    assert cost("aten::layer_norm", X, "[4]", None, None, 1e-5, True).nbytes == full.nbytes - 4 * C * 2
    native = cost("aten::native_layer_norm", X, "[4]", W, W, 1e-5)
    assert native == full


def test_batch_norm_in_inference_is_given_its_statistics():
    six = ((6,), F32)
    training = cost("aten::batch_norm", X, six, six, six, six, True, 0.1, 1e-5, True)
    assert (training.flop, training.nbytes) == (5 * N + 36, 8 * N + 4 * 6 * 6)
    inference = cost("aten::batch_norm", X, six, six, six, six, False, 0.1, 1e-5, True)
    assert (inference.flop, inference.nbytes) == (2 * N + 36, 8 * N + 4 * 6 * 4)
    grouped = cost("aten::group_norm", X, 3, six, six, 1e-5, True)
    assert (grouped.flop, grouped.nbytes) == (training.flop, training.nbytes)


def test_root_mean_square_norms():
    plain = cost("aten::_fused_rms_norm", X, "[4]", W, None)
    assert (plain.flop, plain.nbytes) == (12 * 10 + 2 * N, 8 * N + 16)
    assert cost("aten::_fused_rms_norm", X, "[4]", None, None).flop == 12 * 10 + N
    out = ((12, 4), F32)
    added = cost("aiter::add_rmsnorm", out, out, out, out, W, 1e-6)
    assert (added.flop, added.nbytes) == (plain.flop + N, plain.nbytes + 8 * N)


def test_gradients_of_norms():
    mean = ((2, 6, 1), F32)
    full = cost("aten::native_layer_norm_backward", X, X, "[4]", mean, mean, W, W, "[True, True, True]")
    assert (full.flop, full.nbytes) == (9 * N, 12 * N + 4 * C * 4)
    bare = cost("aten::native_layer_norm_backward", X, X, "[4]", mean, mean, None, None, "[True, False, False]")
    assert bare.nbytes == 12 * N + 4 * C
    rms = cost("aten::_fused_rms_norm_backward", X, X, "[4]", mean, W, "[True, True]")
    assert (rms.flop, rms.nbytes) == (10 * N, 12 * N + 8 * C)


@pytest.mark.parametrize(
    ("name", "arguments", "written", "largest"),
    [
        ("aten::silu", [((8, 4), BF16)], 64, 64),
        ("aten::copy_", [((8, 4), BF16), ((8, 4), F32), False], 64, 128),
        ("aten::copy_", [((8, 4), F32), ((4,), F32), False], 128, 16),
        ("aten::fill_", [((8, 4), BF16), 0], 64, 0),
        ("aten::add", [((8, 4), BF16), ((4,), F32), 1], 128, 64),
        ("aten::sum", [((8, 4), F32), "[-1]", False, None], 32, 128),
        ("aten::_softmax_backward_data", [((8, 4), F32), ((8, 4), F32), -1, 6], 128, 128),
        ("aten::native_layer_norm", [((8, 4), F32), "[4]", ((4,), F32), ((4,), F32), 1e-5], 128, 128),
        ("_C::fused_add_rms_norm", [((8, 4), BF16), ((8, 4), BF16), ((4,), BF16), 1e-6], 128, 64),
        ("sgl_kernel::silu_and_mul", [((8, 4), BF16), ((8, 8), BF16)], 64, 128),
        ("sgl_kernel::rotary_embedding", [((8,), I64), ((8, 4), BF16), ((8, 2), BF16), 2], 96, 64),
    ],
)
def test_of_rows_and_elements_what_is_written_and_the_largest_that_is_read_are_known(name, arguments, written, largest):
    result = cost(name, *arguments)
    assert (result.written, result.largest) == (written, largest)


def test_of_products_they_are_not_told():
    result = cost("aten::mm", ((8, 4), F32), ((4, 2), F32))
    assert result.written is result.largest is None
