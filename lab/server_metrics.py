"""A simulated engine with the metrics of vLLM, and how well `stepscope watch --metrics` watches it.

Requests come at random at a rate that changes by 10 times and back, suddenly and slowly. Iterations take what their
batch, its context and new prompts need, in steps as engines with graphs have them, and some noise. Faults are put in:
iterations that take 10 % longer for 20 scrapes. Prints false alarms of healthy hours, and how many faults were told.

    python lab/server_metrics.py --hours 4
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stepscope.record.metrics import MetricsUrl
from stepscope.watching.server_source import ServerSource
from stepscope.watching.streams import Stream, follow

URL = MetricsUrl("127.0.0.1", 8000, "/metrics", "http://localhost:8000/metrics")
MOST_RUNNING, CHUNK, CACHE_TOKENS, BLOCK = 128, 2048, 160_000, 16


def load(at_s: float) -> float:
    """Requests that come in a second: 10 minutes each of little, ten times as much, a slow wave, and little again."""
    minute = at_s / 60 % 40
    if minute < 10:
        return 0.4
    if minute < 20:
        return 4.0
    return 2.2 - 1.8 * np.cos((minute - 20) / 10 * 2 * np.pi) if minute < 30 else 0.4


@dataclass
class Engine:
    """A simulated engine. `slowdown` lengthens its iterations."""

    seed: int = 0
    slowdown: float = 1.0
    now_s: float = 0.0
    values: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin without requests."""
        self.rng = np.random.default_rng(self.seed)
        self.context, self.remaining = np.zeros(0), np.zeros(0)
        self.queue: list[tuple[float, float]] = []
        self.next_s = 0.0

    def run_until(self, end_s: float) -> None:
        """Serve until then."""
        while self.now_s < end_s:
            while self.next_s <= self.now_s:
                self.queue.append((float(self.rng.integers(100, 1200)), float(self.rng.integers(50, 400))))
                self.next_s += self.rng.exponential(1 / load(self.next_s))
            if not len(self.context) and not self.queue:
                self.now_s = min(end_s, self.next_s)
                continue
            self.now_s += self._iterate()

    def _iterate(self) -> float:
        prompt, new = 0.0, []
        while self.queue and prompt + self.queue[0][0] <= CHUNK and len(self.context) + len(new) < MOST_RUNNING:
            if self.context.sum() + prompt + self.queue[0][0] > CACHE_TOKENS:
                break
            new.append(self.queue.pop(0))
            prompt += new[-1][0]
        batch = len(self.context)
        padded = next((size for size in (0, 1, 2, 4, *range(8, MOST_RUNNING + 8, 8)) if size >= batch), MOST_RUNNING)
        time_s = 0.018 + 0.00012 * padded + 6e-8 * self.context.sum() + 4e-5 * prompt
        time_s *= self.slowdown * np.exp(self.rng.normal(0, 0.02) + 0.3 * (self.rng.random() < 0.002))
        self.values["itl_s"] += batch * time_s
        self.values["itl"] += batch
        self.values["iterations"] += 1
        self.values["prompt"] += prompt
        self.values["ttft"] += len(new)
        self.values["generated"] += batch + len(new)
        self.context, self.remaining = self.context + 1, self.remaining - 1
        goes_on = self.remaining > 0
        self.context = np.r_[self.context[goes_on], [a + 1 for a, _ in new]]
        self.remaining = np.r_[self.remaining[goes_on], [b - 1 for _, b in new]]
        return float(time_s)

    def text(self) -> str:
        """The metrics now, as vLLM gives them."""
        labels, values = '{engine="0",model_name="m"}', self.values
        cache = (
            f'vllm:cache_config_info{{block_size="{BLOCK}",engine="0",num_gpu_blocks="{CACHE_TOKENS // BLOCK}"}} 1.0'
        )
        rows = {
            "num_requests_running": len(self.context),
            "num_requests_waiting": len(self.queue),
            "kv_cache_usage_perc": self.context.sum() / CACHE_TOKENS,
            "num_preemptions_total": 0,
            "prompt_tokens_total": values["prompt"],
            "generation_tokens_total": values["generated"],
            "time_to_first_token_seconds_count": values["ttft"],
            "time_to_first_token_seconds_sum": 0.05 * values["ttft"],
            "iteration_tokens_total_count": values["iterations"],
            "iteration_tokens_total_sum": values["prompt"] + values["generated"],
            "inter_token_latency_seconds_count": values["itl"],
            "inter_token_latency_seconds_sum": values["itl_s"],
        }
        return "\n".join([cache, *(f"vllm:{name}{labels} {value}" for name, value in rows.items())]) + "\n"


@dataclass(frozen=True)
class Outcome:
    """Alarms by kind that no fault explains, the faults that were told and all, and seconds until they were."""

    false: Counter[str]
    n_told: int
    n_faults: int
    delays_s: list[int]
    expected: np.ndarray


def watch(seconds: int, faults: dict[int, float], rate_per_s: float = 1 / 604_800, seed: int = 0) -> Outcome:
    """Watch an engine, scraped once a second; `faults` are its slowdowns, for 20 s from a second on."""
    engine, second = Engine(seed), 0
    source = ServerSource(URL, lambda _: None, lambda _: engine.text(), lambda: float(second))
    streams: dict[str, Stream] = {}
    false, told, errors = Counter[str](), {}, []
    for second in range(1, seconds):
        fault = next((at for at in faults if at <= second - 1 < at + 20), None)
        engine.slowdown = 1.0 if fault is None else faults[fault]
        engine.run_until(float(second))
        for new in source.read(streams):
            streams[new.stream], alarms, rows = follow(streams.get(new.stream, Stream()), new, rate_per_s)
            errors += [new.times_ns[0] / row[0] for row in rows]
            # The end of a fault is within its windows for another 20 scrapes.
            blamed = next((at for at in faults if at <= second - 1 < at + 40), None)
            for alarm in alarms:
                if blamed is None:
                    false[alarm.kind] += 1
                else:
                    told.setdefault(blamed, second - blamed)
    return Outcome(false, len(told), len(faults), list(told.values()), np.array(errors))


def main() -> None:
    """Print false alarms of healthy hours, and the faults that were told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--slowdown", type=float, default=1.1)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    seconds = int(given.hours * 3600)
    for seed in range(given.seeds):
        healthy = watch(seconds, {}, seed=seed)
        error = np.abs(np.log(healthy.expected))
        print(f"healthy, {given.hours:g} h: false alarms {dict(healthy.false)}; expected time is off by"
              f" {np.nanmedian(error):.2%} (median), {np.nanquantile(error, 0.99):.2%} (99 of 100);"
              f" unknown {np.isnan(error).mean():.1%}")  # fmt: skip
        faults = dict.fromkeys(range(1800, seconds - 60, 397), given.slowdown)
        sick = watch(seconds, faults, seed=seed)
        print(f"{given.slowdown:g} times for 20 s: {sick.n_told} of {sick.n_faults} told, after"
              f" {np.median(sick.delays_s):.0f} s (median); false alarms {dict(sick.false)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
