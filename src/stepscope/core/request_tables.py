"""Tables of an engine that serves a model: its requests one by one and as histograms, and the load of its experts."""

from __future__ import annotations

import polars as pl

from stepscope.core.table import Column, Name, Table

REQUESTS = Table(
    "requests",
    "a request to an engine that serves a model, as its client or the engine measured it",
    (
        Column("request", pl.Int64(), "its number, in the order of the file", key=True),
        Column("id", pl.String(), "its name"),
        Column("ts_ns", pl.Int64(), "when it was sent or arrived, from the trace's origin", "ns"),
        Column("e2e_ns", pl.Int64(), "until its last token (end to end)", "ns"),
        Column("ttft_ns", pl.Int64(), "until its first token, the queue included", "ns"),
        Column("itl_ns", pl.Float64(), "mean time between its output tokens after the first (inter-token latency)",
               "ns"),
        Column("longest_itl_ns", pl.Int64(), "longest time between two of its output tokens", "ns"),
        Column("queue_ns", pl.Int64(), "until it ran first", "ns"),
        Column("prefill_ns", pl.Int64(), "from then until its first token", "ns"),
        Column("decode_ns", pl.Int64(), "from its first token to its last one", "ns"),
        Column("prompt_tokens", pl.Int64(), "tokens of the prompt"),
        Column("output_tokens", pl.Int64(), "tokens that it got"),
        Column("cached_tokens", pl.Int64(), "tokens of the prompt that were in the cache"),
        Column("n_preemptions", pl.Int64(), "how often it was stopped for other requests"),
        Column("is_ok", pl.Boolean(), "whether it got its answer; null: not recorded"),
        Column("error", pl.String(), "what went wrong"),
    ),
    never_null=("request",),
)  # fmt: skip
HISTOGRAMS = Table(
    "histograms",
    "a bucket of a histogram of an engine, as one scrape of its metrics shows it: counts since the engine began",
    (
        Column("ts_ns", pl.Int64(), "when it was scraped, from the trace's origin", "ns", key=True),
        Column("metric", Name, "the histogram, as in vllm:time_to_first_token_seconds", key=True),
        Column("engine", Name, "its labels, as in engine=0,model_name=m", key=True),
        Column("up_to", pl.Float64(), "upper end of the bucket, in the metric's own unit; null: it has none", key=True),
        Column("n", pl.Float64(), "values up to there"),
        Column("total", pl.Float64(), "sum of all values, in rows without upper end"),
    ),
    never_null=("ts_ns", "metric", "n"),
)
EXPERT_TOKENS = Table(
    "expert_tokens",
    "how many tokens an expert of a model (MoE) got, as its engine counted them",
    (
        Column("phase", Name, "prefill or decode; null: not recorded", key=True),
        Column("layer", pl.Int64(), "number of the layer among those with experts", key=True),
        Column("rank", pl.Int32(), "the rank that holds the expert; null: not recorded", key=True),
        Column("expert", pl.Int64(), "number of the expert on its rank, or of all if no rank is recorded", key=True),
        Column("n_tokens", pl.Int64(), "tokens that it got in all of the recording"),
    ),
    never_null=("layer", "expert", "n_tokens"),
)
