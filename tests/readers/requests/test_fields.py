"""What other benchmarks and engines write of a request, as small as can be."""

from __future__ import annotations

import json

import pytest

from stepscope import load

MS, SECOND = 10**6, 10**9
AT = 1_760_000_000
COLUMNS = ("ts_ns", "ttft_ns", "e2e_ns", "itl_ns", "prompt_tokens", "output_tokens", "is_ok")


def metric(value, unit="ms"):
    return {"value": value, "unit": unit}


AIPERF = [
    {
        "metadata": {"x_request_id": "a", "request_start_ns": AT * SECOND, "request_end_ns": AT * SECOND + 300 * MS,
                     "benchmark_phase": "profiling", "was_cancelled": False},
        "metrics": {"input_sequence_length": metric(550, "tokens"), "time_to_first_token": metric(250.0),
                    "request_latency": metric(290.0), "output_token_count": metric(4, "tokens"),
                    "inter_chunk_latency": metric([10.0, 20.0, 10.0]), "output_sequence_length": metric(5, "tokens"),
                    "inter_token_latency": metric(10.0)},
        "error": None,
    },
    {
        "metadata": {"x_request_id": "b", "request_start_ns": AT * SECOND + 5 * MS, "was_cancelled": True},
        "metrics": {"error_isl": metric(550, "tokens")},
        "error": {"code": 499, "type": "RequestCancellationError", "message": "it was cancelled"},
    },
]  # fmt: skip
GENAI_PERF = {
    "service_kind": "openai", "endpoint": "v1/chat/completions",
    "experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": [
        {"timestamp": AT * SECOND, "request_inputs": {"payload": "{}"},
         "response_timestamps": [AT * SECOND + n * MS for n in (90, 100, 110, 140, 141)],
         "response_outputs": [{"response": f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'} for delta in (
             '{"role":"assistant","content":""}', *['{"content":"a"}'] * 3)] + [{"response": "data: [DONE]\n\n"}]},
    ]}],
}  # fmt: skip
GUIDELLM = {
    "metadata": {"version": 1}, "args": {"rate": [1.0]},
    "benchmarks": [{"type_": "generative_benchmark", "metrics": {"request_latency": {"mean": 1.0}}, "requests": {
        "successful": [{"request_id": "a", "request_start_time": AT + 0.5, "request_end_time": AT + 2.5,
                        "request_latency": 2.0, "time_to_first_token_ms": 125.0, "time_per_output_token_ms": 99.0,
                        "inter_token_latency_ms": 8.0, "prompt_tokens": 512, "output_tokens": 64}],
        "incomplete": [], "errored": [{"request_id": "b", "request_start_time": AT, "error": "refused"}],
    }}],
}  # fmt: skip
LLMPERF = [{
    "error_code": None, "error_msg": "", "inter_token_latency_s": 0.02, "ttft_s": 0.25, "end_to_end_latency_s": 2.25,
    "start_time": AT, "end_time": AT + 2.25, "number_total_tokens": 500, "number_output_tokens": 100,
    "number_input_tokens": 400,
}]  # fmt: skip
TENSORRT = [{
    "request_id": 7, "perf_metrics": {"first_iter": 1, "last_iter": 9, "timing_metrics": {
        "arrival_time": 50.0, "first_scheduled_time": 50.25, "first_token_time": 50.5, "last_token_time": 51.5}},
}]  # fmt: skip
LLAMA_CPP = {
    "content": "a", "timings": {"cache_n": 2, "prompt_n": 10, "prompt_ms": 30.0, "prompt_per_token_ms": 3.0,
                                "predicted_n": 5, "predicted_ms": 100.0, "predicted_per_token_ms": 20.0},
}  # fmt: skip
OLLAMA = {
    "model": "m", "response": "a", "done": True, "total_duration": 5 * SECOND, "load_duration": SECOND,
    "prompt_eval_count": 26, "prompt_eval_duration": 130 * MS, "eval_count": 101, "eval_duration": 2 * SECOND,
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (AIPERF, [(0, 250 * MS, 290 * MS, 10 * MS, 550, 5, True), (5 * MS, None, None, None, None, None, False)]),
        (GENAI_PERF, [(0, 100 * MS, 140 * MS, 20 * MS, None, None, None)]),
        (
            GUIDELLM,
            [
                (SECOND // 2, 125 * MS, 2 * SECOND, 8 * MS, 512, 64, True),
                (0, None, None, None, None, None, False),
            ],
        ),
        (LLMPERF, [(0, 250 * MS, 2250 * MS, 20 * MS, 400, 100, True)]),
        (TENSORRT, [(0, 500 * MS, 1500 * MS, None, None, None, None)]),
        (LLAMA_CPP, [(None, None, None, 25 * MS, 10, 5, None)]),
        (OLLAMA, [(None, None, 5 * SECOND, 20 * MS, 26, 101, None)]),
    ],
    ids=["aiperf", "genai-perf", "guidellm", "llmperf", "tensorrt-llm", "llama.cpp", "ollama"],
)
def test_requests_of_benchmarks_and_engines_are_known_by_their_names(tmp_path, document, rows):
    texts = [json.dumps(document), json.dumps(document, indent=1)]
    if isinstance(document, list):
        texts.append("\n".join(map(json.dumps, document)))
    for n, text in enumerate(texts):
        path = tmp_path / f"{n}.json"
        path.write_text(text)
        table = load(str(path)).requests
        found = table.select(COLUMNS).rows()
        assert len(found) == len(rows)
        for row, expected in zip(found, rows, strict=True):
            assert row == pytest.approx(expected, abs=1000)  # a double holds times since 1970 to the µs


def test_engines_that_state_no_queue_give_prefill_and_decode(tmp_path):
    for document, times in ((LLAMA_CPP, (30 * MS, 100 * MS)), (OLLAMA, (130 * MS, 2 * SECOND))):
        (tmp_path / "a.json").write_text(json.dumps(document))
        assert load(str(tmp_path / "a.json")).requests.select("prefill_ns", "decode_ns").row(0) == times


def test_errors_of_aiperf_and_guidellm_say_what_went_wrong(tmp_path):
    for document, error in ((AIPERF, "it was cancelled"), (GUIDELLM, "refused")):
        (tmp_path / "a.json").write_text(json.dumps(document))
        assert load(str(tmp_path / "a.json")).requests["error"].to_list() == [None, error]


def test_lines_of_several_schemas_are_read_each_by_its_own_names(tmp_path):
    rows = [{"ttft_ms": 100, "latency": 2.0}, {"ttft": 0.5, "e2e_latency": "3"}, {"ttft": [1], "latency": 4}, {"x": 1}]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"ttft": 0.')
    trace = load(str(tmp_path / "requests.jsonl"))
    assert trace.requests.select("ttft_ns", "e2e_ns").rows() == [
        (100 * MS, 2 * SECOND), (500 * MS, 3 * SECOND), (None, 4 * SECOND),
    ]  # fmt: skip
    assert dict(trace.issues.select("code", "count").iter_rows()) == {"torn_lines": 1, "requests_dropped": 1}
