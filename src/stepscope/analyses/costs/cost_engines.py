"""FLOP and bytes of what engines and compilers run: attention over a paged cache, kernels that Inductor wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.analyses.costs.cost_arguments import PRECISION, Arguments, Unclear
from stepscope.analyses.costs.cost_matrix import Cost
from stepscope.core.names import kernel_class

#: How an engine annotates a pass: numbers of requests, and over those that are read in (context) and those that go on
#: writing (generation) the sums of query lengths, of key lengths, of their squares and products.
_SUMS = r"\d+\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_PASS = re.compile(rf"^execute_\w*?context_{_SUMS}_generation_{_SUMS}")
#: Operators whose cost follows from such an annotation around them, and where their queries and keys stand.
PAGED = {"vllm::unified_attention_with_output": (0, 1), "sglang_profiler::attention_paged_attention_ragged": (2, 3)}
_INDUCTOR = re.compile(r"^triton_(?:poi|red|per)_fused_")


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Sums over the requests of a pass, of one of its two kinds."""

    q: int
    kv: int
    q_q: int
    q_kv: int


def is_pass(name: str) -> bool:
    """Whether a range of that name says how long the requests of a pass are."""
    return _PASS.match(name) is not None


def is_fused(name: str) -> bool:
    """Whether Inductor wrote a kernel of that name, which works on elements or rows."""
    return _INDUCTOR.match(name) is not None


def paged_attention(args: Arguments, q_at: int, k_at: int, annotation: str | None) -> Cost:
    """Attention of the tokens of a pass to all tokens before them, which a cache holds in pages.

    Each token that is read in sees those before it, itself half; one that is written sees all. Raises Unclear without
    an annotation that tells the lengths.
    """
    match = _PASS.match(annotation or "")
    if match is None:
        raise Unclear("how long its requests are is not annotated")
    sums = [int(n) for n in match.groups()]
    context, generation = _Lengths(*sums[:4]), _Lengths(*sums[4:])
    heads, depth = args.shape(q_at)[-2:]
    kv_heads = args.shape(k_at)[-2]
    pairs = context.q_kv - context.q_q / 2 + generation.q_kv
    flop = 4 * heads * depth * pairs
    moved = 2 * depth * (context.q + generation.q) * heads * args.element(q_at)
    moved += 2 * depth * (context.kv + generation.kv) * kv_heads * args.element(k_at)
    return Cost("attention", round(flop), moved, PRECISION.get(args.dtype(q_at)), matrix=True)


def fused(name: str, args: Arguments) -> Cost:
    """At least each tensor is moved once, and one operation done for each element of the largest.

    What is both read and written is not told apart, and counts once.
    """
    tensors = [at for at in range(len(args.shapes)) if args.has(at)]
    if not tensors:
        raise Unclear("no tensors were recorded")
    n = max(args.count(at) for at in tensors)
    moved = sum(args.nbytes(at) for at in tensors)
    return Cost(kernel_class(name), n, moved, PRECISION.get(args.dtype(tensors[0])), matrix=False)
