"""Where the host's time went, in recordings without device work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.analyses.common.collective_calls import collectives_on_host
from stepscope.analyses.common.span_lookup import most_of, of_spans, own_time
from stepscope.analyses.steps.host_states import sleeping_threads
from stepscope.analyses.steps.steps import host_time as divided
from stepscope.core.collectives import label_of
from stepscope.core.names import is_own_code, map_names
from stepscope.core.remedies import remedy
from stepscope.core.step_parts import COMMUNICATION, LOADING, OPERATORS, OTHER
from stepscope.core.units import percent, shares, sum_of
from stepscope.reports._idle import loader_advice
from stepscope.reports._summary import TALK, Cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from stepscope.core.trace import Trace
    from stepscope.reports._summary import Scope

_COLUMNS = {
    OPERATORS: "operator_ns", COMMUNICATION: "exposed_communication_ns", LOADING: "dataloader_ns",
    OTHER: "other_host_ns",
}  # fmt: skip
_RUNTIME = ("runtime", "driver")
_HOST = ("operator", "python", "user_range", "module", "dataloader", *_RUNTIME)


class HostTime(msgspec.Struct, frozen=True, eq=False):
    """The host's time in the scope: its parts and the largest costs."""

    parts: Mapping[str, int]
    by_window: Mapping[str, NDArray[np.int64]]
    costs: tuple[Cost, ...]


def host_time(trace: Trace, operators: pl.DataFrame | None, scope: Scope) -> HostTime:
    """The host's time in the scope, over all threads. Data loading counts before operators, these before communication.

    `operators` is the result of that analysis, None if there are none.
    """
    spans = trace.spans
    lengths_by_part = divided(spans, scope.lows, scope.highs, collectives_apart=True)
    by_window = {part: lengths_by_part[column].to_numpy() for part, column in _COLUMNS.items()}
    parts = {name: int(lengths.sum()) for name, lengths in by_window.items()}
    costs = [
        *_operators(trace, operators, scope, parts[OPERATORS]),
        *_communication(spans, scope, parts[COMMUNICATION]),
        *_loading(trace, scope, parts[LOADING]),
        *_other(trace, scope, parts[OTHER]),
    ]
    return HostTime(parts, by_window, tuple(costs))


def _operators(trace: Trace, operators: pl.DataFrame | None, scope: Scope, part_ns: int) -> list[Cost]:
    """The costliest operators and runtime calls in them. Threads share their time: the sum is at most the part."""
    if operators is None:
        return []
    calls = _runtime_calls(trace.spans)
    summed = max(sum_of(operators["host_self_ns"]) + sum_of(calls["ns"]), 1)
    costs = [
        Cost(
            f"call {name}",
            f"Runtime call {name}",
            ns * min(part_ns / summed, 1.0),
            (scope.amount(n, "call", ns=ns) + f"; {percent(ratio)} of it in {op}",),
            "show spans --sort dur",
        )
        for name, op, n, ns, ratio in calls.filter(pl.col("ns") > 0).head(4).iter_rows()
    ]
    for row in operators.sort("host_self_ns", "name", descending=[True, False]).head(4).iter_rows(named=True):
        if not row["host_self_ns"]:
            continue
        name = str(row["name"])
        details = [scope.amount(row["calls"], "call", ns=row["host_self_ns"])]
        mine = trace.spans.filter((trace.spans["category"] == "operator") & (trace.spans["name"] == name))
        place = most_of(trace.spans, mine["span_id"], mine["dur_ns"], ("module",))
        if place is not None and place[1] >= 0.3:
            details[0] += f"; {percent(place[1])} of it in {place[0]}"
        details += _types(trace, mine)
        cost_ns = row["host_self_ns"] * min(part_ns / summed, 1.0)
        costs.append(Cost(f"operator {name}", f"Operator {name}", cost_ns, tuple(details), "show operators --by shape"))
    return costs


def _runtime_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """By name, costliest first: the operator that most time is in, n, own time, that operator's part of it."""
    is_call = spans["category"].is_in(_RUNTIME).to_numpy()
    calls = spans.select("name", "op_id").filter(pl.Series(is_call))
    calls = calls.with_columns(ns=pl.Series(own_time(spans, is_call)), op=of_spans(spans, calls["op_id"], "name"))
    by_op = calls.drop_nulls("op").group_by("name", "op").agg(pl.col("ns").sum(), n=pl.len()).sort("ns", "op")
    sums = by_op.group_by("name").agg(
        pl.col("op").last(), pl.col("n").sum(), pl.col("ns").sum(), most=pl.col("ns").last()
    )
    return sums.sort("ns", "name", descending=[True, False]).with_columns(pl.col("most") / pl.col("ns"))


def _types(trace: Trace, calls: pl.DataFrame) -> list[str]:
    """Advice if operators work on element types wider than training needs."""
    known = (
        trace.ops.select("span_id", "input_types").drop_nulls().join(calls.select("span_id", "dur_ns"), on="span_id")
    )
    if known.is_empty() or not known["dur_ns"].sum():
        return []
    types = known.group_by("input_types").agg(pl.col("dur_ns").sum())
    wide = types.filter(types["input_types"].cast(pl.String).str.contains('"double"', literal=True))
    ratio = sum_of(wide["dur_ns"]) / sum_of(known["dur_ns"])
    return [f"→ {percent(ratio)} of it works on float64 (double): float32 is twice as fast"] if ratio > 0.1 else []


def _communication(spans: pl.DataFrame, scope: Scope, part_ns: int) -> list[Cost]:
    if part_ns <= 0:
        return []
    calls = spans.select("name", "dur_ns").filter(collectives_on_host(spans))
    kinds = calls.with_columns(what=map_names(calls["name"], label_of, pl.String()))
    sums = kinds.group_by("what").agg(pl.col("dur_ns").sum()).sort("dur_ns", "what", descending=[True, False])
    whole = sums["dur_ns"].sum()
    kinds_by_share = shares([(what, ns / whole) for what, ns in sums.iter_rows()], at_least=0.1) if whole else ""
    title = f"Communication with other ranks while no operator runs: {kinds_by_share}"
    detail = scope.amount(calls.height, "call")
    advice = "→ a rank that comes late makes the others wait here: compare the ranks' own operators"
    return [Cost(TALK, title, part_ns, (detail, advice), "show user-ranges")]


def _loading(trace: Trace, scope: Scope, part_ns: int) -> list[Cost]:
    if part_ns <= 0:
        return []
    batches = int((trace.spans["category"] == "dataloader").sum())
    detail = scope.amount(batches, "batch", "batches", ns=part_ns)
    advice = loader_advice(trace, scope.about)
    return [Cost("loading", "The program waits for the data loader", part_ns, (detail, advice), "show steps")]


def _other(trace: Trace, scope: Scope, part_ns: int) -> list[Cost]:
    if part_ns <= 0:
        return []
    detail = _python(trace.spans) or remedy("with_stack", scope.about)
    return [Cost("other", "Python and waiting, outside operators and data loading", part_ns, (detail,), "show steps")]


def _python(spans: pl.DataFrame) -> str:
    """The program's functions with the most self time, library calls included."""
    frames = spans.select("name").filter(spans["category"] == "python")
    if frames.is_empty():
        return ""
    distinct = frames["name"].unique()
    own = distinct.filter(map_names(distinct, is_own_code, pl.Boolean()))
    awake = ~spans["track_id"].is_in(sleeping_threads(spans).implode())
    wanted = ((spans["category"] != "python") | (spans["name"].is_in(own.implode()) & awake)).to_numpy()
    # Time in a library counts as the time of the function that called it.
    mine = (
        spans.select("name", "category").filter(pl.Series(wanted)).with_columns(ns=pl.Series(own_time(spans, wanted)))
    )
    mine = mine.filter(pl.col("category") == "python").group_by("name").agg(pl.col("ns").sum())
    mine = mine.sort("ns", "name", descending=[True, False])
    whole = mine["ns"].sum()
    functions = (
        shares([(str(name), ns / whole) for name, ns in mine.head(2).iter_rows()], at_least=0.1) if whole else ""
    )
    return f"Most of Python's own time: {functions}" if functions else ""


def has_host_work(spans: pl.DataFrame) -> bool:
    """Whether anything of a framework's host side was recorded."""
    return bool(spans["category"].is_in(list(_HOST)).any())
