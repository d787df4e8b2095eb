"""A simulated engine with the metrics of vLLM, and how well `stepscope watch --metrics` watches it.

Requests come at random at a rate that changes by 10 times and back, suddenly and slowly. Iterations take what their
batch, its context and new prompts need, in steps as engines with graphs have them, and some noise. Faults are put in:
iterations that take 10 % longer for 20 scrapes. Prints false alarms of healthy hours, and how many
faults were told, each put into a copy of the healthy engine.

    python lab/server_metrics.py --hours 4
"""

from __future__ import annotations

import argparse
import copy
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

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


class Watched:
    """An engine that is watched: scraped once a second, as `stepscope watch --metrics` does it."""

    def __init__(self, seed: int = 0, rate_per_s: float = 1 / 604_800) -> None:
        self.engine, self.rate_per_s, self.second = Engine(seed), rate_per_s, 0
        self.streams: dict[str, Stream] = {}
        self.errors: list[float] = []
        self.events: list[str] = []
        self.source = ServerSource(URL, self._say, self._scrape, self._clock)

    def _say(self, event: dict[str, Any]) -> None:
        self.events.append(event["event"])

    def _scrape(self, _: MetricsUrl) -> str:
        return self.engine.text()

    def _clock(self) -> float:
        return float(self.second)

    def next_second(self) -> list[str]:
        """Serve and watch for a second. Returns the kinds of alarms."""
        self.second += 1
        self.engine.run_until(float(self.second))
        kinds = []
        for new in self.source.read(self.streams):
            before = self.streams.get(new.stream, Stream())
            self.streams[new.stream], alarms, rows = follow(before, new, self.rate_per_s)
            self.errors += [new.times_ns[0] / row[0] for row in rows]
            kinds += [alarm.kind for alarm in alarms]
        return kinds

    def seconds_until_told(self, slowdown: float, length_s: int = 20) -> int | None:
        """How long a fault from now on, of that length, goes on until it is told; None if it is not."""
        sick = copy.deepcopy(self)
        sick.engine.slowdown = slowdown
        return next((i for i in range(1, length_s + 1) if sick.next_second()), None)


def main() -> None:
    """Print false alarms of healthy hours, and the faults that were told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--slowdown", type=float, default=1.1)
    parser.add_argument("--length", type=int, default=20, help="seconds of a fault")
    parser.add_argument("--every", type=int, default=200, help="seconds between faults, each in a copy of the engine")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    watched, false, delays = Watched(given.seed), Counter[str](), []
    for second in range(1, int(given.hours * 3600)):
        false.update(watched.next_second())
        if second >= given.every and second % given.every == 0:
            delays.append((second, watched.seconds_until_told(given.slowdown, given.length)))
    error = np.abs(np.log(watched.errors))
    off = f"{np.nanmedian(error):.2%} (median), {np.nanquantile(error, 0.99):.2%} (99 of 100)"
    print(f"healthy, {given.hours:g} h: false alarms {dict(false)}; expected time is off by {off}", end="; ")
    print(f"unknown of {np.isnan(error).mean():.1%}")
    for hour in range(math.ceil(given.hours)):
        now = [delay for second, delay in delays if second // 3600 == hour]
        told = [delay for delay in now if delay is not None]
        when = f", after {np.median(told):.0f} s (median)" if told else ""
        print(f"hour {hour + 1}: {given.slowdown:g} times for {given.length} s: {len(told)} of {len(now)} told{when}")


if __name__ == "__main__":
    main()
