"""FLOP and bytes of operator calls: by formula, and for each call that launched device work.

Formulas cover PyTorch's operators, attention over a paged cache (from an engine's annotations), and Inductor's kernels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.batch_names import Part, batch_of
from stepscope.analyses.common.span_lookup import at_or_around, in_rows, of_ids, parents_of
from stepscope.analyses.costs.arguments import PRECISION, Arguments, Unclear
from stepscope.analyses.costs.matrix import MATRIX, Cost
from stepscope.analyses.costs.rows import ROWS
from stepscope.core.intervals import NO_ROW, Bools, Ints, Row, nearest, union_by
from stepscope.core.names import kernel_class, map_names
from stepscope.core.patterns import regex
from stepscope.core.table import integers, without

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


#: Operators whose cost follows from such an annotation around them, and the positions of their queries and keys.
PAGED = {"vllm::unified_attention_with_output": (0, 1), "sglang_profiler::attention_paged_attention_ragged": (2, 3)}
_NUMBERED = regex(r"^(sglang_profiler::.*?)_\d+$")
_INDUCTOR = regex(r"^triton_(?:poi|red|per)_fused_")
FORMULAS = {**MATRIX, **ROWS}
ARGUMENTS = ("input_shapes", "input_types", "concrete_inputs")
NO_FORMULA = "no formula for this operator"
NO_OPERATOR = "no operator: what launched it is not in the trace"


def is_pass(name: str) -> bool:
    """Whether a range of that name gives the lengths of the requests of a batch."""
    batch = batch_of(name)
    return batch is not None and batch.context.has_sums and batch.generation.has_sums


def is_fused(name: str) -> bool:
    """Whether a kernel of that name is one that Inductor generated for work on elements or rows."""
    return _INDUCTOR.match(name) is not None


def paged_attention(args: Arguments, q_at: int, k_at: int, annotation: str | None) -> Cost:
    """Attention of the tokens of a pass to all earlier tokens, which are in a paged cache.

    A prefill token attends to those before it and counts itself half; a decode token attends to all. Raises Unclear
    without an annotation that gives the lengths.
    """
    batch = batch_of(annotation or "")
    if batch is None or not is_pass(annotation or ""):
        raise Unclear("the lengths of its requests are not annotated")
    context, generation = (_known(part) for part in (batch.context, batch.generation))
    heads, depth = args.shape(q_at)[-2:]
    kv_heads = args.shape(k_at)[-2]
    (q, kv, q_q, q_kv), (new, all_kv, _, new_kv) = context, generation
    pairs = q_kv - q_q / 2 + new_kv
    flop = 4 * heads * depth * pairs
    moved = 2 * depth * (q + new) * heads * args.element(q_at)
    moved += 2 * depth * (kv + all_kv) * kv_heads * args.element(k_at)
    return Cost("attention", round(flop), moved, PRECISION.get(args.dtype(q_at)), matrix=True)


def _known(part: Part) -> tuple[int, int, int, int]:
    """The sums of a part that states them: of new tokens, of all tokens, of their squares and products."""
    return part.q or 0, part.kv or 0, part.q_q or 0, part.q_kv or 0


def fused(name: str, args: Arguments) -> Cost:
    """A lower bound: each tensor is moved once, and one operation is done per element of the largest."""
    tensors = [at for at in range(len(args.shapes)) if args.has(at)]
    if not tensors:
        raise Unclear("no tensors were recorded")
    n = max(args.count(at) for at in tensors)
    moved = sum(args.nbytes(at) for at in tensors)
    return Cost(kernel_class(name), n, moved, PRECISION.get(args.dtype(tensors[0])), matrix=False)


def has_formula(name: str) -> bool:
    """Whether there is a formula for an operator of that name."""
    return name in FORMULAS or _paged(name) is not None or is_fused(name)


def _paged(name: str) -> tuple[int, int] | None:
    """The positions of queries and keys of attention over a paged cache. SGLang numbers its operators' names."""
    return PAGED.get(_NUMBERED.sub(r"\1", name))


@lru_cache(1 << 16)
def cost_of(
    name: str, shapes: str | None, types: str | None, values: str | None, annotation: str | None = None
) -> Cost | str:
    """The cost of a call, or why it is unknown; `shapes`, `types` and `values` are those of the table `ops`.

    `annotation` is the name of the range around it that gives the lengths of the requests of an engine's pass.

    Source: textbook counts, like those of TraceLens's performance models, so that the two can be compared.

    >>> cost = cost_of("aten::mm", "[[8,4],[4,2]]", '["float","float"]', None)
    >>> (cost.family, cost.flop, cost.nbytes, cost.precision)
    ('gemm', 128, 224, 'fp32')
    >>> cost_of("aten::unknown", None, None, None)
    'no formula for this operator'
    """
    if not has_formula(name):
        return NO_FORMULA
    try:
        arguments = Arguments.parse(shapes, types, values)
        if (paged := _paged(name)) is not None:
            return paged_attention(arguments, *paged, annotation)
        cost = FORMULAS[name](arguments) if name in FORMULAS else fused(name, arguments)
        return cost if cost.written is None else replace(cost, largest=_largest(arguments, cost.nbytes - cost.written))
    except Unclear as error:
        return str(error)
    except (IndexError, ValueError, ZeroDivisionError):  # not the arguments that this operator takes
        return "its recorded arguments are not those that it takes"


def _largest(arguments: Arguments, read: float) -> float:
    """Bytes of the largest tensor that is read, at most `read`: an output among the arguments is not read."""
    sizes = [arguments.nbytes(at) for at in range(len(arguments.shapes)) if arguments.has(at)]
    return min(max(sizes, default=0), read)


def priced(
    work: pl.DataFrame, spans: pl.DataFrame, ops: pl.DataFrame, *, arguments: bool = True
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The work with `call_id`, the call that it is attributed to; and a row per call: arguments, cost, device time.

    Work is attributed to the outermost operator with a known cost around it, as that cost includes what is inside. If
    there is none, it is attributed to the innermost operator, and the row says why the cost of the nearest operator
    with a formula is unknown, or that there is no formula. Work without an operator is a call of its own, with a
    negative call_id.

    Columns of calls: call_id, name, the `arguments` if wanted (the name is text then, too), family, precision, matrix,
    flop, bytes, written_bytes and largest_bytes (see `Cost`), reason, n_work, device_ns (when its work ran, overlaps
    counted once), tensor_core (one of its kernels uses matrix units), step, device_id. Units: ns, FLOP, bytes.
    """
    op = integers(work["op_id"])
    known = op >= 0
    parents = parents_of(spans)
    is_op = (spans["category"] == "operator").to_numpy()
    wanted = _spans_named(spans, has_formula) & is_op
    candidates = _ancestors(op[known], parents, wanted)
    del parents
    costs = _costs(candidates, spans, ops, arguments=arguments)
    sound = np.zeros(spans.height, np.bool_)
    sound[candidates[costs["flop"].is_not_null().to_numpy()]] = True
    call = op.copy()
    outer = _outermost(op[known], spans, sound)
    call[known] = np.where(outer >= 0, outer, op[known])
    own_id = -1 - np.arange(work.height)  # work without an operator is a call of its own
    work = work.with_columns(call_id=pl.Series(np.where(call >= 0, call, own_id)))
    calls = _device_time(work)
    ids = calls["call_id"].to_numpy()
    bare = ids[(ids >= 0) & ~np.isin(ids, candidates)]
    both = costs
    if bare.size:
        (reasons,) = _of_calls(costs[["call_id", "reason"]], at_or_around(spans, wanted, bare))
        rest = _costs(bare, spans, ops, arguments=arguments).with_columns(reason=pl.coalesce(reasons, "reason"))
        both = pl.concat([costs, rest])
    calls = calls.hstack(_of_calls(both, ids))
    why = pl.when(pl.col("call_id") < 0).then(pl.lit(NO_OPERATOR)).otherwise("reason")
    return work, calls.with_columns(reason=why)


def _of_calls(table: pl.DataFrame, calls: Ints) -> list[pl.Series]:
    """For each call the other columns of a table by call_id; null where it has no row, and for negative ids."""
    return of_ids(table, pl.Series(np.where(calls >= 0, calls, NO_ROW)), key="call_id")


def _spans_named(spans: pl.DataFrame, is_wanted: Callable[[str], bool]) -> Bools:
    """Which spans have a name for which `is_wanted` holds."""
    named = map_names(spans["name"], is_wanted, pl.Boolean())
    return (named.fill_null(value=False) if named.null_count() else named).to_numpy()


def _ancestors(rows: Ints, parents: NDArray[Row], wanted: Bools) -> Ints:
    """All wanted spans among these rows and their ancestors, as rows in order."""
    near = nearest(parents, wanted)
    is_one = np.zeros(parents.size, np.bool_)
    open_ = near[rows]
    while (open_ := open_[(open_ >= 0) & ~is_one[open_]]).size:
        is_one[open_] = True
        above = parents[open_]
        open_ = near[above[above >= 0]]
    return np.flatnonzero(is_one)


def _outermost(rows: Ints, spans: pl.DataFrame, wanted: Bools) -> Ints:
    """For each row the outermost wanted span among itself and those around it; -1 if none."""
    ones = np.flatnonzero(wanted)
    above = at_or_around(spans, wanted, np.concatenate((rows, ones)), itself=False)
    outer, above = np.where(wanted[rows], rows, above[: rows.size]), above[rows.size :]
    pending = np.flatnonzero(outer >= 0)
    while pending.size:
        higher = above[np.searchsorted(ones, outer[pending])]
        pending, higher = pending[higher >= 0], higher[higher >= 0]
        outer[pending] = higher
    return outer


def _costs(calls: Ints, spans: pl.DataFrame, ops: pl.DataFrame, *, arguments: bool) -> pl.DataFrame:
    """Arguments and cost of these calls; each distinct set of arguments is computed once."""
    frame = pl.DataFrame({"call_id": calls, "name": in_rows(spans["name"], calls)})
    frame = frame.hstack([*_arguments(calls, ops), _annotations(frame, spans).alias("annotation")])
    keys = ["name", *ARGUMENTS, "annotation"]
    if map_names(frame["name"], has_formula, pl.Boolean()).any():
        distinct = frame[keys].unique(maintain_order=True)
        distinct = distinct.hstack(_results([cost_of(*row) for row in distinct.rows()]))
        frame = frame.join(distinct, on=keys, how="left", nulls_equal=True, maintain_order="left")
    else:
        frame = frame.hstack([column.new_from_index(0, calls.size) for column in _results([NO_FORMULA])])
    if not arguments:  # as text they take more memory than all the rest
        return without(frame, *ARGUMENTS, "annotation")
    return frame.with_columns(pl.col(keys).cast(pl.String))


def _results(results: Sequence[Cost | str]) -> list[pl.Series]:
    """Costs, or why they are unknown, as columns."""
    costs = [cost if isinstance(cost, Cost) else None for cost in results]
    return [
        pl.Series("family", [c and c.family for c in costs], dtype=pl.String),
        pl.Series("precision", [c and c.precision for c in costs], dtype=pl.String),
        pl.Series("matrix", [c and c.matrix for c in costs], dtype=pl.Boolean),
        pl.Series("flop", [c and c.flop for c in costs], dtype=pl.Float64),
        pl.Series("bytes", [c and c.nbytes for c in costs], dtype=pl.Float64),
        pl.Series("written_bytes", [c and c.written for c in costs], dtype=pl.Float64),
        pl.Series("largest_bytes", [c and c.largest for c in costs], dtype=pl.Float64),
        pl.Series("reason", [c if isinstance(c, str) else None for c in results], dtype=pl.String),
    ]


def _arguments(calls: Ints, ops: pl.DataFrame) -> list[pl.Series]:
    """The recorded arguments of these calls."""
    known = ops["span_id"]
    if known.is_empty() or not known.is_sorted():
        wanted = pl.DataFrame({"span_id": calls}, schema={"span_id": known.dtype})
        return wanted.join(ops, on="span_id", how="left", maintain_order="left").select(ARGUMENTS).get_columns()
    ids = known.to_numpy()
    at = np.minimum(np.searchsorted(ids, calls), ids.size - 1)
    places = pl.Series(at.astype(np.uint32)).set(pl.Series(ids[at] != calls), None)
    return [ops[column][places] for column in ARGUMENTS]  # unlike `gather` it plans no query


def _annotations(calls: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """For calls that need it, the name of the enclosing range that gives the lengths of a pass's requests."""
    is_paged = map_names(calls["name"], lambda name: _paged(name) is not None, pl.Boolean())
    if not is_paged.any():
        return pl.Series([None], dtype=spans["name"].dtype).new_from_index(0, calls.height)
    needs = is_paged.fill_null(value=False).to_numpy()
    rows = np.full(calls.height, -1, np.int64)
    rows[needs] = at_or_around(spans, _spans_named(spans, is_pass), calls["call_id"].to_numpy()[needs])
    known = pl.select(pl.when(pl.Series(rows >= 0)).then(pl.Series(rows))).to_series()
    return spans["name"].gather(known)


def _device_time(work: pl.DataFrame) -> pl.DataFrame:
    """Row per call: n_work, device_ns, tensor_core, step, device_id."""
    call, starts, ends = (work[c].cast(pl.Int64).to_numpy() for c in ("call_id", "ts_ns", "end_ns"))
    uses_units = work["tensor_core"].fill_null(value=False).to_numpy()
    order = np.lexsort((starts, call))
    is_head = np.ones(order.size, np.bool_)
    is_head[1:] = np.diff(call[order]) != 0
    heads, index = np.flatnonzero(is_head), np.cumsum(is_head) - 1
    device_ns = np.zeros(heads.size, np.int64)
    groups, lows, highs = union_by(index, starts[order], ends[order])
    np.add.at(device_ns, groups, highs - lows)
    first = np.minimum.reduceat(order, heads)
    calls = pl.DataFrame({
        "call_id": call[first],
        "n_work": np.bincount(index, minlength=heads.size),
        "tensor_core": np.logical_or.reduceat(uses_units[order], heads),
        "step": work["step"].gather(pl.Series(first)),
        "device_id": work["device_id"].gather(pl.Series(first)),
        "device_ns": device_ns,
    })  # fmt: skip
    return calls.sort(pl.Series(first))
