"""Texts as vLLM and SGLang answer them, with what a test changes."""

from __future__ import annotations

VLLM = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{{implementation="CPython",major="3"}} 1.0
process_start_time_seconds {start}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {use}
vllm:num_preemptions_total{{engine="0",model_name="m"}} {preempted}
vllm:num_preemptions_created{{engine="0",model_name="m"}} 1.7e+09
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {cached}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:iteration_tokens_total_bucket{{engine="0",le="1.0",model_name="m"}} 3.0
vllm:iteration_tokens_total_count{{engine="0",model_name="m"}} {iterations}
vllm:iteration_tokens_total_sum{{engine="0",model_name="m"}} 5e+04
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {first}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {first_s}
vllm:inter_token_latency_seconds_bucket{{engine="0",le="0.01",model_name="m"}} 1.0
vllm:inter_token_latency_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {waited}
vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"}} 1.0
"""
DRAFTS = """\
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} 1e+06
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
"""
SGLANG = """\
sglang:num_running_reqs{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} {running}
sglang:num_running_reqs{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"}} {running}
sglang:num_queue_reqs{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} 0.0
sglang:token_usage{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} 0.25
sglang:num_used_tokens{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} 4000.0
sglang:spec_accept_length{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} 2.5
sglang:num_retracted_reqs{{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"}} 0.0
sglang:prompt_tokens_total{{engine_type="unified",model_name="m"}} {prompt}
sglang:realtime_tokens_total{{mode="prefill_compute",model_name="m"}} {computed}
sglang:realtime_tokens_total{{mode="decode",model_name="m"}} {tokens}
sglang:inter_token_latency_seconds_sum{{engine_type="unified",model_name="m"}} {waited}
sglang:inter_token_latency_seconds_bucket{{engine_type="unified",le="+Inf",model_name="m"}} {tokens}
sglang:inter_token_latency_seconds_count{{engine_type="unified",model_name="m"}} {tokens}
"""


def vllm(**values: float) -> str:
    """An answer of vLLM; what is not given is 0."""
    names = ("start", "running", "waiting", "use", "preempted", "prompt", "cached", "tokens", "iterations", "first",
             "first_s", "waited")  # fmt: skip
    text = VLLM.format(**{name: float(values.get(name, 0.0)) for name in names})
    return text + (DRAFTS.format(**values) if "drafts" in values else "")


def served(second: float, *, batch: float = 4.0, token_s: float = 0.02, **values: float) -> str:
    """An answer of vLLM that has served `batch` requests at a token each `token_s` for so long."""
    iterations = second / token_s
    same = {"running": batch, "use": 0.1, "iterations": iterations, "tokens": batch * iterations}
    return vllm(**same | {"waited": batch * second, "prompt": 2 * iterations} | values)
