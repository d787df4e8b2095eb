"""Metrics as Prometheus text: what a line of it is, and the marks between the scrapes of one file.

Nothing here needs tables: the recorder and the watch read such text next to a job.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from stepscope.core.patterns import regex

#: A sample: a name, perhaps labels, a value, perhaps a time (ms since 1970; OpenMetrics: s). Also for Polars.
SAMPLE = (
    r"^\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\s*\{(?P<labels>.*)\})?\s+(?P<value>[-+.0-9eE]+|[-+]?[Ii]nf|NaN)"
    r"(?:\s+(?P<time>-?[0-9.]{1,20}))?\s*$"
)
#: What follows a sample in OpenMetrics: one of the values that it counts.
EXEMPLAR = r"\s# \{.*$"
#: A comment before each scrape of a file that holds several, with its time in ns since 1970.
SCRAPED = r"^# scraped (?P<unix_ns>\d{16,19})$"
#: Metrics of vLLM, SGLang, LMDeploy, TensorRT-LLM, llama.cpp, TGI, Dynamo and Triton, without the engine's name: part
#: of the KV cache in use, requests stopped (those counted up first), requests in the queue.
CACHE_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "kv_cache_utilization",
             "kv_cache_usage_ratio", "kv_cache_block_metrics_fraction")  # fmt: skip
PREEMPTED = ("num_preemptions_total", "num_preemptions", "num_retracted_requests_total", "num_retracted_reqs")
WAITING = ("num_requests_waiting", "num_queue_reqs", "requests_deferred", "tgi_queue_size", "queued_requests",
           "inference_pending_request_count", "request_metrics_waiting")  # fmt: skip
#: Labels of Triton's metrics of TensorRT-LLM that say what is counted: they belong to the name.
OF_NAME = ("kv_cache_block_type", "request_type")
#: From so much of the KV cache on it is full.
CACHE_FULL = 0.95
CACHE_ADVICE = (
    "→ more memory for it (--gpu-memory-utilization of vLLM, --mem-fraction-static of SGLang), an FP8 cache, or fewer"
    " requests at once (--max-num-seqs, --max-running-requests)"
)
_LABEL = regex(r'(?<!\w)(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE, _EXEMPLAR = regex(SAMPLE), regex(EXEMPLAR)


class Sample(NamedTuple):
    """A value of a metric. `labels` are as written, without the braces: `engine="0",le="0.5"`."""

    name: str
    labels: str
    value: float


def samples_of(text: str) -> list[Sample]:
    r"""The samples of a scrape, in order. Lines that are none, and values that are no number, are left out.

    >>> samples_of('# TYPE up gauge\nup{job="a"} 1\nbroken{')
    [Sample(name='up', labels='job="a"', value=1.0)]
    """
    samples = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(_EXEMPLAR.sub("", line))
        try:
            value = math.nan if match is None else float(match["value"])
        except ValueError:  # such as 1.2.3
            continue
        if match is not None and not math.isnan(value):
            samples.append(Sample(match["name"], match["labels"] or "", value))
    return samples


def labels_of(sample: Sample) -> dict[str, str]:
    r"""The labels of a sample by name. Escapes in their values remain.

    >>> labels_of(Sample("n", 'engine="0",le="0.5"', 1.0))
    {'engine': '0', 'le': '0.5'}
    """
    return dict(_LABEL.findall(sample.labels))


def pattern_of(names: tuple[str, ...]) -> str:
    """A pattern that finds these metrics of any engine, also for Polars."""
    return rf"(?:^|[:_])(?:{'|'.join(names)})$"


def scrape_mark(unix_ns: int) -> str:
    """The comment before a scrape in a file that holds several."""
    return f"# scraped {unix_ns}\n"
