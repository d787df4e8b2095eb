"""What a report says of requests, of the KV cache that they share, and of the experts that get their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.ranks.expert_load import EXPERT_LOAD, expert_load
from stepscope.analyses.resources.counters import COUNTER_SUMMARY, counters
from stepscope.analyses.steps.requests import REQUEST_SUMMARY, requests, slowest_requests
from stepscope.core.errors import MissingTable
from stepscope.core.prometheus import CACHE_ADVICE, CACHE_FULL, CACHE_USE, PREEMPTED, WAITING, pattern_of
from stepscope.core.report import Block
from stepscope.core.units import count, counted, duration, percent, sum_of
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._stragglers import SPREAD_EXPERTS, UNEVEN
from stepscope.reports._summary import Cost, Lack, Summary
from stepscope.reports._tables import known_columns, number

if TYPE_CHECKING:
    from typing import Any

    from stepscope.core.trace import Trace

_SLOWEST = 5
_OF_SLOW = ("request", "id", "e2e_ns", "ttft_ns", "cause", "queue_ns", "prefill_between_ns", "host_ns", "batch_kind",
            "batch_ns")  # fmt: skip
_OF_CACHE = pattern_of(CACHE_USE + PREEMPTED + WAITING)
_NAMES = {"ttft": "first token", "itl": "between tokens", "tpot": "per token"}
_LAYERS = 8
_COUNTS = Lack("expert_counts", "Only tokens by expert were counted: how long anything took is unknown.")


def request_blocks(trace: Trace) -> list[Block]:
    """What requests took, and the slowest of them with the cause; none without requests."""
    try:
        table = requests(trace.requests, trace.histograms)
    except MissingTable:
        return []
    blocks = [Block("Requests", REQUEST_SUMMARY, known_columns(table), "show requests")]
    if not trace.requests.is_empty():
        slow = slowest_requests(trace.requests, trace.spans, trace.tracks, _SLOWEST).select(_OF_SLOW)
        if slow.height:
            blocks.append(Block("Slowest requests", REQUEST_SUMMARY, known_columns(slow), "show requests --by request"))
    return blocks


def cache_costs(trace: Trace) -> list[Cost]:
    """That the KV cache is too small, by the metrics of an engine or by requests that it stopped for others."""
    metric = pl.col("metric").cast(pl.String)
    of_cache = metric.str.contains(_OF_CACHE) & pl.col("value").is_finite()
    known = trace.counters.filter(of_cache).sort("ts_ns", nulls_last=False)

    def values(names: tuple[str, ...]) -> pl.DataFrame:
        held = known.filter(metric.str.contains(pattern_of(names))).group_by("metric", "device")
        return held.agg(
            first=pl.col("value").first(), last=pl.col("value").last(), most=pl.col("value").max(), n=pl.len()
        )

    peak = number(values(CACHE_USE)["most"].max())
    peak = peak / 100 if peak > 1 else peak  # some state percent
    counted_up = values(PREEMPTED).select(
        pl.when(metric.str.ends_with("_total") & (pl.col("n") > 1)).then(pl.col("last") - pl.col("first"))
        .otherwise("most").clip(0)
    ).to_series()  # fmt: skip
    stopped = max(sum_of(counted_up), sum_of(trace.requests["n_preemptions"].drop_nulls()))
    if peak < CACHE_FULL and not stopped:
        return []
    title = "The KV cache is too small for the requests that run at once"
    title += f": it is {percent(min(peak, 1.0))} full at its peak" if peak >= CACHE_FULL else ""
    details = [
        f"{counted(round(stopped), 'time')} a request was stopped for others, and its tokens computed again later"
    ]
    details = details if stopped else []
    waiting = number(values(WAITING)["most"].max())
    details += [f"Up to {counted(round(waiting), 'request')} waited to run"] if waiting else []
    return [Cost("serving cache", title, None, (*details, CACHE_ADVICE), "show counters" if peak else "show requests")]


def summary_of_requests(trace: Trace) -> Summary:
    """What requests took, of files that hold nothing else."""
    blocks = request_blocks(trace)
    if not trace.counters.is_empty():
        used = counters(trace.counters).filter(pl.col("max") != 0).select("device", "metric", "mean", "max")
        of_engine = used.filter(pl.col("metric").cast(pl.String).str.contains(":"))  # others are the process' own
        used = of_engine if of_engine.height else used
        blocks.append(Block("Other metrics", COUNTER_SUMMARY, used, "show counters"))
    times = pl.concat([trace.requests["ts_ns"], trace.histograms["ts_ns"]]).drop_nulls()
    has_clock = trace.meta.origin_unix_ns is not None and times.len() > 0
    return Summary(
        trace.meta,
        recorded_ns=(recorded_ns := int(np.ptp(times.to_numpy())) if has_clock else 0),
        windows_ns=(max(recorded_ns, 1),),
        costs=tuple(cache_costs(trace)),
        tables=tuple(blocks),
        quality=lacks_of_issues(trace.issues),
        issues=trace.issues,
        facts=tuple(facts_of_requests(trace)),
    )


def facts_of_requests(trace: Trace) -> list[str]:
    """How many requests there were, and what their first token and the time between tokens took; none is unknown."""
    try:
        table = requests(trace.requests, trace.histograms)
    except MissingTable:
        return []
    n, failed = trace.requests.height, int((~trace.requests["is_ok"]).sum() or 0)
    facts = [counted(n, "request") + (f" ({failed:,} failed)" if failed else "")] if n else []
    for metric, name in _NAMES.items():
        rows = table.filter(pl.col("metric") == metric).head(1).iter_rows(named=True)
        facts += [f"{name} p50 {_bounds(row, 'p50')}, p99 {_bounds(row, 'p99')}" for row in rows]
    return facts


def _bounds(row: dict[str, float | None], name: str) -> str:
    low, high = row[f"{name}_ns"], row[f"{name}_high_ns"]
    return duration(low) if row["max_ns"] is not None else f"{duration(low)} to {duration(high) if high else 'more'}"


def summary_of_experts(trace: Trace) -> Summary:
    """How evenly the experts of each phase load the ranks, and the least even layers."""
    tokens = trace.expert_tokens
    phases, layers = expert_load(tokens, by="phase"), expert_load(tokens)
    rows = list(phases.iter_rows(named=True))
    costs = [_cost(row) for row in rows if (row["imbalance_ratio"] or 0.0) > UNEVEN]
    if costs:
        costs[0] = replace(costs[0], details=(*costs[0].details, SPREAD_EXPERTS))  # once is enough
    blocks = (
        Block("Experts", EXPERT_LOAD, phases, "show expert-load --by phase"),
        Block("Layers with the least even ranks", EXPERT_LOAD, layers.head(_LAYERS), "show expert-load"),
    )
    return Summary(
        trace.meta,
        recorded_ns=0,
        windows_ns=(1,),
        costs=tuple(costs),
        tables=blocks,
        quality=(_COUNTS, *lacks_of_issues(trace.issues)),
        issues=trace.issues,
        facts=tuple(_fact(row) for row in rows),
    )


def _fact(row: dict[str, Any]) -> str:
    phase = "" if row["phase"] is None else f"{row['phase']}: "
    size = f"{counted(row['n_experts'], 'expert')} a layer, {counted(row['n_layers'], 'layer')}"
    return f"{phase}{size}, {count(row['n_tokens'])} tokens"


def _cost(row: dict[str, Any]) -> Cost:
    phase = "" if row["phase"] is None else f" in {row['phase']}"
    ratio = row["imbalance_ratio"]
    title = f"Experts load ranks unevenly{phase}: the busiest rank of a layer gets {ratio:.2f} × the mean"
    details = [f"Spread evenly, experts would take {percent(1 / ratio)} of their time, as far as it grows with tokens"]
    idle = row["n_idle"]
    details += [f"{counted(idle, 'expert')} of all layers got no token at all"] if idle else []
    return Cost(f"experts {row['phase']}", title, None, tuple(details), "show expert-load")
