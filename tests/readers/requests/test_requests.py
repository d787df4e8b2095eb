from __future__ import annotations

import gzip
import json
import os

import polars as pl
import pytest

import stepscope
from stepscope import load
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.readers import expand, side_files

MS, SECOND = 10**6, 10**9
#: What the benchmarks of vLLM and SGLang write of three requests, of which the last one failed.
BENCHMARK = {
    "backend": "vllm", "request_throughput": 2.0, "mean_ttft_ms": 100.0, "input_lens": [10, 20, 30],
    "output_lens": [3, 1, 0], "ttfts": [0.1, 0.2, 0.0], "itls": [[0.01, 0.05], [], []],
    "generated_texts": ["a", "b", ""], "errors": ["", "", "boom"],
}  # fmt: skip
LABELS = 'engine="0",model_name="m"'


def written(folder, text, name="requests.jsonl"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def lines(*rows):
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def issues(trace):
    return dict(trace.issues.select("code", "count").iter_rows())


@pytest.mark.parametrize("indent", [None, 1])
def test_a_result_of_vllms_benchmark_has_a_row_for_each_request(tmp_path, indent):
    trace = load(written(tmp_path, json.dumps(BENCHMARK, indent=indent), "result.json"))
    table = trace.requests
    assert table["ttft_ns"].to_list() == [100 * MS, 200 * MS, None]
    assert table["e2e_ns"].to_list() == [160 * MS, 200 * MS, None]
    assert table["longest_itl_ns"].to_list() == [50 * MS, None, None]
    assert table["itl_ns"].to_list() == [pytest.approx(30 * MS), None, None]
    assert table.select("prompt_tokens", "output_tokens", "is_ok", "error").rows()[2] == (30, 0, False, "boom")
    assert issues(trace) == {"requests_failed": 1}


def test_runs_of_sglangs_benchmark_are_lines_and_a_torn_one_is_counted(tmp_path):
    trace = load(written(tmp_path, lines(BENCHMARK, BENCHMARK, '{"ttfts": [0.1')))
    assert trace.requests.height == 6
    assert issues(trace)["torn_lines"] == 1


def test_averages_alone_are_refused_with_what_to_record(tmp_path):
    averages = {name: value for name, value in BENCHMARK.items() if not isinstance(value, list)}
    with pytest.raises(CorruptInput, match="averages and no single requests") as caught:
        load(written(tmp_path, json.dumps(averages), "result.json"))
    assert "--save-detailed" in caught.value.hint


ROWS = [
    {"request_id": "a", "arrival_time": 1_700_000_000.5, "ttft_ms": 100, "e2e_latency": 2.0, "output_tokens": 20},
    {"request_id": "b", "arrival_time": 1_700_000_001_500, "ttft_ms": 150, "e2e_latency": 3, "output_tokens": 21},
]


@pytest.mark.parametrize(
    "text", [lines(*ROWS), json.dumps(ROWS, indent=2), json.dumps({"model": "m", "requests": ROWS}), lines(*ROWS, "")]
)
def test_requests_are_lines_or_a_list_and_names_state_units(tmp_path, text):
    trace = load(written(tmp_path, text))
    assert trace.meta.origin_unix_ns == 1_700_000_000_500_000_000
    assert trace.requests.select("id", "ts_ns", "ttft_ns", "e2e_ns", "decode_ns").rows() == [
        ("a", 0, 100 * MS, 2 * SECOND, 1900 * MS), ("b", SECOND, 150 * MS, 3 * SECOND, 2850 * MS),
    ]  # fmt: skip
    assert trace.requests["itl_ns"].to_list() == pytest.approx([100 * MS, 142.5 * MS])


def test_vllms_metrics_of_a_response_count_the_first_token_from_when_it_was_scheduled(tmp_path):
    metrics = {"time_to_first_token_ms": 85, "generation_time_ms": 1240, "queue_time_ms": 15, "mean_itl_ms": 9}
    row = {"id": "c", "usage": {"prompt_tokens": 42, "completion_tokens": 128}, "metrics": metrics}
    table = load(written(tmp_path, lines(row, row))).requests
    assert table.select("queue_ns", "prefill_ns", "ttft_ns", "e2e_ns", "prompt_tokens", "output_tokens").row(0) == (
        15 * MS, 85 * MS, 100 * MS, 1340 * MS, 42, 128,
    )  # fmt: skip


def test_times_of_two_clocks_give_no_duration(tmp_path):
    row = {"arrival_time": 1_700_000_000.0, "queued_ts": 50.0, "scheduled_ts": 50.25, "first_token_ts": 50.5,
           "last_token_ts": 51.5}  # fmt: skip
    table = load(written(tmp_path, lines(row))).requests
    assert table.select("queue_ns", "ttft_ns", "prefill_ns", "decode_ns", "e2e_ns").row(0) == (
        250 * MS, 500 * MS, 250 * MS, SECOND, 1500 * MS,
    )  # fmt: skip


def test_what_is_no_request_is_left_out_and_counted(tmp_path):
    bad = ['{"ttft": tr', "[1]", '{"ttft": "x"}', '{"ttft": -1, "e2e_latency": NaN}', '{"e2e_latency": 1e300}']
    trace = load(written(tmp_path, lines({"ttft": 1, "itl": [1, 2]}, *bad, {"ttft": "2.5"}, '{"tt')))
    assert trace.requests["ttft_ns"].to_list() == [SECOND, 2500 * MS]
    assert issues(trace) == {"torn_lines": 4, "requests_dropped": 2}
    with pytest.raises(CorruptInput, match="not one request"):
        load(written(tmp_path, '{"ttft": "x"}\n'))


def test_fields_that_first_appear_late_are_read(tmp_path):
    text = lines(*[{"ttft": 0.5, "prompt": "x" * 100}] * 3000, *[{"ttft": 0.5, "queue_time": 0.25}] * 3000)
    assert load(written(tmp_path, text)).requests["queue_ns"].sum() == 3000 * 250 * MS


LIMITS = ("0.1", "0.5", "1.0", "+Inf")


def histogram(*counts, name="vllm:time_to_first_token_seconds", labels=LABELS, total=1.0):
    """A histogram with buckets up to 0.1 s, 0.5 s, 1 s and above."""
    rows = [f'{name}_bucket{{{labels},le="{le}"}} {n}' for le, n in zip(LIMITS, counts, strict=True)]
    return "\n".join([f"# TYPE {name} histogram", *rows, f"{name}_sum{{{labels}}} {total}",
                      f"{name}_count{{{labels}}} {counts[-1]}", ""])  # fmt: skip


GAUGE = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{LABELS}}} 3\n"


def test_a_scrape_gives_histograms_and_counters(tmp_path):
    trace = load(written(tmp_path, GAUGE + histogram(1, 3, 4, 4, total=2.5) + "# EOF\n", "a.prom"))
    assert trace.histograms.select(pl.col("metric", "engine").cast(pl.String), "up_to", "n", "total").rows() == [
        ("vllm:time_to_first_token_seconds", "engine=0,model_name=m", 0.1, 1, None),
        ("vllm:time_to_first_token_seconds", "engine=0,model_name=m", 0.5, 3, None),
        ("vllm:time_to_first_token_seconds", "engine=0,model_name=m", 1.0, 4, None),
        ("vllm:time_to_first_token_seconds", "engine=0,model_name=m", None, 4, 2.5),
    ]
    assert trace.counters.select(pl.col("metric", "device").cast(pl.String), "value").rows() == [
        ("vllm:num_requests_running", "engine=0,model_name=m", 3)
    ]


def test_scrapes_of_a_folder_are_one_trace_in_order_of_time(tmp_path):
    for at, n in ((1_700_000_010, 2), (1_700_000_002, 1), (1_700_000_100, 3)):
        written(tmp_path, histogram(n, n, n, n), f"metrics-{at}.txt")
    written(tmp_path, "no metrics", "readme.txt")
    (path,) = expand([str(tmp_path)])
    trace = load(path)
    assert trace.meta.origin_unix_ns == 1_700_000_002 * SECOND
    rows = trace.histograms.filter(pl.col("up_to").is_null()).select("ts_ns", "n").rows()
    assert rows == [(0, 1), (8 * SECOND, 2), (98 * SECOND, 3)]


def test_times_are_those_of_samples_then_names_then_files(tmp_path):
    stamped = histogram(1, 1, 1, 1).replace("} 1\n", "} 1 1700000000123\n")
    assert load(written(tmp_path, stamped, "a.prom")).meta.origin_unix_ns == 1_700_000_000_123 * MS
    for number, name in enumerate(("b2.prom", "b10.prom")):
        os.utime(written(tmp_path, histogram(number, 1, 1, 1), name), ns=(0, (5 + number) * SECOND))
    trace = load(str(tmp_path / "b10.prom"))
    assert (trace.meta.origin_unix_ns, trace.histograms["ts_ns"].max()) == (5 * SECOND, SECOND)
    os.utime(tmp_path / "b2.prom", ns=(0, 6 * SECOND))
    trace = load(str(tmp_path / "b10.prom"))
    assert trace.meta.origin_unix_ns is None
    assert trace.issues.select("code", "severity").rows() == [("scrape_times", "warning")]


def test_bad_lines_and_histograms_are_left_out_and_counted(tmp_path):
    bad = "garbage {{{\nvllm:x nope\nvllm:y NaN\n"
    falling = histogram(5, 3, 4, 4, name="vllm:e2e_request_latency_seconds")
    miscounted = histogram(1, 2, 3, 4, name="vllm:request_queue_time_seconds").replace("count{", "count{").replace(
        f"_count{{{LABELS}}} 4", f"_count{{{LABELS}}} 9"
    )  # fmt: skip
    trace = load(written(tmp_path, bad + histogram(1, 3, 4, 4) + falling + miscounted + GAUGE + GAUGE, "a.prom"))
    assert trace.histograms["metric"].cast(pl.String).unique().to_list() == ["vllm:time_to_first_token_seconds"]
    assert issues(trace) == {
        "lines_dropped": 2, "values_unknown": 1, "histograms_dropped": 2, "samples_doubled": 1, "scrape_times": 1,
    }  # fmt: skip
    with pytest.raises(CorruptInput, match="not one of its lines is a sample"):
        load(written(tmp_path, "# TYPE a gauge\na nope\n", "b.prom"))


def test_torn_archives_are_read_as_far_as_they_go(tmp_path):
    packed = gzip.compress(lines(*[{"ttft": 0.5, "x": i} for i in range(20_000)]).encode())
    trace = load(written(tmp_path, packed[:-2000], "requests.jsonl.gz"))
    assert 0 < trace.requests.height < 20_000
    assert {"damaged_packing", "torn_lines"} <= issues(trace).keys()


def profile(folder, base=1_700_000_000 * SECOND):
    events = [{"ph": "X", "cat": "user_annotation", "name": "x", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2e6}]
    document = {"schemaVersion": 1, "traceEvents": events} | ({"baseTimeNanoseconds": base} if base else {})
    return written(folder, json.dumps(document), "profile.json")


def test_requests_next_to_a_profile_are_placed_on_its_clock(tmp_path):
    written(tmp_path, lines({"ttft": 0.1, "e2e_latency": 0.2, "arrival_time": 1_700_000_001.0}))
    trace = load(profile(tmp_path))
    assert trace.requests["ts_ns"][0] + trace.meta.origin_unix_ns == 1_700_000_001 * SECOND
    assert issues(trace) == {}
    assert expand([str(tmp_path)]) == [str(tmp_path / "profile.json")]


def test_requests_that_cannot_be_placed_are_counted(tmp_path):
    written(tmp_path, lines({"ttft": 0.1, "e2e_latency": 0.2, "arrival_time": 1_800_000_001.0}))
    assert issues(load(profile(tmp_path))) == {"requests_elsewhere": 1}
    trace = load(profile(tmp_path, base=None))
    assert issues(trace) == {"requests_unplaced": 1}
    assert trace.requests["ts_ns"].to_list() == [None]


def test_a_named_file_must_be_readable(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    path = profile(tmp_path)
    bad = written(other, "{}", "bad.json")
    with pytest.raises(StepscopeError):
        load(path, requests=bad)
    with pytest.raises(StepscopeError, match="holds no requests"):
        load(path, requests=profile(other))
    written(other, GAUGE + histogram(1, 3, 4, 4), "metrics-1700000001.txt")
    trace = load(path, requests=other / "metrics-1700000001.txt")
    assert trace.histograms["ts_ns"].unique().len() == 1
    assert trace.counters.height == 1
    written(tmp_path, "{")
    assert issues(load(path)) == {"requests_unreadable": 1}


def test_requests_and_scrapes_are_shown_and_reported(tmp_path):
    run = stepscope.load_run(written(tmp_path, lines(*ROWS)))
    assert stepscope.show(run, "requests")["metric"].to_list() == ["e2e", "ttft", "tpot", "decode"]
    assert "2 requests · first token p50 125 ms" in stepscope.report(run).headline


def scraped(at, text):
    """A scrape as `record` keeps it."""
    return gzip.compress(f"# scraped {at * SECOND}\n{GAUGE}{text}".encode())


def test_a_file_may_hold_several_scrapes_each_after_a_mark(tmp_path):
    scrapes = [scraped(1_700_000_000, histogram(1, 1, 1, 1)), scraped(1_700_000_002, histogram(5, 5, 5, 5))]
    torn = gzip.compress(b"# scraped")[:-9]  # its writer was killed
    trace = load(written(tmp_path, b"".join([*scrapes, torn]), "metrics.prom.gz"))
    assert trace.meta.origin_unix_ns == 1_700_000_000 * SECOND
    assert trace.counters["ts_ns"].to_list() == [0, 2 * SECOND]
    assert trace.histograms.filter(pl.col("up_to").is_null())["n"].to_list() == [1, 5]
    assert "damaged_packing" in issues(trace)


def test_recorded_metrics_are_read_with_the_requests_and_the_profile_in_their_folder(tmp_path):
    path = profile(tmp_path)
    written(tmp_path, lines(*ROWS), "requests.jsonl")
    metrics = written(tmp_path, scraped(1_700_000_000, histogram(1, 1, 1, 1)), "metrics.prom.gz")
    trace = load(path)
    assert (trace.requests.height, trace.histograms.height, trace.counters.height) == (2, 4, 1)
    assert metrics in side_files(path)


def test_recorded_metrics_are_read_with_counters_where_there_is_no_profile(tmp_path):
    written(tmp_path, "ts_ns,metric,unit,device,value\n0,host_cpu_usage,percent,host,50\n", "counters.csv")
    written(tmp_path, scraped(1_700_000_000, histogram(1, 1, 1, 1)), "metrics.prom.gz")
    assert expand([str(tmp_path)]) == [str(tmp_path / "counters.csv")]
    trace = load(str(tmp_path))
    assert (trace.meta.format, trace.histograms.height) == ("counters", 4)
    assert "first token" in stepscope.report(stepscope.load_run(str(tmp_path))).headline


OTHERS = """\
# TYPE tgi_request_duration histogram
tgi_request_duration_bucket{le="0.5"} 3
tgi_request_duration_bucket{le="+Inf"} 4
tgi_request_duration_sum 2.5
tgi_request_duration_count 4
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="0.1"} 4
tgi_request_queue_duration_bucket{le="+Inf"} 4
tgi_request_queue_duration_sum 0.1
tgi_request_queue_duration_count 4
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{handler="/",le="+Inf"} 9
http_request_duration_seconds_sum{handler="/"} 9
http_request_duration_seconds_count{handler="/"} 9
# TYPE nv_inference_first_response_histogram_ms histogram
nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="500"} 2
nv_inference_first_response_histogram_ms_bucket{model="m",version="1",le="+Inf"} 2
nv_inference_first_response_histogram_ms_sum{model="m",version="1"} 400
nv_inference_first_response_histogram_ms_count{model="m",version="1"} 2
# TYPE lmdeploy:time_per_output_token_seconds histogram
lmdeploy:time_per_output_token_seconds_bucket{engine="0",le="0.05"} 10
lmdeploy:time_per_output_token_seconds_bucket{engine="0",le="+Inf"} 10
lmdeploy:time_per_output_token_seconds_sum{engine="0"} 0.2
lmdeploy:time_per_output_token_seconds_count{engine="0"} 10
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.97
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 5
llamacpp:requests_deferred 3
llamacpp:n_decode_total 39303
"""


def test_metrics_of_other_engines_are_known_by_their_names(tmp_path):
    path = written(tmp_path, OTHERS, "a.prom")
    run = stepscope.load_run(path)
    table = stepscope.show(run, "requests")
    assert table.select("metric", "engine", "n", "mean_ns").rows() == [
        ("e2e", "", 4, 625 * MS), ("ttft", "model=m,version=1", 2, 200 * MS), ("itl", "engine=0", 10, 20 * MS),
        ("queue", "", 4, 25 * MS),
    ]  # fmt: skip
    names = load(path).counters["metric"].cast(pl.String).to_list()
    assert "nv_trt_llm_kv_cache_block_metrics_fraction" in names
    text = str(stepscope.report(run))
    assert "97 % full at its peak" in text
    assert "Up to 5 requests waited" in text
