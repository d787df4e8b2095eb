"""What engines and benchmarks call the times and counts of a request, and in which unit they write them.

The end of a name may state its unit (`_ns`, `_us`, `_ms`, `_s`, `_seconds`), without which times are seconds. AIPerf
states it beside the value, as in `{"value": 255.9, "unit": "ms"}`. Points in time are told apart by their size.

Source: results of vLLM's and SGLang's benchmarks, AIPerf, GenAI-Perf, GuideLLM and LLMPerf, and responses of vLLM,
SGLang, TensorRT-LLM (`perf_metrics`), llama.cpp (`timings`) and Ollama, as of 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECOND = 1e9
_UNIT = regex(r"_(ns|us|ms|s|secs?|seconds?)\Z")
_NS_OF = {"ns": 1.0, "us": 1e3, "ms": 1e6}
#: What each field is called, names without the unit at their end. Of several in one row the first here counts.
_NAMES = {
    "id": "request_id id rid x_request_id",
    "arrived": "arrival_time arrived arrival request_start_time request_start start_time request_received_ts"
               " received_ts arrival_ts timestamp start_times",
    "queued": "queued_ts queued_at",
    "scheduled": "first_scheduled_time scheduled_ts scheduled_time forward_entry_time",
    "first_token": "first_token_time first_token_ts prefill_finished_ts prefill_finished_time",
    "finished": "finished_time finish_time request_end_time request_end end_time request_finished_ts"
                " decode_finished_ts last_token_time last_token_ts response_sent_to_client_ts",
    "answers": "response_timestamps",
    "e2e": "e2e_latency e2e e2el request_latency end_to_end_latency end_to_end latency total_latency latencies",
    "ttft": "ttft time_to_first_token first_token_latency ttfts",
    "itl": "itl mean_itl inter_token_latency mean_inter_token_latency tpot mean_tpot time_per_output_token",
    "itls": "itl itls inter_token_latencies inter_chunk_latency itl_ms_vec",
    "queue": "queue_time queue time_in_queue queued_time waiting_time",
    "prefill": "prefill_time prefill prefill_latency",
    "decode": "decode_time decode decode_latency generation_time",
    "prompt_tokens": "prompt_tokens prompt_len input_tokens input_len num_prompt_tokens input_sequence_length"
                     " number_input_tokens input_lens",
    "output_tokens": "completion_tokens output_tokens output_len num_generation_tokens generated_tokens"
                     " output_sequence_length number_output_tokens output_token_count output_lens",
    "cached_tokens": "cached_tokens num_cached_tokens",
    "n_preemptions": "num_preemptions n_preemptions preemptions retraction_count num_retractions",
    "is_ok": "success is_ok ok",
    "error": "error error_message error_msg message errors",
}  # fmt: skip
#: Names that mean something else without their end, by the field and its unit in ns.
_WHOLE = {
    "itl_ms_vec": ("itls", 1e6),
    "prompt_ms": ("prefill", 1e6), "predicted_ms": ("decode", 1e6),
    "prompt_n": ("prompt_tokens", SECOND), "predicted_n": ("output_tokens", SECOND),
    "cache_n": ("cached_tokens", SECOND),
}  # fmt: skip
#: Ollama's, in ns, which only rows with `eval_duration` have.
_OF_OLLAMA = {
    "total_duration": ("e2e", 1.0), "prompt_eval_duration": ("prefill", 1.0), "eval_duration": ("decode", 1.0),
    "prompt_eval_count": ("prompt_tokens", SECOND), "eval_count": ("output_tokens", SECOND),
}  # fmt: skip
_RANKS: dict[str, list[tuple[str, int]]] = {}
for _field, _spellings in _NAMES.items():
    for _rank, _spelling in enumerate(_spellings.split()):
        _RANKS.setdefault(_spelling, []).append((_field, _rank))
#: Objects within that of a request.
_NESTED = ("metrics", "meta_info", "usage", "stats", "timings", "time_stats", "metadata", "perf_metrics",
           "timing_metrics", "error")  # fmt: skip
_DEEPEST = 3

TIMES = ("arrived", "queued", "scheduled", "first_token", "finished")
LENGTHS = ("e2e", "ttft", "itl", "queue", "prefill", "decode")
COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "n_preemptions")
LISTS = ("itls", "answers")
TYPES: dict[str, pl.DataType] = {
    **dict.fromkeys((*TIMES, *LENGTHS, *COUNTS), pl.Float64()), **dict.fromkeys(LISTS, pl.List(pl.Float64())),
    "is_ok": pl.Boolean(), "id": pl.String(), "error": pl.String(),
}  # fmt: skip


class Place(NamedTuple):
    """The names that lead to a field, the field, and its unit in ns."""

    path: tuple[str, ...]
    field: str
    factor: float


def fields_of(name: str) -> Iterator[tuple[str, float, int]]:
    """The fields that a name may stand for, with the unit in ns and the rank of the spelling."""
    lower = name.lower()
    if lower in _WHOLE:
        yield (*_WHOLE[lower], 0)
        return
    match = None if lower in _RANKS else _UNIT.search(lower)
    base, factor = (lower, SECOND) if match is None else (lower[: match.start()], _NS_OF.get(match[1], SECOND))
    for field, rank in _RANKS.get(base, ()):
        yield field, factor, rank


def places_of(rows: Iterable[dict[str, Any]]) -> list[Place]:
    """Where the fields of some rows are, the best spelling of each first."""
    values: dict[tuple[str, ...], list[Any]] = {}
    units: dict[tuple[str, ...], str] = {}
    for row in rows:
        for path, value, unit in _leaves(row, ()):
            if value is not None:
                values.setdefault(path, []).append(value)
            if unit is not None:
                units[path] = unit
    # vLLM's metrics in a response count the time to the first token from when the request was scheduled.
    of_response = ("metrics", "generation_time_ms") in values
    ranked: list[tuple[int, Place]] = []
    for path, known in values.items():
        if any(path[:n] in values for n in range(1, len(path))):  # here an object, there a value: the value counts
            continue
        name = path[-2] if path[-1] == "value" and path in units else path[-1]
        if name == "message" and path[0] != "error":
            continue
        of_list = 2 * sum(isinstance(value, list) for value in known) > len(known)
        meant = [(*_OF_OLLAMA[name], 0)] if name in _OF_OLLAMA and ("eval_duration",) in values else fields_of(name)
        for field, factor, rank in meant:
            if (field in LISTS) == of_list:
                own = "prefill" if of_response and path[0] == "metrics" and field == "ttft" else field
                ranked.append((rank, Place(path, own, _NS_OF.get(units[path], SECOND) if path in units else factor)))
    return [place for _, place in sorted(ranked, key=lambda one: one[0])]


def _leaves(row: dict[str, Any], outer: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, str | None]]:
    """What is in an object of a request and in those within it: the names that lead there, the value, its unit."""
    for name, value in row.items():
        path = (*outer, name)
        if not isinstance(value, dict):
            yield path, value, None
        elif isinstance(unit := value.get("unit"), str) and "value" in value:
            yield (*path, "value"), value["value"], unit
        elif name in _NESTED and len(path) < _DEEPEST:
            yield from _leaves(value, path)
