"""What requests to an engine felt: times to the first token, between tokens, in the queue; and why slow ones were slow.

Requests that were measured one by one give exact percentiles. Histograms of an engine's metrics give bounds: the ends
of the bucket that a percentile lies in.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepscope.analyses.common.analysis import analysis_of
from stepscope.analyses.steps.batches import timed_batches
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import covered, intersection, reached, union
from stepscope.core.request_tables import HISTOGRAMS, REQUESTS
from stepscope.core.schema import SPANS, TRACKS
from stepscope.core.table import Column, Table

By = Literal["metric", "scrape", "request"]
Ints = NDArray[np.int64]
#: Measures of a request, by column of the table `requests`.
_MEASURES = {
    "e2e": "e2e_ns", "ttft": "ttft_ns", "tpot": "itl_ns", "longest_itl": "longest_itl_ns", "queue": "queue_ns",
    "prefill": "prefill_ns", "decode": "decode_ns",
}  # fmt: skip
#: Histograms of engines, by what their names hold; the first that matches.
_HISTOGRAMS = (
    (r"time_to_first_token|inference_first_response", "ttft"), (r"request_time_per_output_token", "tpot"),
    (r"inter_token_latency|time_per_output_token", "itl"),
    (r"e2e_request_latency|^(?:tgi|dynamo_frontend)_request_duration(?:_seconds)?$", "e2e"),
    (r"queue_time|request_queue_duration", "queue"), (r"prefill_time", "prefill"), (r"decode_time", "decode"),
)  # fmt: skip
_ORDER = ("e2e", "ttft", "itl", "tpot", "longest_itl", "queue", "prefill", "decode")
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: Requests that take as long as the slowest tenth are slow; for so many the slowest batch is looked up.
_SLOW, _MOST_SLOW = 0.9, 1_000
#: What a request's time consists of, and what it is called as a cause.
CAUSES = {
    "queue_ns": "queue", "prefill_ns": "own prefill", "prefill_between_ns": "prefill of others",
    "preempted_ns": "preemption", "host_ns": "host", "rest_ns": "decode",
}  # fmt: skip
#: Fewer batches without a token for a request say nothing: clocks and ends of windows are not so exact.
_LEAST_MISSED, _LEAST_REQUESTS = 2, 10

_PERCENTILES = tuple(
    column
    for name, what in (("p50", "half"), ("p90", "nine of ten"), ("p99", "99 of 100"))
    for column in (
        Column(f"{name}_ns", pl.Float64(), f"what {what} do not exceed; of a histogram at least so much", "ns"),
        Column(f"{name}_high_ns", pl.Float64(), "of a histogram: at most so much; null: its last bucket is open", "ns"),
    )
)
REQUEST_SUMMARY = Table(
    "requests",
    "what requests to an engine took",
    (
        Column("ts_ns", pl.Int64(), "of a request: when it was sent; of a scrape: its time; from the origin", "ns",
               key=True),
        Column("metric", pl.String(), "e2e, ttft (first token), itl (between tokens), tpot (their mean in a request),"
               " longest_itl, queue, prefill, decode", key=True),
        Column("engine", pl.String(), "labels of the engine's histogram; null: requests measured one by one", key=True),
        Column("n", pl.Float64(), "how many values; of several scrapes, those after the first"),
        Column("mean_ns", pl.Float64(), "their mean", "ns"),
        *_PERCENTILES,
        Column("max_ns", pl.Float64(), "the largest", "ns"),
        Column("request", pl.Int64(), "number of the request (by request)", key=True),
        Column("id", pl.String(), "its name (by request)"),
        *(Column(name, pl.Float64(), REQUESTS.column(name).doc + " (by request)", "ns")
          for name in ("e2e_ns", "ttft_ns", "itl_ns", "longest_itl_ns", "queue_ns", "prefill_ns")),
        Column("prefill_between_ns", pl.Float64(), "after its first token: prefill of others (by request)", "ns"),
        Column("preempted_ns", pl.Float64(), "time of batches that brought it no token (by request)", "ns"),
        Column("host_ns", pl.Float64(), "after its first token: no device work of a batch (by request)", "ns"),
        Column("rest_ns", pl.Float64(), "the rest after its first token: decode (by request)", "ns"),
        Column("prompt_tokens", pl.Int64(), "tokens of the prompt (by request)"),
        Column("output_tokens", pl.Int64(), "tokens that it got (by request)"),
        Column("cause", pl.String(), "of slow ones: the part that exceeds the median request's most (by request)"),
        Column("slowest_batch", pl.Int64(), "of slow ones: the longest batch after the first token (by request)"),
        Column("batch_kind", pl.String(), "what that was: prefill, decode or mixed (by request)"),
        Column("batch_ns", pl.Int64(), "and how long it took (by request)", "ns"),
    ),
)  # fmt: skip
_OF_METRICS = ("metric", "engine", "n", "mean_ns", *(column.name for column in _PERCENTILES), "max_ns")
_AT = list(REQUEST_SUMMARY.dtypes).index("request")


def requests(
    requests: pl.DataFrame = REQUESTS.empty(),
    histograms: pl.DataFrame = HISTOGRAMS.empty(),
    spans: pl.DataFrame = SPANS.empty(),
    tracks: pl.DataFrame = TRACKS.empty(),
    *,
    by: By = "metric",
) -> pl.DataFrame:
    """One row per measure of requests, per measure and scrape, or per request, the slowest first.

    The main columns are `metric`, `n`, `p50_ns`, `p90_ns` and `p99_ns`. Percentiles of a histogram are bounds: `p50_ns`
    and `p50_high_ns` are the ends of the bucket. Of several scrapes the increase from the first to the last counts; an
    engine that was started anew counts from 0.

    By request, with a profile of the same time: `prefill_between_ns`, `preempted_ns` and `host_ns` are parts of the
    time after the first token. They are known of requests of which the profile covers that time. A batch in which
    others are in prefill counts as far as it is longer than a decode batch. Batches that end in that time and brought
    the request no token say that it was preempted. Engines that emit several tokens at once (speculative decoding) hide
    that. Of fewer than 10 requests none is called slow.

    Units: ns.
    Source: measures as in the benchmarks of vLLM and SGLang; percentiles are interpolated linearly, as there.
    Raises MissingTable (no requests, no histograms), UnknownName (by).
    """
    if requests.is_empty() and (by == "request" or histograms.is_empty()):
        hint = "name a file of requests or a scrape of the engine's metrics, as docs/serving.md says"
        raise MissingTable("requests to an engine", needed_by="requests", hint=hint)
    if by == "request":
        rows = _explained(requests, spans, tracks)
        return _as_result(rows.sort("e2e_ns", "request", descending=[True, False], nulls_last=True))
    known = _of_histograms(histograms, each=by == "scrape")
    exact = _exact(requests) if by == "metric" else known.clear()
    order = pl.col("metric").replace_strict({name: i for i, name in enumerate(_ORDER)}, return_dtype=pl.Int64)
    rows = pl.concat([exact, known], how="diagonal")
    rows = rows.sort("ts_ns", order, "engine") if by == "scrape" else rows.sort(order, "engine", maintain_order=True)
    return REQUEST_SUMMARY.conform(rows).select(["ts_ns"] * (by == "scrape") + [*_OF_METRICS])


def slowest_requests(requests: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame, n: int) -> pl.DataFrame:
    """The first `n` rows by request of those that have a cause."""
    rows = _explained(requests, spans, tracks).filter(pl.col("cause").is_not_null())
    rows = rows.sort("e2e_ns", "request", descending=[True, False]).head(n)
    return _as_result(rows)


def _as_result(rows: pl.DataFrame) -> pl.DataFrame:
    return REQUEST_SUMMARY.conform(rows).select(list(REQUEST_SUMMARY.dtypes)[_AT:])


def _exact(table: pl.DataFrame) -> pl.DataFrame:
    """A row per measure of requests that were measured one by one."""
    rows = []
    for metric, name in _MEASURES.items():
        values = table[name].drop_nulls().cast(pl.Float64)
        if values.len():
            quantiles = {f"{q}_ns": values.quantile(at, "linear") for q, at in _QUANTILES.items()}
            rows.append({"metric": metric, "n": float(values.len()), "mean_ns": values.mean(), "max_ns": values.max(),
                         **quantiles})  # fmt: skip
    return pl.DataFrame(rows, {name: REQUEST_SUMMARY.dtypes[name] for name in ("ts_ns", *_OF_METRICS)})


def _of_histograms(histograms: pl.DataFrame, *, each: bool) -> pl.DataFrame:
    """A row per measure and engine, and with `each` per scrape: mean, and bounds of percentiles."""
    named = histograms.with_columns(pl.col("metric", "engine").cast(pl.String))
    measure: pl.Expr = pl.lit(None, pl.String)
    for pattern, metric in reversed(_HISTOGRAMS):
        measure = pl.when(pl.col("metric").str.contains(pattern)).then(pl.lit(metric)).otherwise(measure)
    unit = pl.when(pl.col("metric").str.contains(r"_(?:ms|milliseconds)$")).then(1e6).otherwise(1e9)
    named = named.with_columns(measure=measure, unit=unit).drop_nulls("measure")
    series, scrape = ["metric", "engine", "up_to"], ["metric", "engine", "ts_ns"]
    named = named.sort("ts_ns").with_columns(
        n_before=pl.col("n").shift().over(series), total_before=pl.col("total").shift().over(series)
    )
    restarted = (pl.col("n") < pl.col("n_before")).any().over(scrape)
    is_first = (pl.col("ts_ns") == pl.col("ts_ns").min()) & (pl.col("ts_ns") < pl.col("ts_ns").max())
    since = [pl.when(restarted).then(0.0).otherwise(pl.col(c).fill_null(0.0)) for c in ("n_before", "total_before")]
    grown = named.with_columns(n=pl.col("n") - since[0], total=pl.col("total") - since[1])
    grown = grown.filter(~is_first.over("metric", "engine"))
    keys = ["measure", "engine", "metric", *["ts_ns"] * each]
    sums = grown.group_by(*keys, "up_to").agg(pl.col("n", "total").sum(), pl.col("unit").first())
    sums = sums.sort("up_to", nulls_last=True).with_columns(n_all=pl.col("n").max().over(keys))
    sums = sums.filter(pl.col("n_all") > 0)
    bounds = {}
    for name, at in _QUANTILES.items():
        is_below = pl.col("n") < at * pl.col("n_all")
        bounds[f"{name}_ns"] = pl.col("up_to").filter(is_below).last().fill_null(0.0) * pl.col("unit").first()
        bounds[f"{name}_high_ns"] = pl.col("up_to").filter(~is_below).first() * pl.col("unit").first()
    mean = pl.col("total").filter(pl.col("up_to").is_null()).first() / pl.col("n_all").first() * pl.col("unit").first()
    rows = sums.group_by(keys, maintain_order=True).agg(n=pl.col("n_all").first(), mean_ns=mean, **bounds)
    return rows.drop("metric").rename({"measure": "metric"})


def _explained(table: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """The requests with the parts of their time, and for slow ones what made them so."""
    rows = table.with_columns(_parts(table, spans, tracks))
    known = pl.sum_horizontal(pl.col("prefill_between_ns", "preempted_ns", "host_ns").fill_null(0))
    rows = rows.with_columns(rest_ns=(pl.col("decode_ns") - known).clip(0))
    rows = rows.with_columns(pl.col(list(CAUSES)).cast(pl.Float64))
    slow = pl.col("e2e_ns") >= pl.col("e2e_ns").quantile(_SLOW)
    excess = {c: pl.col(c) - pl.col(c).median() for c in CAUSES}
    if 0 < rows["host_ns"].count() < _LEAST_REQUESTS:  # the profile covers too few to say what is usual
        excess |= {c: pl.col(c) for c in ("prefill_between_ns", "preempted_ns", "host_ns")}
        excess["rest_ns"] = pl.col("rest_ns") - pl.col("decode_ns").median()
    most = pl.max_horizontal(*excess.values())
    cause: pl.Expr = pl.lit(None, pl.String)
    for name, label in reversed(CAUSES.items()):
        cause = pl.when(excess[name] == most).then(pl.lit(label)).otherwise(cause)
    is_spread = (pl.col("e2e_ns").max() > pl.col("e2e_ns").median()) & (pl.len() >= _LEAST_REQUESTS)
    return rows.with_columns(cause=pl.when(slow & is_spread & (most > 0)).then(cause))


def _parts(table: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame) -> list[pl.Series]:
    """What batches say of the time after the first token of each request; null without batches."""
    placed = table.select(low=pl.col("ts_ns") + pl.col("ttft_ns"), high=pl.col("ts_ns") + pl.col("e2e_ns"))
    try:
        batches, work = timed_batches(spans, tracks)
    except MissingTable:
        unknown = ("prefill_between_ns", "preempted_ns", "host_ns")
        return [pl.Series(name, [None] * table.height, pl.Float64) for name in unknown]
    starts = np.maximum.accumulate(batches["from_ns"].to_numpy())
    ends = np.maximum(batches["from_ns"].to_numpy() + batches["dur_ns"].to_numpy(), starts)
    is_inside = placed.select(
        (pl.col("low") >= int(starts.min())) & (pl.col("high") <= int(ends.max())) & (pl.col("low") <= pl.col("high"))
    ).to_series().fill_null(value=False)  # fmt: skip
    lows, highs = (placed[c].fill_null(0).cast(pl.Int64).to_numpy() for c in ("low", "high"))
    kinds = batches["kind"]
    busy = union(work["ts_ns"].to_numpy(), work["end_ns"].to_numpy())
    typical = _mean(batches.filter(kinds == "decode")["dur_ns"])
    between = covered(intersection(_of_kind(starts, ends, kinds == "prefill"), busy), lows, highs).astype(np.float64)
    longer = max(1 - typical / max(_mean(batches.filter(kinds == "mixed")["dur_ns"]), 1.0), 0.0)
    between += covered(intersection(_of_kind(starts, ends, kinds == "mixed"), busy), lows, highs) * longer
    ended = np.sort(ends[(kinds != "prefill").to_numpy()])
    brought = np.searchsorted(ended, highs, "right") - np.searchsorted(ended, lows, "right")
    missed = pl.Series(brought) - (table["output_tokens"] - 1)
    missed = pl.select(pl.when(missed >= _LEAST_MISSED).then(missed).otherwise(missed * 0)).to_series()
    columns = {
        "prefill_between_ns": pl.Series(between),
        "preempted_ns": missed * typical,
        "host_ns": pl.Series(np.maximum(highs - lows - covered(busy, lows, highs), 0)),
    }
    longest = _longest_batches(table, batches, starts, ends, lows, highs, is_inside)
    return [
        pl.select(pl.when(is_inside).then(values).alias(name)).to_series() for name, values in columns.items()
    ] + longest


def _mean(values: pl.Series) -> float:
    """The mean; 0 of nothing."""
    return float(values.to_numpy().mean()) if values.len() else 0.0


def _of_kind(starts: Ints, ends: Ints, chosen: pl.Series) -> tuple[Ints, Ints]:
    rows = chosen.to_numpy()
    return union(starts[rows], ends[rows])


def _longest_batches(
    table: pl.DataFrame, batches: pl.DataFrame, starts: Ints, ends: Ints, lows: Ints, highs: Ints, inside: pl.Series
) -> list[pl.Series]:
    """For the slowest requests the longest batch after their first token: slowest_batch, batch_kind, batch_ns."""
    slow = table.with_row_index("row").filter(
        inside, pl.col("e2e_ns") >= table.select(pl.col("e2e_ns").quantile(_SLOW)).to_series()
    )
    rows = slow.sort("e2e_ns", descending=True)["row"].head(_MOST_SLOW).to_numpy().astype(np.int64)
    at, number = reached(lows[rows], highs[rows], (starts, ends))
    pairs = pl.DataFrame({"row": rows[at], "batch": number}).with_columns(batches["dur_ns", "kind"][number])
    longest = pairs.sort("dur_ns", descending=True).unique("row", keep="first")
    every = pl.DataFrame({"row": np.arange(table.height)}).join(longest, on="row", how="left", maintain_order="left")
    return [every["batch"].alias("slowest_batch"), every["kind"].alias("batch_kind"), every["dur_ns"].alias("batch_ns")]


ANALYSIS = analysis_of(requests, REQUEST_SUMMARY, "What requests to a server took, and why slow ones were slow.")
