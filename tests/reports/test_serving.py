from __future__ import annotations

import polars as pl
import pytest
from batch_traces import TABLE_OF_TRACKS, spans_of
from msgspec.structs import replace

import stepscope
from stepscope.core.request_tables import REQUESTS
from stepscope.core.trace import Meta, Run, Trace
from stepscope.reports._serving import Serving

MS = 10**6


DECODE, PREFILL = "step[DECODE bs=4]", "step[EXTEND bs=1 toks=512]"


def served(*batches, launch="cudaGraphLaunch", n_launches=1, host=9, extra=(), waits=False):
    """A trace of batches (name, start, end of its device work, of how many µs), all in µs, and other host spans.

    With `waits` the host waits for the work of each.
    """
    rows = []
    for name, start, end, busy in batches:
        rows.append(("user_range", name, start, host, None))
        if waits:
            rows.append(("runtime", "cudaStreamSynchronize", start + 2, end - start - 2, None))
        for i in range(n_launches):
            at = start + (end - start) * (i + 1) / n_launches - busy / n_launches
            rows.append(("runtime", launch, at - 0.6 if n_launches > 1 else start + 1, 0.5, None))
            rows.append(("kernel", "gemm", at, busy / n_launches, len(rows) - 1))
    rows += [("user_range", name, start, dur, None) for name, start, dur in extra]
    spans = spans_of(*rows)
    tables = {"spans": spans, "tracks": TABLE_OF_TRACKS}
    return Trace(Meta("p.json", "kineto", n_events=spans.height), tables)


def titles(trace):
    return [finding.title for finding in stepscope.report(trace).findings]


def test_the_headline_is_that_of_serving():
    trace = served(*[(DECODE, 100 * i, 100 * i + 100, 99) for i in range(10)], (PREFILL, 1000, 1400, 399))
    facts = "decode step 100 µs for 4 requests, 40,000 tokens/s · prefill 400 µs for 512 tokens, 1.28 M tokens/s"
    assert facts in stepscope.report(trace).headline


def test_decode_that_waits_for_the_host_and_replays_no_graph_is_named():
    batches = [(DECODE, 100 * i, 100 * i + 100, 50) for i in range(10)]
    trace = served(*batches, launch="cudaLaunchKernel", n_launches=30, host=99)
    graphs, host, *_ = stepscope.report(trace).findings
    assert host.title.startswith("Decode waits for the host: launch-bound")
    assert host.gain.gain_ratio > 0.1
    assert host.details[0] == "The device works for 50 % of the time of decode steps"
    assert graphs.title == "Decode replays no graph: 30 launches a step"
    assert "--enforce-eager" in graphs.details[2]
    assert (graphs.gain.question, round(graphs.gain.gain_ratio, 1)) == ("launch: graphs", 0.5)


def test_steps_beyond_the_captured_sizes_are_counted():
    replayed = served(*[(DECODE, 100 * i, 100 * i + 50, 40) for i in range(6)])
    assert not [title for title in titles(replayed) if "graph" in title]
    batches = [(DECODE, 100 * i, 100 * i + 100, 50) for i in range(4)]
    eager = served(*batches, launch="cudaLaunchKernel", n_launches=30, host=99)
    rows = Serving.of(eager).each.with_columns(graph_ratio=pl.Series([1.0, 0.0, 0.0, 1.0]))
    (cost,) = Serving(eager, rows, rows)._graphs()
    assert cost.title == "2 of 4 decode steps replay no graph: 30 launches each"


def test_a_graph_in_pieces_is_named():
    batches = [(DECODE, 100 * i, 100 * i + 100, 50) for i in range(4)]
    pieces = served(*batches, n_launches=30, host=99)
    assert "Decode replays its graph in pieces: 30 graphs and 0 other launches a step" in titles(pieces)


def test_prefill_between_decode_steps_delays_them():
    kinds = [DECODE] * 5 + [PREFILL] + [DECODE] * 5
    at, batches = 0, []
    for kind in kinds:
        batches.append((kind, at, at + (300 if kind == PREFILL else 100), 295 if kind == PREFILL else 95))
        at = batches[-1][2]
    findings = stepscope.report(served(*batches, waits=True)).findings
    finding = next(one for one in findings if one.title.startswith("Prefill delays decode"))
    assert finding.value_ns == 300_000
    assert finding.gain.predicted_ns == pytest.approx(1_000_000, rel=0.02)
    assert "the longest wait for a token is 300 µs longer" in finding.details[0]
    assert not [title for title in titles(served(*batches[:6])) if title.startswith("Prefill")]


def test_empty_places_cost_what_a_place_takes():
    name = "execute_{}_context_0(sq0sk0sqsq0sqsk0)_generation_{}(sq{}sk900sqsq9sqsk900)"
    sizes = [(8, 8), (16, 12), (32, 20), (4, 4)] * 5
    batches, at = [], 0
    for size, n in sizes:
        batches.append((name.format(size, n, n), at, at + 100 + 10 * n, 90 + 10 * n))
        at = batches[-1][2]
    findings = stepscope.report(served(*batches, waits=True)).findings
    finding = next(one for one in findings if one.title.startswith("Padding"))
    assert "27 % of the places" in finding.title
    assert finding.value_ns == pytest.approx(5 * 16 * 10_000, rel=0.05)
    assert finding.gain.step_ns - finding.gain.predicted_ns == pytest.approx(5 * 16 * 10_000, rel=0.1)


def test_sampling_while_the_device_is_idle_is_named():
    batches = [(DECODE, 100 * i, 100 * i + 60, 55) for i in range(10)]
    extra = [("vllm/v1/sample/sampler.py(55): forward", 100 * i + 65, 30) for i in range(10)]
    findings = stepscope.report(served(*batches, extra=extra)).findings
    finding = next(one for one in findings if one.title.startswith("Sampling on the host"))
    assert finding.title.endswith("the device is idle in 27 µs a batch of it")
    assert (finding.value_ns, finding.gain.question) == (270_000, "sampling: free")
    assert finding.gain.gain_ratio > 0.2
    assert not [title for title in titles(served(*batches)) if "Sampling" in title]


def test_ranks_with_the_same_requests_say_them_once():
    requests = REQUESTS.conform(pl.DataFrame({"request": [0, 1], "ttft_ns": [MS, 2 * MS]}))
    traces = {}
    for rank in (0, 1):
        one = served(*[(DECODE, 100 * i, 100 * i + 100, 95) for i in range(4)]).with_tables(requests=requests)
        traces[f"rank{rank}.json"] = replace(
            one, meta=replace(one.meta, path=f"rank{rank}.json", rank=rank, world_size=2)
        )
    report = stepscope.report(Run(tuple(traces), traces.__getitem__))
    blocks = {block.title: block.frame for block in report.tables}
    assert blocks["Requests"]["metric"].to_list() == ["ttft"]
