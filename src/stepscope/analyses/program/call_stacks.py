"""Where time went by call stack: host time of what was open, or device work under the host's calls that queued it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.common.span_lookup import at_or_around, is_captured
from stepscope.core.arrays import distinct_values
from stepscope.core.errors import MissingTable, StepscopeError, UnknownName
from stepscope.core.intervals import Bools, Ints, nearest, own_lengths
from stepscope.core.schema import DEVICE_WORK
from stepscope.core.table import Column, Name, Table, integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

CALL_STACKS = Table(
    "call-stacks",
    "where time went by call stack, for a flame graph",
    (
        Column("stack", pl.String(), "name of each call, outermost first (inverted: innermost first), joined by ;",
               key=True),
        Column("calls", pl.Int64(), "how often the last of them was called (of the device: work that it queued)"),
        Column("self_ns", pl.Int64(), "time in the last of them itself, or of the device's work that it queued", "ns"),
        Column("share_ratio", pl.Float64(), "self_ns over that of all stacks", "ratio"),
    ),
)  # fmt: skip
#: What a thread is in. Spans of the profiler itself and of the scheduler are not among them.
_CALLERS = ("step", "user_range", "module", "operator", "python", "dataloader")
_RUNTIME = ("runtime", "driver")
#: Calls deeper than this count as time of the call at this depth.
_DEEPEST = 200
_MOST_STACKS = 10_000
_LONGEST_NAME = 200
_REST = "(other stacks)"


def call_stacks(
    spans: pl.DataFrame,
    *,
    of: Literal["host", "device"] | None = None,
    step: int | None = None,
    begin_ns: int | None = None,
    end_ns: int | None = None,
    inverted: bool = False,
) -> pl.DataFrame:
    """One row per call stack, longest time first; its figure is a flame graph.

    Of the host it is the time of each call without that of the calls inside it, summed over all threads. Of the device
    it is the time of kernels, copies and fills below the stack of the call that queued them. Without `of` it is the
    device if it did any work. `begin_ns` and `end_ns` choose a stretch of time, at whose bounds calls and work are cut;
    `step` chooses what began in a step, or was queued in it. `inverted` puts the innermost call first, so that the
    flame graph shows who called it. Calls deeper than 200 count for the one at that depth. After the 10,000 longest
    stacks comes one row for all others.

    Units: ns; ratios 0..1.
    Source: collapsed stacks, as Brendan Gregg's flame graphs are drawn from. Spans nest by time, as recorded.
    Raises MissingTable (no such time), UnknownName (of, step), StepscopeError (bounds).
    """
    low, high = _bounds(spans, begin_ns, end_ns)
    work = spans["category"].is_in(DEVICE_WORK).to_numpy()
    where = of or ("device" if work.any() else "host")
    starts = np.clip(spans["ts_ns"].to_numpy(), low, high)
    ends = np.clip((spans["ts_ns"] + spans["dur_ns"]).to_numpy(), low, high)
    if where == "device":
        above = _callers_of_work(spans, work)
        weight = np.where(work, ends - starts, 0)
    else:
        is_call = spans["category"].is_in((*_CALLERS, *_RUNTIME)).to_numpy() & ~is_captured(spans)
        above = _outlasting(spans, at_or_around(spans, is_call, itself=False))
        calls = np.flatnonzero(is_call)
        position = np.full(spans.height + 1, -1, np.int64)  # the last one, reached by index -1, stays -1
        position[calls] = np.arange(calls.size)
        weight = np.zeros(spans.height, np.int64)
        weight[calls] = own_lengths(starts[calls], ends[calls], position[above[calls]])
    if step is not None:
        weight = np.where(_in_step(spans["step"], step), weight, 0)
    rows = np.flatnonzero(weight > 0)
    if not rows.size:
        raise MissingTable(f"time of the {where}", needed_by="call-stacks", topic="operators")
    # Steps differ in their numbers alone.
    names = spans.select(pl.when(category="step").then(pl.lit("step").cast(Name)).otherwise("name")).to_series()
    frame = _stacks(names, above, rows, weight[rows], inverted=inverted)
    return CALL_STACKS.conform(frame.with_columns(share_ratio=pl.col("self_ns") / pl.col("self_ns").sum()))


def _bounds(spans: pl.DataFrame, begin_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    """Begin and end of the stretch that is asked for."""
    bounds = spans.select(low=pl.col("ts_ns").min(), high=(pl.col("ts_ns") + pl.col("dur_ns")).max())
    low = bounds["low"][0] if begin_ns is None else begin_ns
    high = bounds["high"][0] if end_ns is None else end_ns
    if high < low:
        raise StepscopeError("the stretch of time is empty", "--end-ns must be after --begin-ns")
    return max(low, -(2**62)), min(high, 2**62)


def _in_step(steps: pl.Series, step: int) -> Bools:
    known = steps.drop_nulls().unique().sort().to_list()
    if step not in known:
        raise UnknownName("step", str(step), [str(number) for number in known])
    return (steps == step).fill_null(value=False).to_numpy()


def _callers_of_work(spans: pl.DataFrame, work: Bools) -> Ints:
    """For each span the call around it, and for device work the call that queued it; -1 if it is not known."""
    is_caller = spans["category"].is_in(_CALLERS).to_numpy()
    above = _outlasting(spans, at_or_around(spans, is_caller, itself=False))
    launch, operator = (integers(spans[c])[work] for c in ("launch_id", "op_id"))
    # One call launches all that a replayed graph does: there the operator says more.
    queued_by = np.where((launch < 0) | (is_captured(spans)[operator] & (operator >= 0)), operator, launch)
    above[work] = np.where(queued_by >= 0, at_or_around(spans, is_caller)[queued_by], -1)
    return above


def _outlasting(spans: pl.DataFrame, above: Ints) -> Ints:
    """For each span the innermost caller that was open until it ended, or else the one that was open longest.

    A range that a function opens outlasts that function: it belongs to the caller of the function.
    """
    ends = (spans["ts_ns"] + spans["dur_ns"]).to_numpy()
    caller, further = above.copy(), above.copy()
    pending = np.flatnonzero((above >= 0) & (ends[above] < ends))
    while (pending := pending[above[further[pending]] >= 0]).size:
        further[pending] = above[further[pending]]
        is_longer = ends[further[pending]] > ends[caller[pending]]
        caller[pending[is_longer]] = further[pending[is_longer]]
        pending = pending[ends[caller[pending]] < ends[pending]]
    return caller


def _stacks(names: pl.Series, above: Ints, rows: Ints, weight: Ints, *, inverted: bool) -> pl.DataFrame:
    """The stacks of `rows` with their number and summed weight, longest first. `above` names each span's caller."""
    node_of, caller, example = _nodes(names.to_physical().fill_null(0).to_numpy(), above, rows)
    counted = pl.DataFrame({"node": node_of[rows], "self_ns": weight})
    sums = counted.group_by("node").agg(calls=pl.len(), self_ns=pl.col("self_ns").sum())
    sums = sums.sort("self_ns", "node", descending=[True, False])
    texts = names.gather(example).cast(pl.String).fill_null("").str.replace_all(";", ",").str.head(_LONGEST_NAME)
    frames, callers = texts.to_list(), caller.tolist()
    stacks = []
    for node in sums["node"].head(_MOST_STACKS).to_list():
        chain, at = [], node
        while at >= 0:
            chain.append(frames[at])
            at = callers[at]
        stacks.append(";".join(chain if inverted else chain[::-1]))
    frame = sums.head(_MOST_STACKS).with_columns(stack=pl.Series(stacks, dtype=pl.String()))
    # Names that are cut may be the same.
    order = ["self_ns", "stack"]
    frame = frame.group_by("stack").agg(pl.col("calls", "self_ns").sum()).sort(order, descending=[True, False])
    rest = sums.slice(_MOST_STACKS).select(pl.lit(_REST).alias("stack"), pl.col("calls", "self_ns").sum())
    return pl.concat([frame, rest.filter(pl.col("self_ns") > 0)])


def _nodes(codes: NDArray[np.uint32], above: Ints, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """For each span the number of its stack; for each stack that of its caller (-1: none), and a span that has it.

    Only `rows` and their callers have a number. `codes` are those of their names.
    """
    needed = np.zeros(above.size, np.bool_)
    fresh = rows
    while fresh.size:
        needed[fresh] = True
        fresh = distinct_values(above[fresh])
        fresh = fresh[(fresh >= 0) & ~needed[fresh]]
    waiting = np.flatnonzero(needed)
    code = np.zeros(above.size, np.int64)
    distinct, code[waiting] = np.unique(codes[waiting], return_inverse=True)
    node_of = np.full(above.size + 1, -1, np.int64)  # the last one, reached by index -1, stays -1
    callers, examples, n_nodes = [], [], 0
    for _ in range(_DEEPEST):
        is_next = (above[waiting] < 0) | (node_of[above[waiting]] >= 0)
        level, waiting = waiting[is_next], waiting[~is_next]
        if not level.size:
            break
        key = (node_of[above[level]] + 1) * distinct.size + code[level]
        keys, first, number = np.unique(key, return_index=True, return_inverse=True)
        node_of[level] = n_nodes + number
        callers.append(keys // distinct.size - 1)
        examples.append(level[first])
        n_nodes += keys.size
    node_of[waiting] = node_of[nearest(above, node_of[:-1] >= 0)[waiting]]
    return node_of, np.concatenate(callers), np.concatenate(examples)


ANALYSIS = analysis_of(
    call_stacks, CALL_STACKS, "Where time went by call stack, of the host or of the device, for a flame graph."
)
