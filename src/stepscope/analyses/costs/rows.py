"""FLOP and bytes of operators that work on elements or rows: elementwise, reductions, norms, softmax, rotations.

Each tensor is counted as read or written once. An elementwise function counts as one operation per element.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stepscope.analyses.costs.arguments import ELEMENT_BYTES, PRECISION, Arguments, Shape, Unclear
from stepscope.analyses.costs.matrix import Cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_UNARY = (
    "abs acos asin atan bernoulli bitwise_not ceil clamp clamp_max clamp_min cos cosh elu erf erfinv exp expm1 floor "
    "frac gelu hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 logical_not logit mish neg reciprocal "
    "relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinh softplus sqrt square tan tanh threshold trunc"
)
_BINARY = (
    "add atan2 bitwise_and bitwise_or bitwise_xor div dropout_backward elu_backward floor_divide fmod gelu_backward "
    "hardswish_backward hardtanh_backward leaky_relu_backward logical_and logical_or maximum minimum mul "
    "native_dropout_backward prelu remainder rsub sigmoid_backward silu_backward softplus_backward sub tanh_backward "
    "threshold_backward"
)
_COMPARISONS = "eq ge gt le lt ne"
_REDUCTIONS = "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean min norm prod std sum var"
_SCANS = "cumprod cumsum logcumsumexp"


def _cost(family: str, flop: int, dtype: str, *, read: float, written: float) -> Cost:
    return Cost(family, flop, read + written, PRECISION.get(dtype), matrix=False, written=written)


def _copy(args: Arguments) -> Cost:
    """aten::copy_(target, source): one operation per element, for a possible conversion of the type."""
    n = args.count(0)
    return _cost("elementwise", n, args.dtype(0), read=args.nbytes(1), written=n * args.element(0))


def _unary(args: Arguments) -> Cost:
    n = args.count(0)
    return _cost("elementwise", n, args.dtype(0), read=args.nbytes(0), written=args.nbytes(0))


def _fill(args: Arguments) -> Cost:
    return _cost("elementwise", 0, args.dtype(0), read=0, written=args.nbytes(0))


def _binary(*, in_place: bool = False, out: str | None = None) -> Callable[[Arguments], Cost]:
    """Two operands, which may be broadcast; one may be a plain number."""

    def cost(args: Arguments) -> Cost:
        first, second = args.shape(0), args.shape(1) if args.has(1) else ()
        n = math.prod(_broadcast(first, second))
        dtype = args.dtype(0)
        if out is not None:
            dtype = out
        elif not in_place and args.has(1) and (not first or (second and args.element(1) > args.element(0))):
            dtype = args.dtype(1)
        read = args.nbytes(0) + args.nbytes(1)
        return _cost("elementwise", n, args.dtype(0), read=read, written=n * ELEMENT_BYTES[dtype])

    return cost


def _broadcast(a: Shape, b: Shape) -> Shape:
    n = max(len(a), len(b))
    pairs = zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True)
    sizes = tuple(y if x == 1 else x for x, y in pairs)
    if any(s not in (1, t) for shape in (a, b) for s, t in zip(shape[::-1], sizes[::-1], strict=False)):
        raise Unclear("the operands' shapes do not fit")
    return sizes


def _pow(args: Arguments) -> Cost:
    """A power: binary if the exponent is a tensor, unary if it is a number."""
    return _binary()(args) if args.has(1) else _unary(args)


def _upsample(args: Arguments) -> Cost:
    """aten::upsample_*(x, output_size, …): one operation per output element."""
    x = args.shape(0)
    out = math.prod(x[:2]) * math.prod(args.numbers(1))
    if not args.numbers(1):
        raise Unclear("the size of the output is not recorded")
    return _cost("elementwise", out, args.dtype(0), read=args.nbytes(0), written=out * args.element(0))


def _gated(args: Arguments) -> Cost:
    """silu_and_mul(out, x): silu (4 operations) of one half of the input, times the other half."""
    return _cost("elementwise", 5 * args.count(0), args.dtype(1), read=args.nbytes(1), written=args.nbytes(0))


def _reduction(args: Arguments) -> Cost:
    """Over the named dimensions, or over all."""
    shape = args.shape(0)
    at = next((i for i, kind in enumerate(args.types) if kind in ("ScalarList", "Scalar") and i > 0), None)
    lists = [i for i, kind in enumerate(args.types) if kind == "ScalarList"]
    named = args.numbers(lists[0]) if lists else []
    if not lists and at is not None and args.value(at).lstrip("-").isdecimal():
        named = args.numbers(at)
    if args.has(1) and not named:  # min and max also take two tensors
        return _binary()(args)
    dims = {d % len(shape) for d in named} if shape else set()
    out = math.prod(n for i, n in enumerate(shape) if i not in dims) if dims else 1
    return _cost("reduction", math.prod(shape), args.dtype(0), read=args.nbytes(0), written=out * args.element(0))


def _scan(args: Arguments) -> Cost:
    return _cost("reduction", args.count(0), args.dtype(0), read=args.nbytes(0), written=args.nbytes(0))


def _softmax(args: Arguments) -> Cost:
    """An exponential, an addition and a division per element."""
    return _cost("softmax", 3 * args.count(0), args.dtype(0), read=args.nbytes(0), written=args.nbytes(0))


def _softmax_backward(args: Arguments) -> Cost:
    return _cost("softmax", 6 * args.count(0), args.dtype(0), read=3 * args.nbytes(0), written=args.nbytes(0))


def _norm(args: Arguments, channels: int, *, weight: int, bias: int, statistics: bool) -> Cost:
    """Batch, layer, group and instance norm. With `statistics` the mean and variance are computed too."""
    n, element = args.count(0), args.element(0)
    vectors = 2 + args.has(weight) + args.has(bias) + (2 if statistics else 0)
    flop = 2 * n + 6 * channels + (3 * n if statistics else 0)
    return _cost("norm", flop, args.dtype(0), read=(n + channels * vectors) * element, written=n * element)


def _layer_norm(args: Arguments) -> Cost:
    """aten::layer_norm(x, normalized_shape, weight, bias, …)."""
    return _norm(args, math.prod(args.numbers(1)), weight=2, bias=3, statistics=True)


def _batch_norm(training_at: int) -> Callable[[Arguments], Cost]:
    """aten::batch_norm(x, weight, bias, mean, variance, training, …)."""

    def cost(args: Arguments) -> Cost:
        shape = args.shape(0)
        if len(shape) < 2:
            raise Unclear("the input has fewer than two dimensions")
        return _norm(args, shape[1], weight=1, bias=2, statistics=args.flag(training_at))

    return cost


def _group_norm(weight: int) -> Callable[[Arguments], Cost]:
    """aten::group_norm(x, groups, weight, bias, …); aten::native_group_norm(x, weight, bias, …)."""
    return lambda args: _norm(args, args.shape(0)[1], weight=weight, bias=weight + 1, statistics=True)


def _rms_norm(x: int, weight: int, *, residual: bool = False, named: int | None = None) -> Callable[[Arguments], Cost]:
    """Rows divided by their root mean square, times a weight; a `residual` is added to the input first."""

    def cost(args: Arguments) -> Cost:
        n = args.count(x)
        channels = math.prod(args.numbers(named)) if named is not None else args.count(weight)
        rows = n // max(channels, 1)
        weighted = args.has(weight)
        flop = rows * (2 * channels + 2) + n * (1 + weighted + residual)
        both = (2 if residual else 1) * args.nbytes(x)
        read = both + (channels * args.element(x) if weighted else 0)
        return _cost("norm", flop, args.dtype(x), read=read, written=both)

    return cost


def _norm_backward(*, channels: int, weight: int, mask: int) -> Callable[[Arguments], Cost]:
    """The gradient of a norm's input, and of its weight and bias where requested.

    `channels` is the position of the normalised shape (a list), or else of the input, whose second dimension is the
    number of channels. One vector of statistics is read per channel.
    """

    def cost(args: Arguments) -> Cost:
        n, element = args.count(0), args.element(0)
        named = args.numbers(channels) if args.types[channels] == "ScalarList" else []
        vector = math.prod(named) if named else args.shape(channels)[1]
        wanted = args.flags(mask) if mask < len(args.values) and args.value(mask) else [True, True, True]
        weighted = args.has(weight)
        read = (2 * n + vector * (1 + weighted)) * element
        written = (n + vector * weighted * sum(wanted[1:])) * element
        return _cost("norm", 9 * n, args.dtype(0), read=read, written=written)

    return cost


def _rms_norm_backward(args: Arguments) -> Cost:
    """aten::_fused_rms_norm_backward(dout, x, normalized_shape, rstd, weight, output_mask)."""
    n, element = args.count(1), args.element(1)
    channels = math.prod(args.numbers(2))
    for_input, for_weight = args.flags(5)
    weighted = args.has(4)
    flop = n + n * weighted + 6 * n * for_input
    flop += for_weight * weighted * (n + (n if n > channels else 0))
    return _cost("norm", flop, args.dtype(1), read=(2 * n + channels) * element, written=(n + channels) * element)


def _rotary(args: Arguments) -> Cost:
    """rotary_embedding(positions, query, key, …): two multiplications and one addition per element."""
    n = args.count(1) + (args.count(2) if args.has(2) else 0)
    return _cost("rope", 3 * n, args.dtype(1), read=n * args.element(1), written=n * args.element(1))


def _store_cache(args: Arguments) -> Cost:
    """store_cache(key, value, …), reshape_and_cache(key, value, …): both tensors are read and written."""
    both = args.nbytes(0) + args.nbytes(1)
    return _cost("copy", 0, args.dtype(0), read=both, written=both)


def _all(names: str, formula: Callable[[Arguments], Cost]) -> Iterable[tuple[str, Callable[[Arguments], Cost]]]:
    """The formula for each operator and for its in-place variant."""
    for name in names.split():
        yield f"aten::{name}", formula
        yield f"aten::{name}_", formula


ROWS: Mapping[str, Callable[[Arguments], Cost]] = {
    **dict(_all(_UNARY, _unary)),
    **{f"aten::{word}": _binary() for word in _BINARY.split()},
    **{f"aten::{word}_": _binary(in_place=True) for word in _BINARY.split()},
    **{f"aten::{word}": _binary(out="bool") for word in _COMPARISONS.split()},
    **{f"aten::{word}_": _binary(in_place=True) for word in _COMPARISONS.split()},
    **{f"aten::{word}": _reduction for word in _REDUCTIONS.split()},
    **{f"aten::{word}": _scan for word in _SCANS.split()},
    "aten::linalg_norm": _reduction,
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::pow": _pow,
    "aten::pow_": _pow,
    "aten::upsample_nearest1d": _upsample,
    "aten::upsample_nearest2d": _upsample,
    "aten::upsample_nearest3d": _upsample,
    "aten::upsample_bilinear2d": _upsample,
    "sgl_kernel::silu_and_mul": _gated,
    "_C::silu_and_mul": _gated,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::layer_norm": _layer_norm,
    "aten::native_layer_norm": _layer_norm,
    "aten::batch_norm": _batch_norm(5),
    "aten::native_batch_norm": _batch_norm(5),
    "aten::miopen_batch_norm": _batch_norm(5),
    "aten::cudnn_batch_norm": _batch_norm(5),
    "aten::instance_norm": _batch_norm(5),
    "aten::group_norm": _group_norm(2),
    "aten::native_group_norm": _group_norm(1),
    "aiter::_groupnorm_run": _group_norm(2),
    "aten::_fused_rms_norm": _rms_norm(0, 2, named=1),
    "_C::rms_norm": _rms_norm(1, 2),
    "_C::fused_add_rms_norm": _rms_norm(0, 2, residual=True),
    "aiter::rms_norm": _rms_norm(0, 1),
    "aiter::rmsnorm": _rms_norm(1, 2),
    "aiter::add_rmsnorm": _rms_norm(1, 4, residual=True),
    "aiter::rmsnorm2d_fwd_with_add_ck": _rms_norm(1, 4, residual=True),
    "aten::native_layer_norm_backward": _norm_backward(channels=2, weight=5, mask=7),
    "aten::native_batch_norm_backward": _norm_backward(channels=1, weight=2, mask=9),
    "aten::miopen_batch_norm_backward": _norm_backward(channels=0, weight=2, mask=99),
    "aten::cudnn_batch_norm_backward": _norm_backward(channels=0, weight=3, mask=99),
    "aten::native_group_norm_backward": _norm_backward(channels=1, weight=4, mask=9),
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "sgl_kernel::rotary_embedding": _rotary,
    "_C::rotary_embedding": _rotary,
    "sglang::store_cache": _store_cache,
    "_C_cache_ops::reshape_and_cache": _store_cache,
    "_C_cache_ops::reshape_and_cache_flash": _store_cache,
}
