"""What requests to an engine that serves a model took: measured one by one, or as metrics of the engine."""

from __future__ import annotations

import re

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.readers.common.source import head_of
from stepscope.readers.formats import LIST, OBJECT, PACKING, Format, Sign

#: Side files of requests in the folder of a profile.
REQUEST_FILES = tuple(f"requests.{ending}{packing}" for ending in ("jsonl", "json") for packing in ("", ".gz", ".zst"))
#: The scrapes that `record --metrics` leaves in the folder of a profile.
RECORDED_METRICS = ("metrics.prom.gz", "metrics.prom")
METRICS = regex(
    rb"^[ \t]*(?:# TYPE [a-zA-Z_:][\w:]* (?:counter|gauge|histogram|summary|untyped|unknown|info)\b"
    rb"|[a-zA-Z_:][\w:]*\{\w+=\"[^\n]*\}[ \t]+[-+.\d])",
    re.MULTILINE,
)
_ENDINGS = (".prom", ".metrics", ".txt")
_DIGITS = regex(r"\d+")
#: Fields that only requests have, and those of a benchmark's result.
_OF_REQUESTS = regex(
    rb'"(?:ttfts?|itls?|time_to_first_token\w*|(?:mean_)?(?:inter_token_latency|itl|ttft|tpot)\w*|e2e_latency\w*|e2el\w*'
    rb"|queue_time\w*|time_in_queue|first_token_(?:time|ts|latency)\w*|time_per_output_token\w*|request_throughput"
    rb"|prefill_finished_\w+|request_latency\w*|end_to_end_latency\w*|response_timestamps|number_output_tokens"
    rb'|timing_metrics|predicted_ms|eval_duration)"\s*:|"type_"\s*:\s*"generative_benchmark'
)


def are_requests(path: str) -> bool:
    """Whether a file holds requests, or metrics of an engine."""
    if not re.search(rf"\.(?:jsonl?|prom|metrics|txt){PACKING}", path.lower()):
        return False
    try:
        head = head_of(path)
    except StepscopeError:
        return False
    return any(one.sniff(path, head) > 0 for one in FORMATS) and b'"traceEvents"' not in head


def scrapes_of(path: str) -> list[str]:
    """The scrapes in the folder of one, whose names differ only in their numbers, in the order of these."""
    folder, name = files.split(path)
    if not name.lower().endswith(_ENDINGS):
        return [path]
    try:
        if not METRICS.search(head_of(path, n_bytes=4096)):
            return [path]
        listed = files.files_in(folder or ".", deep=False)
    except StepscopeError:  # a folder or bucket whose files may be read and not listed
        return [path]
    shape = _DIGITS.sub("0", name)
    alike = [files.joined(folder, name) for file in listed if _DIGITS.sub("0", name := files.split(file)[1]) == shape]
    return sorted(alike, key=_in_order) or [path]


def _in_order(path: str) -> list[tuple[int, str]]:
    name = files.split(path)[1]
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


FORMATS = (
    Format(
        name="requests",
        doc="requests to an engine one by one, JSON or JSON lines: benchmarks of vLLM and SGLang, AIPerf, GenAI-Perf,"
            " GuideLLM, LLMPerf, or your own; see serving.md",
        module="requests.reader",
        signs=(
            Sign(0.3, OBJECT, pattern=_OF_REQUESTS),
            Sign(0.3, LIST, pattern=_OF_REQUESTS),
        ),
        provides=("requests", "issues"),
        endings=(".jsonl",),
    ),
    Format(
        name="metrics",
        doc="metrics of an engine as Prometheus text: one scrape, or those of a folder; see serving.md",
        module="requests.metrics",
        signs=(Sign(0.2, pattern=METRICS),),
        provides=("histograms", "counters", "issues"),
        companion_files=scrapes_of,
        endings=(".prom", ".metrics"),
    ),
)  # fmt: skip
#: Their names, of files that are read with a profile and not the other way round.
FORMATS_OF_REQUESTS = tuple(one.name for one in FORMATS)
