"""What a report says of an engine that serves a model: its batches, and what requests took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.resources.counters import COUNTER_SUMMARY, counters
from stepscope.analyses.steps.batches import BATCHES, batches
from stepscope.analyses.steps.requests import REQUEST_SUMMARY, requests
from stepscope.core.errors import MissingTable
from stepscope.core.report import Block
from stepscope.core.units import counted, duration
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._summary import Summary

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

_SLOWEST = 5
_OF_SLOW = ("request", "id", "e2e_ns", "ttft_ns", "cause", "queue_ns", "prefill_between_ns", "host_ns", "batch_kind",
            "batch_ns")  # fmt: skip
_NAMES = {"ttft": "first token", "itl": "between tokens", "tpot": "per token"}


def batch_blocks(trace: Trace) -> list[Block]:
    """The kinds of batches that an engine ran, if its ranges name any."""
    try:
        kinds = batches(trace.spans, trace.tracks, trace.ops, trace.kernels, trace.devices, by="kind")
    except MissingTable:
        return []
    wanted = ("kind", "n_batches", "dur_ns", "p90_ns", "tokens_per_s", "n_requests", "n_tokens", "mbu_ratio")
    shown = kinds.select(c for c in wanted if kinds[c].null_count() < kinds.height)
    return [Block("Batches", BATCHES, shown, "show batches")]


def request_blocks(trace: Trace) -> list[Block]:
    """What requests took, and the slowest of them with the cause; none without requests."""
    try:
        table = requests(trace.requests, trace.histograms)
    except MissingTable:
        return []
    blocks = [Block("Requests", REQUEST_SUMMARY, _known(table), "show requests")]
    if not trace.requests.is_empty():
        slow = requests(trace.requests, spans=trace.spans, tracks=trace.tracks, by="request")
        slow = slow.filter(pl.col("cause").is_not_null()).head(_SLOWEST).select(_OF_SLOW)
        if slow.height:
            blocks.append(Block("Slowest requests", REQUEST_SUMMARY, _known(slow), "show requests --by request"))
    return blocks


def _known(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(c for c in frame.columns if frame[c].null_count() < frame.height)


def summary_of_requests(trace: Trace) -> Summary:
    """What requests took, of files that hold nothing else."""
    table = requests(trace.requests, trace.histograms)
    blocks = request_blocks(trace)
    if not trace.counters.is_empty():
        used = counters(trace.counters).filter(pl.col("max") != 0).select("device", "metric", "mean", "max")
        blocks.append(Block("Other metrics", COUNTER_SUMMARY, used, "show counters"))
    times = pl.concat([trace.requests["ts_ns"], trace.histograms["ts_ns"]]).drop_nulls()
    has_clock = trace.meta.origin_unix_ns is not None and times.len() > 0
    return Summary(
        trace.meta,
        recorded_ns=int(np.ptp(times.to_numpy())) if has_clock else 0,
        tables=tuple(blocks),
        quality=lacks_of_issues(trace.issues),
        issues=trace.issues,
        facts=tuple(_facts(table, trace)),
    )


def _facts(table: pl.DataFrame, trace: Trace) -> list[str]:
    """How many requests there were, and what their first token and the time between tokens took."""
    n, failed = trace.requests.height, int((~trace.requests["is_ok"]).sum() or 0)
    facts = [counted(n, "request") + (f" ({failed:,} failed)" if failed else "")] if n else []
    for metric, name in _NAMES.items():
        rows = table.filter(pl.col("metric") == metric).head(1).iter_rows(named=True)
        facts += [f"{name} p50 {_bounds(row, 'p50')}, p99 {_bounds(row, 'p99')}" for row in rows]
    return facts


def _bounds(row: dict[str, float | None], name: str) -> str:
    low, high = row[f"{name}_ns"], row[f"{name}_high_ns"]
    return duration(low) if row["max_ns"] is not None else f"{duration(low)} to {duration(high) if high else 'more'}"
