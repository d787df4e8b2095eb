"""FLOP and bytes of matrix products, convolutions and attention, from the shapes of their operands.

Each tensor is counted as read or written once; cache misses add to that. A multiply and an add are two operations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from stepscope.analyses.costs.arguments import ELEMENT_BYTES, PRECISION, Arguments, Shape, Unclear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Cost(msgspec.Struct, frozen=True):
    """What one call has to compute and move at least. `matrix`: matrix units can compute it.

    For memory-bound work, `written` is how many of the bytes are written, and `largest` the bytes of the largest tensor
    that is read.
    """

    family: str
    flop: int
    nbytes: float
    precision: str | None
    matrix: bool
    written: float | None = None
    largest: float | None = None


def _gemm(
    args: Arguments, a: int, b: int, *, bias: int | None = None, transposed: bool = False, out: str | None = None
) -> Cost:
    """A (…, M, K) times B (…, K, N), or (N, K) if transposed, plus an optional bias."""
    left, right = args.shape(a), args.shape(b)
    if len(left) < 2 or len(right) < 2:
        raise Unclear("a factor has fewer than two dimensions")
    (m, k), (k2, n) = left[-2:], right[-2:] if not transposed else right[:-3:-1]
    batch = math.prod(left[:-2])
    if k != k2 or batch != math.prod(right[:-2]):
        raise Unclear("the factors' shapes do not fit")
    with_bias = bias is not None and args.has(bias)
    dtype = args.dtype(a)
    written = batch * m * n * ELEMENT_BYTES[out or dtype]
    flop = batch * (2 * m * n * k + (m * n if with_bias else 0))
    moved = args.nbytes(a) + args.nbytes(b) + written + (args.nbytes(bias) if with_bias and bias is not None else 0)
    return Cost("gemm", flop, moved, PRECISION.get(dtype), matrix=True)


def _linear(a: int, b: int, bias: int | None = None, *, transposed: bool = False) -> Callable[[Arguments], Cost]:
    return lambda args: _gemm(args, a, b, bias=bias, transposed=transposed)


def _scaled_mm(args: Arguments) -> Cost:
    """aten::_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype, …)."""
    return _gemm(args, 0, 1, bias=4, out=args.wanted_dtype(6, args.dtype(0)))


def _vector(matrix: int, vector: int, added: int | None = None) -> Callable[[Arguments], Cost]:
    """A matrix (M, K) times a vector (K), plus an optional vector."""

    def cost(args: Arguments) -> Cost:
        m, k = args.shape(matrix, 2)
        more = added is not None and args.has(added)
        moved = args.nbytes(matrix) + args.nbytes(vector) + m * args.element(matrix) * (1 + more)
        return Cost("gemm", 2 * m * k + m * more, moved, PRECISION.get(args.dtype(matrix)), matrix=False)

    return cost


def _grouped_mm(args: Arguments) -> Cost:
    """Rows (T, K) in groups; each group is multiplied by its own (K, N) of (G, K, N)."""
    (rows, k), (groups, k2, n) = args.shape(0, 2), args.shape(1, 3)
    if k != k2:
        raise Unclear("the factors' shapes do not fit")
    moved = (rows * k + groups * k * n) * args.element(0) + rows * n * args.element(0)
    return Cost("gemm", 2 * rows * k * n, moved, PRECISION.get(args.dtype(0)), matrix=True)


def _each(values: list[int], n: int) -> list[int]:
    """One value per dimension, of n."""
    if len(values) not in (1, n):
        raise Unclear("strides, paddings and dilations do not fit the input")
    return values * n if len(values) == 1 else values


def _conv_output(args: Arguments, x: Shape, w: Shape, at: int) -> Shape:
    """The output shape of a convolution; stride, padding and dilation are the arguments from `at` on."""
    n = len(x) - 2
    if n < 1 or len(w) != len(x):
        raise Unclear("input and weight do not fit")
    stride, padding, dilation = (_each(args.numbers(i), n) for i in (at, at + 1, at + 2))
    extra = _each(args.numbers(at + 4) or [0], n)
    groups = (args.numbers(at + 5) or [1])[0]
    sizes = zip(x[2:], w[2:], stride, padding, dilation, extra, strict=True)
    if args.flag(at + 3):
        out = tuple((i - 1) * s - 2 * p + d * (k - 1) + o + 1 for i, k, s, p, d, o in sizes)
        return x[0], w[1] * groups, *out
    return x[0], w[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d, _ in sizes)


def _convolution(args: Arguments) -> Cost:
    """aten::convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    x, w = args.shape(0), args.shape(1)
    out = _conv_output(args, x, w, 3)
    bias = args.has(2)
    over = math.prod(x) if args.flag(6) else math.prod(out)
    flop = over * 2 * math.prod(w[1:]) + (math.prod(out) if bias else 0)
    moved = args.nbytes(0) + args.nbytes(1) + math.prod(out) * args.element(0) + (args.nbytes(2) if bias else 0)
    return Cost("convolution", flop, moved, PRECISION.get(args.dtype(0)), matrix=True)


def _convolution_backward(args: Arguments) -> Cost:
    """aten::convolution_backward(dout, x, w, bias_sizes, stride, padding, dilation, transposed, …, output_mask).

    Each requested gradient is a convolution of its own, which reads two tensors.
    """
    dout, x, w = args.shape(0), args.shape(1), args.shape(2)
    one = (math.prod(x) if args.flag(7) else math.prod(dout)) * 2 * math.prod(w[1:])
    for_input, for_weight, for_bias = args.flags(10)
    flop = one * (for_input + for_weight) + (math.prod(dout) if for_bias else 0)
    moved = (for_input + for_weight) * sum(args.nbytes(i) for i in range(3))
    moved += for_bias * dout[1] * args.element(0)
    return Cost("convolution", flop, moved, PRECISION.get(args.dtype(1)), matrix=True)


class _Heads(msgspec.Struct, frozen=True):
    """Sizes of an attention: batch, query and key heads, lengths, depths of keys and values."""

    batch: int
    q: int
    kv: int
    n_q: int
    n_kv: int
    d_qk: int
    d_v: int

    def pairs(self, *, causal: bool) -> float:
        """Query-key pairs over all heads. A causal mask halves them if both lengths are equal."""
        whole = self.batch * self.q * self.n_q * self.n_kv
        if not causal:
            return whole
        if self.n_q == self.n_kv:
            return whole / 2
        short = min(self.n_q, self.n_kv)  # the mask begins at the upper left corner
        return self.batch * self.q * (short * (short + 1) / 2 + (self.n_q - short) * self.n_kv)

    def elements(self) -> tuple[int, int, int, int]:
        """Elements of queries, keys, values and output."""
        rows, columns = self.batch * self.q * self.n_q, self.batch * self.kv * self.n_kv
        return rows * self.d_qk, columns * self.d_qk, columns * self.d_v, rows * self.d_v


def _heads(args: Arguments, first: int, *, heads_first: bool) -> _Heads:
    q, k, v = (args.shape(first + i, 4) for i in range(3))
    if not heads_first:
        q, k, v = ((s[0], s[2], s[1], s[3]) for s in (q, k, v))
    return _Heads(q[0], q[1], k[1], q[2], k[2], q[3], v[3])


def _attention(first: int, causal_at: int, *, heads_first: bool = True) -> Callable[[Arguments], Cost]:
    """Softmax(Q Kᵀ) V with Q, K, V from position `first` on; the softmax itself is not counted."""

    def cost(args: Arguments) -> Cost:
        heads = _heads(args, first, heads_first=heads_first)
        flop = 2 * heads.pairs(causal=args.flag(causal_at)) * (heads.d_qk + heads.d_v)
        moved = sum(heads.elements()) * args.element(first)
        return Cost("attention", round(flop), moved, PRECISION.get(args.dtype(first)), matrix=True)

    return cost


def _attention_backward(causal_at: int, *, heads_first: bool = True) -> Callable[[Arguments], Cost]:
    """Five products: the scores again, then the gradients of V, of the scores, of Q and of K."""

    def cost(args: Arguments) -> Cost:
        heads = _heads(args, 1, heads_first=heads_first)
        flop = 2 * heads.pairs(causal=args.flag(causal_at)) * (3 * heads.d_qk + 2 * heads.d_v)
        shared = heads.q // max(heads.kv, 1) - 1  # query heads that share a key head: their gradients are added up
        flop += heads.batch * heads.n_kv * (heads.d_qk + heads.d_v) * heads.kv * shared
        q, k, v, out = heads.elements()
        moved = (2 * q + 2 * k + 2 * v + out) * args.element(1)
        return Cost("attention", round(flop), moved, PRECISION.get(args.dtype(1)), matrix=True)

    return cost


MATRIX: Mapping[str, Callable[[Arguments], Cost]] = {
    "aten::mm": _linear(0, 1),
    "aten::bmm": _linear(0, 1),
    "aten::addmm": _linear(1, 2, 0),
    "aten::_addmm_activation": _linear(1, 2, 0),
    "aten::baddbmm": _linear(1, 2, 0),
    "aten::mv": _vector(0, 1),
    "aten::addmv": _vector(1, 2, 0),
    "aten::_int_mm": lambda args: _gemm(args, 0, 1, out="int"),
    "aten::_scaled_mm": _scaled_mm,
    "aten::_grouped_mm": _grouped_mm,
    "aiter::gemm_a16w16": _linear(0, 1, 2, transposed=True),
    "vllm::rocm_unquantized_gemm": _linear(0, 1, 2, transposed=True),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward(11),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward(11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward(14),
    "flash_attn::_flash_attn_forward": _attention(0, 5, heads_first=False),
}
