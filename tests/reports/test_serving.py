from __future__ import annotations

import polars as pl

import stepscope
from stepscope.core.request_tables import HISTOGRAMS, REQUESTS
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
