"""What a report says of an engine that serves a model: its batches, and what requests took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.batch_names import is_sampling
from stepscope.analyses.resources.counters import COUNTER_SUMMARY, counters
from stepscope.analyses.steps.batches import BATCHES, batches, empty_places, laws, of_kinds, timed_batches
from stepscope.analyses.steps.requests import REQUEST_SUMMARY, requests, slowest_requests
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import gaps, intersection, total, union
from stepscope.core.names import map_names
from stepscope.core.report import Block
from stepscope.core.units import count, counted, duration, percent, sum_of
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._summary import ENDS, Cost, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace

_SLOWEST = 5
_NEARLY_ALL = 0.98
#: Decode waits for the host if the device is idle for so much of it; from there on graphs would help.
_HOST_BOUND, _WAITS = 0.1, 0.05
#: A step without graphs has less of its work in them than this, and at least so many launches.
_HARDLY, _MANY_LAUNCHES = 0.1, 20
#: So many graphs in a step are pieces of one.
_PIECES = 4
#: Idle time that the host does not cause, or that nobody knows the cause of.
_NOT_HOST = (ENDS, "idle kernel_wait", "idle other", "idle unlinked")
#: Idle time whose cause `predict` can take away by itself.
_MENDED = ("idle launching", "idle sync", "idle data_loading")
_PADDED, _SAMPLED = 0.05, 0.02
_HOST_CATEGORIES = ("operator", "python", "user_range", "module")
_OF_SLOW = ("request", "id", "e2e_ns", "ttft_ns", "cause", "queue_ns", "prefill_between_ns", "host_ns", "batch_kind",
            "batch_ns")  # fmt: skip
#: Metrics of vLLM, SGLang and TensorRT-LLM: part of the KV cache in use, requests stopped, requests in the queue.
_CACHE_USE = r"(?:kv_cache_usage_perc|gpu_cache_usage_perc|:token_usage|kv_cache_utilization)$"
_PREEMPTED = r"(?:num_preemptions(?:_total)?|num_retract\w+)$"
_WAITING = r"(?:num_requests_waiting|num_queue_reqs)$"
_OF_CACHE = f"{_CACHE_USE}|{_PREEMPTED}|{_WAITING}"
_FULL = 0.95
_CACHE_ADVICE = (
    "→ more memory for it (--gpu-memory-utilization of vLLM, --mem-fraction-static of SGLang), an FP8 cache, or fewer"
    " requests at once (--max-num-seqs, --max-running-requests)"
)
_NAMES = {"ttft": "first token", "itl": "between tokens", "tpot": "per token"}


@dataclass(frozen=True, slots=True)
class Serving:
    """The batches of a trace, one by one as the analysis gives them, and by kind."""

    trace: Trace
    each: pl.DataFrame
    kinds: pl.DataFrame

    @staticmethod
    def of(trace: Trace) -> Serving | None:
        """The batches that an engine ran; None if no range names any."""
        try:
            each = batches(trace.spans, trace.tracks, trace.ops, trace.kernels, trace.devices)
        except MissingTable:
            return None
        return Serving(trace, each, of_kinds(each))

    def block(self) -> Block:
        """The table of the kinds of batches."""
        wanted = ("kind", "n_batches", "dur_ns", "p90_ns", "tokens_per_s", "n_requests", "n_tokens", "mbu_ratio")
        return Block("Batches", BATCHES, _known(self.kinds.select(wanted)), "show batches")

    def facts(self) -> tuple[str, ...]:
        """For the headline: how long a step of each kind takes, for how much, and how fast that is."""
        facts = []
        for row in self.kinds.iter_rows(named=True):
            kind, tokens, mbu = row["kind"], row["tokens_per_s"], row["mbu_ratio"]
            what = {"decode": "decode step", "mixed": "mixed batch"}.get(kind, kind)
            amount = (row["n_requests"], "request") if kind == "decode" else (row["n_tokens"], "token")
            parts = [f"{what} {duration(row['dur_ns'])}"]
            parts[0] += f" for {counted(amount[0], amount[1])}" if amount[0] else ""
            parts += [f"{count(tokens)} tokens/s"] if tokens else []
            least = "" if (row["known_ratio"] or 0) > _NEARLY_ALL else "≥ "
            parts += [f"MBU {least}{percent(mbu)}"] if mbu is not None and kind == "decode" else []
            facts.append(", ".join(parts))
        return tuple(facts)

    def costs(self, costs: Sequence[Cost]) -> list[Cost]:
        """The costs of the device's time in the words of serving, and what batches alone show."""
        named = self._host_bound(costs)
        return [*named, *self._graphs(), *self._padding(), *self._prefill_between(), *self._sampling()]

    def _decode(self) -> pl.DataFrame:
        return self.each.filter((pl.col("kind") == "decode") & pl.col("busy_ratio").is_not_null())

    def _idle_ns(self) -> float:
        return _idle_ns_of(self._decode())

    def _idle_ratio(self) -> float:
        """Part of the time of decode steps in which the device is idle."""
        return self._idle_ns() / max(sum_of(self._decode()["dur_ns"]), 1)

    def _host_bound(self, costs: Sequence[Cost]) -> list[Cost]:
        """The costs, of which that with most idle time says that decode waits for the host, if it does so there."""
        idle = [cost for cost in costs if cost.kind.startswith("idle") and cost.kind not in _NOT_HOST and cost.ns]
        if not idle or self._idle_ratio() < _HOST_BOUND:
            return list(costs)
        most = max(idle, key=lambda cost: cost.ns or 0.0)
        if self._idle_ns() < (most.ns or 0.0) / 2:
            return list(costs)
        title = f"Decode waits for the host: {most.title[:1].lower()}{most.title[1:]}"
        busy = f"The device works for {percent(1 - self._idle_ratio())} of the time of decode steps"
        kind = most.kind if most.kind in _MENDED else "serving host"
        said = replace(most, kind=kind, title=title, details=(busy, *most.details))
        return [said if cost is most else cost for cost in costs]

    def _graphs(self) -> list[Cost]:
        """Decode steps that replay no graph, where the device waits for launches."""
        decode = self._decode().drop_nulls("graph_ratio")
        eager = decode.filter((pl.col("graph_ratio") < _HARDLY) & (pl.col("n_launches") >= _MANY_LAUNCHES))
        if self._idle_ratio() < _WAITS:
            return []
        if eager.is_empty():
            return _in_pieces(decode.filter(pl.col("n_graphs") >= _PIECES))
        launches = counted(round(_number(eager["n_launches"].median())), "launch", "launches")
        if eager.height == decode.height:
            title = f"Decode replays no graph: {launches} a step"
            advice = "→ have graphs captured: vLLM without --enforce-eager, SGLang without --disable-cuda-graph"
        else:
            title = f"{eager.height:,} of {decode.height:,} decode steps replay no graph: {launches} each"
            advice = "→ capture more sizes: cudagraph_capture_sizes of vLLM, --cuda-graph-max-bs of SGLang"
        replayed = decode.filter(pl.col("graph_ratio") >= _HARDLY)["dur_ns"].median()
        lasting = f"They take {duration(_number(eager['dur_ns'].median()))}"
        lasting += "" if replayed is None else f", others {duration(_number(replayed))}"
        return [Cost("serving graphs", title, _idle_ns_of(eager), (lasting, advice), "show batches")]

    def _padding(self) -> list[Cost]:
        """Empty places in decode steps that are filled up to a captured size."""
        decode = self._decode().filter(pl.col("padded_ratio").is_not_null() & (pl.col("padded_ratio") < 1))
        if decode.is_empty():
            return []
        places = decode.select(empty=empty_places().sum(), used=pl.col("n_requests").sum())
        empty, used = (float(x or 0) for x in places.row(0))
        if empty < _PADDED * (empty + used):
            return []
        law = laws(self.each).filter((pl.col("kind") == "decode") & pl.col("per_request_ns").is_not_null())
        title = f"Padding to captured sizes: {percent(empty / (empty + used))} of the places in decode steps are empty"
        advice = "→ capture sizes nearer to those that run, or let more requests run at once"
        if law.is_empty():
            unknown = "What it costs is unknown: steps of different sizes would say what a place takes"
            return [Cost("serving padding", title, None, (unknown, advice), "show batches --by kind")]
        each_ns = float(law["per_request_ns"][0])
        detail = f"A place takes {duration(each_ns)} of a step, by the steps of other sizes"
        return [Cost("serving padding", title, empty * each_ns, (detail, advice), "show batches --by law")]

    def _prefill_between(self) -> list[Cost]:
        """Prompts that are read while requests in decode wait for their next token."""
        is_decode = pl.col("kind") == "decode"
        typical = self.each.filter(is_decode)["dur_ns"].median()
        if typical is None:
            return []
        ordered = self.each.with_columns(before=is_decode.cum_sum(), after=is_decode.cum_sum(reverse=True))
        between = ordered.filter(~is_decode & (pl.col("before") > 0) & (pl.col("after") > 0)).with_columns(
            late_ns=pl.col("dur_ns") - pl.when(pl.col("kind") == "mixed").then(_number(typical)).otherwise(0.0)
        ).filter(pl.col("late_ns") > 0)  # fmt: skip
        if between.is_empty():
            return []
        longest = float(between.group_by("before").agg(pl.col("late_ns").sum())["late_ns"].to_numpy().max())
        title = "Prefill delays decode: running requests wait while prompts are read"
        mean = duration(float(between["dur_ns"].to_numpy().mean()))
        detail = f"{counted(between.height, 'batch', 'batches')}, mean {mean}, between decode steps of "
        detail += f"{duration(_number(typical))}; the longest wait for a token is {duration(longest)} longer"
        advice = "→ smaller chunks of prompts: --max-num-batched-tokens of vLLM, --chunked-prefill-size of SGLang"
        return [Cost("serving prefill", title, float(between["late_ns"].sum()), (detail, advice), "show batches")]

    def _sampling(self) -> list[Cost]:
        """Tokens that are chosen on the host while the device is idle."""
        rows, work = timed_batches(self.trace.spans, self.trace.tracks)
        spans = self.trace.spans.filter(pl.col("category").is_in(_HOST_CATEGORIES))
        spans = spans.filter(map_names(spans["name"], is_sampling, pl.Boolean()))
        low, high = int(rows["ts_ns"].to_numpy().min()), int((rows["from_ns"] + rows["dur_ns"]).to_numpy().max())
        idle = gaps(union(work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()), low, high)
        starts = spans["ts_ns"].to_numpy()
        ns = total(intersection(union(starts, starts + spans["dur_ns"].to_numpy()), idle))
        if ns < _SAMPLED * (high - low):
            return []
        title = f"Sampling on the host: the device is idle in {duration(ns / rows.height)} a batch of it"
        advice = "→ sample on the device: no penalties, grammars or processors of logits that run in Python"
        return [Cost("serving sampling", title, ns, (advice,), "show user-ranges")]


def _idle_ns_of(rows: pl.DataFrame) -> float:
    """The time of batches in which the device is idle."""
    return float((rows["dur_ns"] * (1 - rows["busy_ratio"])).sum())


def _in_pieces(decode: pl.DataFrame) -> list[Cost]:
    """Decode steps whose work is in many graphs with other launches between them."""
    if decode.is_empty():
        return []
    graphs, launches = (round(_number(decode[name].median())) for name in ("n_graphs", "n_launches"))
    title = f"Decode replays its graph in pieces: {graphs:,} graphs and {launches - graphs:,} other launches a step"
    advice = "→ capture whole steps: cudagraph_mode FULL_AND_PIECEWISE or FULL_DECODE_ONLY of vLLM"
    return [Cost("serving graphs", title, _idle_ns_of(decode), (advice,), "show batches")]


def _number(value: object) -> float:
    """A median of numbers, which Polars declares as anything."""
    return float(value) if isinstance(value, int | float) else 0.0


def request_blocks(trace: Trace) -> list[Block]:
    """What requests took, and the slowest of them with the cause; none without requests."""
    try:
        table = requests(trace.requests, trace.histograms)
    except MissingTable:
        return []
    blocks = [Block("Requests", REQUEST_SUMMARY, _known(table), "show requests")]
    if not trace.requests.is_empty():
        slow = slowest_requests(trace.requests, trace.spans, trace.tracks, _SLOWEST).select(_OF_SLOW)
        if slow.height:
            blocks.append(Block("Slowest requests", REQUEST_SUMMARY, _known(slow), "show requests --by request"))
    return blocks


def _known(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(c for c in frame.columns if frame[c].null_count() < frame.height)


def cache_costs(trace: Trace) -> list[Cost]:
    """That the KV cache is too small, by the metrics of an engine or by requests that it stopped for others."""
    metric = pl.col("metric").cast(pl.String)
    of_cache = metric.str.contains(_OF_CACHE) & pl.col("value").is_finite()
    known = trace.counters.filter(of_cache).sort("ts_ns", nulls_last=False)

    def values(pattern: str) -> pl.DataFrame:
        held = known.filter(metric.str.contains(pattern)).group_by("metric", "device")
        return held.agg(
            first=pl.col("value").first(), last=pl.col("value").last(), most=pl.col("value").max(), n=pl.len()
        )

    peak = _number(values(_CACHE_USE)["most"].max())
    peak = peak / 100 if peak > 1 else peak  # some state percent
    counted_up = values(_PREEMPTED).select(
        pl.when(metric.str.ends_with("_total") & (pl.col("n") > 1)).then(pl.col("last") - pl.col("first"))
        .otherwise("most").clip(0)
    ).to_series()  # fmt: skip
    stopped = max(sum_of(counted_up), sum_of(trace.requests["n_preemptions"].drop_nulls()))
    if peak < _FULL and not stopped:
        return []
    title = "The KV cache is too small for the requests that run at once"
    title += f": it is {percent(min(peak, 1.0))} full at its peak" if peak >= _FULL else ""
    details = [
        f"{counted(round(stopped), 'time')} a request was stopped for others, and its tokens computed again later"
    ]
    details = details if stopped else []
    waiting = _number(values(_WAITING)["most"].max())
    details += [f"Up to {counted(round(waiting), 'request')} waited to run"] if waiting else []
    return [Cost("serving cache", title, None, (*details, _CACHE_ADVICE), "show counters" if peak else "show requests")]


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
