"""What vLLM and SGLang say of themselves in Prometheus text: a reading of each engine, and what two readings say.

Counters are differenced: the time that requests waited for their output tokens by the number of these tokens is the
mean time of a token, and of a decode iteration. The work of the interval is its batch, context and prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.patterns import regex
from stepscope.core.prometheus import CACHE_USE, PREEMPTED, WAITING, labels_of, samples_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What is read, by the metric without the engine's name; of several the first that is there counts.
_ROLES: dict[str, tuple[str, ...]] = {
    "itl_s": ("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
    "n_itl": ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
    "created": ("inter_token_latency_seconds_created", "time_per_output_token_seconds_created"),
    "iterations": ("iteration_tokens_total_count",),
    "ttft_s": ("time_to_first_token_seconds_sum",),
    "n_ttft": ("time_to_first_token_seconds_count",),
    "prompt": ("realtime_tokens_total", "prompt_tokens_total"),
    "prompt_cached": ("prefix_cache_hits_total",),
    "drafts": ("spec_decode_num_drafts_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "accept_length": ("spec_accept_length",),
    "running": ("num_requests_running", "num_running_reqs"),
    "used_tokens": ("kv_used_tokens", "num_used_tokens"),
    "waiting": WAITING,
    "cache_use": CACHE_USE,
    "preempted": PREEMPTED,
}
#: Counters: of a server that was started anew they are smaller.
_COUNTERS = ("itl_s", "n_itl", "iterations", "n_ttft", "prompt", "drafts", "accepted")
#: Roles of which an engine has one value, and not one for each data-parallel part of it.
_OF_WHOLE = ("cache_use", "accept_length", "created")
_NAMES = frozenset(name for names in _ROLES.values() for name in names)
_ENGINE = regex(r"(vllm|sglang):(\w+)")
_START, _CACHE_SIZE = "process_start_time_seconds", "vllm:cache_config_info"
#: Engines that are watched at the most; a server has one for each data-parallel rank.
MOST_ENGINES = 64
#: What a metric can be, but for 0. What lies beyond is left out, and what is less is 0.
_LEAST, _MOST = 1e-9, 2.0**63
#: Work of an iteration that is believed: requests, tokens of each, tokens of prompts.
_MOST_WORK = (1e5, 1e8, 1e9)
#: An interval needs so many output tokens for their mean time, and is no longer.
LEAST_TOKENS, _LONGEST_S = 10, 10.0


@dataclass(frozen=True)
class Reading:
    """What an engine said at a time (s, of any clock): values by role. `start_s` is when it was started, or 0."""

    at_s: float
    values: Mapping[str, float]
    start_s: float = 0.0

    def is_of_same_run(self, earlier: Reading) -> bool:
        """Whether the engine was not started anew since an earlier reading."""
        values, before = self.values, earlier.values
        return self.start_s == earlier.start_s and all(
            values[role] >= before[role] for role in _COUNTERS if role in values and role in before
        )


@dataclass(frozen=True)
class Interval:
    """What an engine did between two readings. Not known is None; `token_s` also where there were too few tokens.

    `batch` are requests of an iteration, `context` their mean tokens, `prompt` the prompt tokens computed for each
    iteration, `accept_length` output tokens of a request in an iteration.
    """

    span_s: float
    tokens: float
    token_s: float | None
    batch: float
    context: float
    prompt: float
    running: float
    waiting: float
    cache_use: float | None
    preempted: float
    accept_length: float | None
    ttft_s: float | None


def read_engines(text: str, at_s: float) -> dict[str, Reading]:
    """A reading of each engine of vLLM or SGLang in a scrape; none where times of output tokens are missing."""
    lines = (line for line in text.splitlines() if not line.startswith("#") and "_bucket" not in line)
    start_s, cache_tokens = 0.0, dict[str, float]()
    engines: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for sample in samples_of("\n".join(lines)):
        if not 0 <= sample.value < _MOST:  # nor if it is no number
            continue
        value = sample.value if sample.value >= _LEAST else 0.0
        labels = labels_of(sample)
        number = labels.get("engine", "0")
        match = _ENGINE.fullmatch(sample.name)
        if sample.name == _START:
            start_s = max(start_s, value)
        elif sample.name == _CACHE_SIZE:
            cache_tokens[number] = _cache_tokens(labels)
        elif match and match[2] in _NAMES and _counts_at_once(match[1], match[2], labels):
            metrics = engines.setdefault((labels.get("model_name", ""), number), {})
            # Parts of tensor or pipeline parallelism say the same of their engine, data-parallel ones add to it.
            parts, part = metrics.setdefault(match[2], {}), labels.get("dp_rank", "")
            parts[part] = max(parts.get(part, value), value)
    is_one_model = len({model for model, _ in engines}) == 1
    readings = {}
    for (model, number), metrics in sorted(engines.items())[:MOST_ENGINES]:
        values = _values(metrics)
        if {"itl_s", "n_itl"} <= values.keys():
            if "cache_use" in values and cache_tokens.get(number):
                values.setdefault("used_tokens", values["cache_use"] * cache_tokens[number])
            name = f"engine {number[:20]}" if is_one_model else f"{model[:80]}, engine {number[:20]}"
            readings[name] = Reading(at_s, values, max(start_s, values.get("created", 0.0)))
    return readings


def _counts_at_once(engine: str, name: str, labels: Mapping[str, str]) -> bool:
    """Whether it counts what it should. SGLang counts prompts when requests end, but what it computes at once."""
    if name == "realtime_tokens_total":
        return labels.get("mode") == "prefill_compute"
    return engine != "sglang" or name != "prompt_tokens_total"


def _values(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Values by role, of the first metric that has it, over all data-parallel parts."""
    values = {}
    for role, names in _ROLES.items():
        parts = next((metrics[name] for name in names if name in metrics), None)
        if parts:
            values[role] = max(parts.values()) if role in _OF_WHOLE else sum(parts.values())
    return values


def _cache_tokens(labels: Mapping[str, str]) -> float:
    """The tokens that an engine's KV cache has room for; 0 if it does not say so."""
    try:
        tokens = float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return 0.0
    return tokens if 0 <= tokens < _MOST else 0.0


def interval_between(before: Reading, after: Reading) -> Interval | None:
    """What the engine did between two readings of the same run; None if they are not, or too far apart."""
    span_s = after.at_s - before.at_s
    if not 0 < span_s <= _LONGEST_S or not after.is_of_same_run(before):
        return None
    values = after.values

    def gained(role: str) -> float:
        return max(values[role] - before.values[role], 0.0) if role in values and role in before.values else 0.0

    def mean(role: str) -> float:
        return (values.get(role, 0.0) + before.values.get(role, 0.0)) / 2

    # vLLM has a time for each iteration and request, in which several tokens may have been accepted.
    n_itl, waited_s = gained("n_itl"), gained("itl_s")
    tokens = n_itl + gained("accepted")
    iterations = gained("iterations")
    # Requests of an iteration are known where iterations are counted, or from how long all waited (Little's law).
    batch = n_itl / iterations if iterations else waited_s / span_s
    # If the batch changed from one to the other, most tokens are of the larger.
    spread = (batch - before.values.get("running", batch)) * (values.get("running", batch) - batch)
    per_iteration = max(spread, 0.0) / batch + batch if iterations and batch else batch
    steps = iterations or (n_itl / batch if batch else 0.0)
    prompt = max(gained("prompt") - gained("prompt_cached"), 0.0)
    drafts, n_first = gained("drafts"), gained("n_ttft")
    running = mean("running")
    is_enough = tokens >= LEAST_TOKENS and waited_s > 0
    return Interval(
        span_s=span_s,
        tokens=tokens,
        token_s=waited_s / tokens if is_enough else None,
        batch=min(per_iteration, _MOST_WORK[0]),
        context=min(mean("used_tokens") / running, _MOST_WORK[1]) if running else 0.0,
        prompt=min(prompt / steps, _MOST_WORK[2]) if steps else 0.0,
        running=running,
        waiting=values.get("waiting", 0.0),
        cache_use=values.get("cache_use"),
        preempted=gained("preempted"),
        accept_length=1 + gained("accepted") / drafts if drafts else values.get("accept_length"),
        ttft_s=gained("ttft_s") / n_first if n_first else None,
    )
