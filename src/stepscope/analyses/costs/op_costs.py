"""Which call of which operator stands for each piece of device work, and what such calls cost."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.costs.arguments import PRECISION, Arguments, Unclear
from stepscope.analyses.costs.matrix import MATRIX, Cost
from stepscope.analyses.costs.rows import ROWS
from stepscope.core.intervals import Bools, Ints, nearest, union_by
from stepscope.core.names import kernel_class

if TYPE_CHECKING:
    from collections.abc import Callable


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


FORMULAS = {**MATRIX, **ROWS}


def has_formula(name: str) -> bool:
    """Whether the cost of an operator of that name can be known."""
    return name in FORMULAS or name in PAGED or is_fused(name)


@lru_cache(1 << 16)
def cost_of(
    name: str, shapes: str | None, types: str | None, values: str | None, annotation: str | None = None
) -> Cost | str:
    """The cost of a call, or why it is not known; `shapes`, `types` and `values` are those of the table `ops`.

    `annotation` is the name of the range around it that tells how long the requests of an engine's pass are.

    Source: textbook counts, as TraceLens's performance models make them, so that the two can be compared.

    >>> cost_of("aten::mm", "[[8,4],[4,2]]", '["float","float"]', None)
    Cost(family='gemm', flop=128, nbytes=224, precision='fp32', matrix=True)
    >>> cost_of("aten::unknown", None, None, None)
    'no formula for this operator'
    """
    if not has_formula(name):
        return "no formula for this operator"
    try:
        arguments = Arguments.parse(shapes, types, values)
        if name in PAGED:
            return paged_attention(arguments, *PAGED[name], annotation)
        cost = FORMULAS[name](arguments) if name in FORMULAS else fused(name, arguments)
        return cost if cost.written is None else replace(cost, largest=_largest(arguments, cost.nbytes - cost.written))
    except Unclear as error:
        return str(error)
    except (IndexError, ValueError, ZeroDivisionError):  # fewer or other arguments than this operator takes
        return "its recorded arguments are not those that it takes"


def _largest(arguments: Arguments, read: float) -> float:
    """Bytes of the largest tensor that is read; `read` bounds it, as a target among the arguments is only written."""
    sizes = [arguments.nbytes(at) for at in range(len(arguments.shapes)) if arguments.has(at)]
    return min(max(sizes, default=0), read)


ARGUMENTS = ("input_shapes", "input_types", "concrete_inputs")
NO_OPERATOR = "no operator: what launched it is not in the trace"


def priced(work: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The work with `call_id`, the call that stands for it; and a row per call: arguments, cost, device time.

    The outermost operator with a known cost around a piece of work stands for it: what is inside of it is part of
    that cost. Where there is none the innermost operator does, and the row says why its cost is not known; work
    without any operator is a call by itself, whose call_id is negative.

    Columns of calls: call_id, name, the arguments (as text), family, precision, matrix, flop, bytes, written_bytes and
    largest_bytes (see `Cost`), reason, n_work, device_ns (when its work ran, overlaps counted once), tensor_core (some
    kernel of it uses matrix units), step, device_id. Units: ns, FLOP, bytes.
    """
    behind = work["op_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    known = behind >= 0
    parents = spans["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
    is_op = (spans["category"] == "operator").to_numpy()
    wanted = _spans_named(spans, has_formula) & is_op
    candidates = _ancestors(behind[known], parents, wanted)
    costs = _costs(np.unique(candidates), spans, ops)
    sound = np.zeros(spans.height, np.bool_)
    sound[costs.filter(pl.col("flop").is_not_null())["call_id"].to_numpy()] = True
    call = behind.copy()
    outer = _outermost(behind[known], parents, sound)
    call[known] = np.where(outer >= 0, outer, behind[known])
    alone = -1 - np.arange(work.height)  # work without any operator stands for itself
    work = work.with_columns(call_id=pl.Series(np.where(call >= 0, call, alone)))
    of_call = _device_time(work)
    bare = of_call.join(costs, on="call_id", how="anti").filter(pl.col("call_id") >= 0)["call_id"].to_numpy()
    both = pl.concat([costs, _costs(bare, spans, ops)])
    found = of_call.join(both, on="call_id", how="left", maintain_order="left")
    why = pl.when(pl.col("call_id") < 0).then(pl.lit(NO_OPERATOR)).otherwise("reason")
    return work, found.with_columns(reason=why)


def _spans_named(spans: pl.DataFrame, is_wanted: Callable[[str], bool]) -> Bools:
    """Which spans have a name that is wanted."""
    names = spans["name"].unique().drop_nulls().cast(pl.String)
    return spans["name"].is_in([name for name in names if is_wanted(name)]).fill_null(value=False).to_numpy()


def _ancestors(rows: Ints, parents: Ints, wanted: Bools) -> Ints:
    """All wanted spans among these rows and their ancestors."""
    near = nearest(parents, wanted)
    found, open_ = [], near[np.unique(rows)]
    while (open_ := np.unique(open_[open_ >= 0])).size:
        found.append(open_)
        above = parents[open_]
        open_ = near[above[above >= 0]]
    return np.concatenate([np.empty(0, np.int64), *found])


def _outermost(rows: Ints, parents: Ints, wanted: Bools) -> Ints:
    """For each row the outermost wanted span among itself and its ancestors, -1 if there is none."""
    near = nearest(parents, wanted)
    found = near[rows]
    while True:
        above = np.where(found >= 0, parents[found], -1)
        higher = np.where(above >= 0, near[above], -1)
        if not (higher >= 0).any():
            return found
        found = np.where(higher >= 0, higher, found)


def _costs(calls: Ints, spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Arguments and cost of these calls; the cost is worked out once for each distinct set of arguments."""
    frame = pl.DataFrame({"call_id": calls, "name": spans["name"].gather(pl.Series(calls)).cast(pl.String)})
    arguments = ops.select(pl.col("span_id").cast(pl.Int64).alias("call_id"), *ARGUMENTS)
    # Made text only once they are few: most operators are none of these calls.
    frame = frame.join(arguments, on="call_id", how="left", maintain_order="left")
    frame = frame.with_columns(pl.col(ARGUMENTS).cast(pl.String))
    frame = frame.with_columns(annotation=_annotations(frame, spans))
    keys = ["name", *ARGUMENTS, "annotation"]
    distinct = frame.select(keys).unique(maintain_order=True)
    found = [cost_of(*row) for row in distinct.rows()]
    costs = [cost if isinstance(cost, Cost) else None for cost in found]
    distinct = distinct.with_columns(
        family=pl.Series([c and c.family for c in costs], dtype=pl.String),
        precision=pl.Series([c and c.precision for c in costs], dtype=pl.String),
        matrix=pl.Series([c and c.matrix for c in costs], dtype=pl.Boolean),
        flop=pl.Series([c and c.flop for c in costs], dtype=pl.Float64),
        bytes=pl.Series([c and c.nbytes for c in costs], dtype=pl.Float64),
        written_bytes=pl.Series([c and c.written for c in costs], dtype=pl.Float64),
        largest_bytes=pl.Series([c and c.largest for c in costs], dtype=pl.Float64),
        reason=pl.Series([c if isinstance(c, str) else None for c in found], dtype=pl.String),
    )
    return frame.join(distinct, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _annotations(calls: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Of calls that need it the name of the range around them that tells how long the requests of a pass are."""
    needs = calls["name"].is_in(list(PAGED)).to_numpy()
    found = np.full(calls.height, -1, np.int64)
    if needs.any():
        parents = spans["parent_id"].cast(pl.Int64).fill_null(-1).to_numpy()
        around = nearest(parents, _spans_named(spans, is_pass))
        found[needs] = around[calls["call_id"].to_numpy()[needs]]
    rows = pl.select(pl.when(pl.Series(found >= 0)).then(pl.Series(found))).to_series()
    return spans["name"].gather(rows).cast(pl.String)


def _device_time(work: pl.DataFrame) -> pl.DataFrame:
    """Row per call: n_work, device_ns, tensor_core, step, device_id."""
    columns = (work[c].cast(pl.Int64).to_numpy() for c in ("call_id", "ts_ns", "end_ns"))
    call, starts, ends = columns
    order = np.lexsort((starts, call))
    groups, lows, highs = union_by(call[order], starts[order], ends[order])
    length = pl.DataFrame({"call_id": groups, "device_ns": highs - lows}).group_by("call_id").agg(pl.sum("device_ns"))
    found = work.group_by("call_id", maintain_order=True).agg(
        n_work=pl.len().cast(pl.Int64),
        tensor_core=pl.col("tensor_core").any(),
        step=pl.col("step").first(),
        device_id=pl.col("device_id").first(),
    )
    return found.join(length, on="call_id", how="left", maintain_order="left").with_columns(
        pl.col("device_ns").fill_null(0)
    )
