from __future__ import annotations

import polars as pl

import stepscope
from stepscope.core.request_tables import EXPERT_TOKENS, HISTOGRAMS, REQUESTS
from stepscope.core.schema import COUNTERS
from stepscope.core.trace import Meta, Trace

MS = 10**6


def test_requests_alone_are_reported_with_the_slowest_and_their_cause():
    rows = [{"request": i, "e2e_ns": 100 * MS, "ttft_ns": 10 * MS, "queue_ns": 0, "is_ok": True} for i in range(19)]
    rows += [{"request": 19, "e2e_ns": 900 * MS, "ttft_ns": 810 * MS, "queue_ns": 800 * MS, "is_ok": True}]
    rows += [{"request": 20, "is_ok": False}]
    trace = Trace(Meta("r.jsonl", "requests", n_events=21), {"requests": REQUESTS.conform(pl.DataFrame(rows))})
    report = stepscope.report(trace)
    assert "21 requests (1 failed) · first token p50 10 ms, p99 658 ms" in report.headline
    slowest = next(block.frame for block in report.tables if block.title == "Slowest requests")
    assert slowest.select("request", "cause").row(0) == (19, "queue")


def test_metrics_alone_are_reported_with_bounds():
    rows = [{"ts_ns": 0, "metric": "vllm:time_to_first_token_seconds", "engine": "e", "up_to": le, "n": n}
            for le, n in ((0.1, 6), (0.5, 10), (None, 10))]  # fmt: skip
    report = stepscope.report(Trace(Meta("a.prom", "metrics"), {"histograms": HISTOGRAMS.conform(pl.DataFrame(rows))}))
    assert "first token p50 0 to 100 ms, p99 100 ms to 500 ms" in report.headline


def scraped(**metrics):
    """Metrics of two scrapes, a second apart."""
    rows = [{"ts_ns": at * 10**9, "metric": name.replace("__", ":"), "device": "engine=0", "value": float(value)}
            for name, values in metrics.items() for at, value in enumerate(values)]  # fmt: skip
    histogram = [{"ts_ns": 0, "metric": "vllm:e2e_request_latency_seconds", "engine": "e", "up_to": None, "n": 1.0}]
    tables = {
        "counters": COUNTERS.conform(pl.DataFrame(rows)),
        "histograms": HISTOGRAMS.conform(pl.DataFrame(histogram)),
    }
    return stepscope.report(Trace(Meta("a.prom", "metrics", n_events=9, origin_unix_ns=1), tables)).findings


def test_a_full_cache_is_named_with_stopped_and_waiting_requests():
    (finding,) = scraped(
        vllm__kv_cache_usage_perc=(0.5, 0.998),
        vllm__num_preemptions_total=(100, 103),
        vllm__num_requests_waiting=(7, 0),
    )
    assert finding.title.endswith("it is >99 % full at its peak") or "full at its peak" in finding.title
    assert finding.details[0].startswith("3 times a request was stopped")
    assert finding.details[1] == "Up to 7 requests waited to run"
    (finding,) = scraped(sglang__token_usage=(0.5, 0.6), sglang__num_retracted_reqs=(0, 2))
    assert "peak" not in finding.title
    assert finding.details[0].startswith("2 times")


def test_a_cache_with_room_is_no_finding():
    assert not scraped(vllm__kv_cache_usage_perc=(0.5, 0.9), vllm__num_preemptions_total=(100, 100))


def report_of(*rows):
    """Rows of phase, rank, tokens, of one layer with an expert on each rank."""
    frame = pl.DataFrame(rows, schema=["phase", "rank", "n_tokens"], orient="row")
    tokens = EXPERT_TOKENS.conform(frame.with_columns(layer=0, expert=0))
    return stepscope.report(Trace(Meta("decode_0.csv", "expert-hotspots", n_events=4), {"expert_tokens": tokens}))


def test_uneven_experts_are_a_finding_of_each_phase_with_the_advice_once():
    report = report_of(("decode", 0, 30), ("decode", 1, 10), ("prefill", 0, 26), ("prefill", 1, 14))
    assert "decode: 2 experts a layer, 1 layer, 40 tokens" in report.headline
    first, second = report.findings
    assert first.title == "Experts load ranks unevenly in decode: the busiest rank of a layer gets 1.50 × the mean"
    assert first.details[0].startswith("Spread evenly, experts would take 67 % of their time")
    assert "--enable-eplb" in first.details[-1]
    assert not any("eplb" in detail for detail in second.details)


def test_even_experts_are_none():
    report = report_of(("decode", 0, 20), ("decode", 1, 20))
    assert not report.findings
    assert report.quality[0].startswith("Only tokens by expert were counted")
