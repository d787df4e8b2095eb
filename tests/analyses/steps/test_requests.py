from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS, run

from stepscope.analyses.steps.requests import requests
from stepscope.core.errors import MissingTable
from stepscope.core.request_tables import HISTOGRAMS, REQUESTS

MS = 10**6


def table(*rows):
    return REQUESTS.conform(pl.DataFrame(rows, infer_schema_length=None).with_row_index("request"))


def scrapes(*counts, metric="vllm:time_to_first_token_seconds", totals=None):
    """Scrapes a second apart with counts up to 0.1 s, 0.5 s and above."""
    totals = totals or [None] * len(counts)
    rows = [
        {"ts_ns": at * 10**9, "metric": metric, "engine": "e", "up_to": le, "n": n,
         "total": total if le is None else None}
        for at, (of_scrape, total) in enumerate(zip(counts, totals, strict=True))
        for le, n in zip((0.1, 0.5, None), of_scrape, strict=True)
    ]  # fmt: skip
    return HISTOGRAMS.conform(pl.DataFrame(rows))


def test_percentiles_of_requests_are_those_of_their_times():
    times = np.random.default_rng(1).integers(1, 10**9, 57)
    row = requests(table(*({"ttft_ns": int(ns)} for ns in times))).row(0, named=True)
    assert (row["metric"], row["n"], row["max_ns"]) == ("ttft", 57, times.max())
    assert [row["p50_ns"], row["p90_ns"], row["p99_ns"]] == pytest.approx(np.percentile(times, [50, 90, 99]))
    assert row["p50_high_ns"] is None


def test_percentiles_of_a_histogram_lie_between_the_ends_of_their_bucket():
    row = requests(histograms=scrapes((60, 95, 100), totals=[20.0])).row(0, named=True)
    assert (row["metric"], row["engine"], row["n"], row["mean_ns"]) == ("ttft", "e", 100, 200 * MS)
    bounds = [(row[f"{q}_ns"], row[f"{q}_high_ns"]) for q in ("p50", "p90", "p99")]
    assert bounds == [(0, 100 * MS), (100 * MS, 500 * MS), (500 * MS, None)]


def test_bounds_hold_for_any_values():
    random = np.random.default_rng(2)
    for _ in range(50):
        values = random.exponential(0.2, 40)
        counts = (int((values <= 0.1).sum()), int((values <= 0.5).sum()), 40)
        row = requests(histograms=scrapes(counts)).row(0, named=True)
        for name, at in (("p50", 50), ("p90", 90), ("p99", 99)):
            exact = np.percentile(values, at, method="inverted_cdf") * 1e9
            assert row[f"{name}_ns"] <= exact <= (row[f"{name}_high_ns"] or np.inf)


def test_of_several_scrapes_the_increase_counts_also_after_a_restart():
    assert requests(histograms=scrapes((10, 20, 30), (10, 25, 40)))["n"].to_list() == [10]
    each = requests(histograms=scrapes((10, 20, 30), (15, 25, 40), (5, 5, 5)), by="scrape")
    assert each.select("ts_ns", "n").rows() == [(10**9, 10), (2 * 10**9, 5)]


def test_a_scrape_without_requests_has_no_row():
    assert requests(histograms=scrapes((0, 0, 0))).is_empty()
    assert requests(histograms=scrapes((1, 2, 3), metric="vllm:iteration_tokens_total")).is_empty()


def test_names_of_histograms_say_what_they_measure_and_its_unit():
    names = {
        "sglang:inter_token_latency_seconds": "itl", "vllm:request_time_per_output_token_seconds": "tpot",
        "vllm:request_queue_time_seconds": "queue", "x:e2e_request_latency_ms": "e2e",
    }  # fmt: skip
    for name, metric in names.items():
        row = requests(histograms=scrapes((9, 9, 9), metric=name)).row(0, named=True)
        assert row["metric"] == metric
        assert row["p50_high_ns"] == (0.1 * MS if name.endswith("_ms") else 100 * MS)


def request(start_ms, ttft_ms, e2e_ms, tokens, **more):
    return {"ts_ns": start_ms * MS, "ttft_ns": ttft_ms * MS, "e2e_ns": e2e_ms * MS, "output_tokens": tokens,
            "decode_ns": (e2e_ms - ttft_ms) * MS, **more}  # fmt: skip


def profile(*kinds):
    """Batches of 10 ms each, one after the other, of which a prefill takes 80 ms and `gap` is a time without work."""
    rows, at = [], 1
    for kind in kinds:
        ms = 80 if kind == "prefill" else 10
        if kind != "gap":
            name = "step[DECODE bs=4]" if kind == "decode" else "step[EXTEND bs=1 toks=512]"
            rows.append((name, at * 1000, 9_000, at * 1000 + 10, ms * 1000 - 10))
        at += ms
    return run(*rows)


@pytest.mark.parametrize(
    ("kinds", "cause", "batch"),
    [
        (["decode"] * 5 + ["prefill"] + ["decode"] * 4, "prefill of others", "prefill"),
        (["decode"] * 5 + ["gap"] * 8 + ["decode"] * 4, "host", "decode"),
        (["decode"] * 17, "preemption", "decode"),
    ],
)
def test_the_batches_after_the_first_token_say_why_a_request_was_slow(kinds, cause, batch):
    alike = [request(start_ms=5000, ttft_ms=10, e2e_ms=60, tokens=6)] * 10
    slow = request(start_ms=1, ttft_ms=10, e2e_ms=160, tokens=10, queue_ns=0)
    spans = profile(*kinds)
    rows = requests(table(*alike, slow), spans=spans, tracks=TABLE_OF_TRACKS, by="request")
    first = rows.row(0, named=True)
    assert (first["request"], first["cause"], first["batch_kind"]) == (10, cause, batch)
    assert rows["cause"].null_count() == 10
    assert rows["host_ns"].null_count() == 10  # the profile does not cover the others


def test_a_long_queue_needs_no_profile():
    alike = [request(start_ms=5000, ttft_ms=10, e2e_ms=60, tokens=6, queue_ns=0, prefill_ns=10 * MS)] * 10
    slow = request(start_ms=1, ttft_ms=90, e2e_ms=140, tokens=10, queue_ns=80 * MS, prefill_ns=10 * MS)
    assert requests(table(*alike, slow), by="request")["cause"][0] == "queue"


def test_nothing_to_say_names_what_is_missing():
    with pytest.raises(MissingTable, match="requests"):
        requests()
    with pytest.raises(MissingTable, match="requests"):
        requests(histograms=scrapes((1, 2, 3)), by="request")
