"""What an engine's own metrics can say of why its output tokens take longer than their work explains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.prometheus import CACHE_ADVICE, CACHE_FULL
from stepscope.core.units import count, counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.watching.engine_metrics import Interval

#: A rate or a share has risen if it is so many times what it was, and more than by so much.
_RISEN, _MORE_PROMPT, _MORE_WAITING = 1.5, 8.0, 1.0
_MORE_STOPPED = 2.0
#: Accepted tokens fell by enough if they explain so much of what is too long.
_LEAST_EXPLAINED, _FALLEN = 0.5, 0.97


@dataclass(frozen=True)
class _Means:
    """Means over intervals, each weighted alike; rates in a second. None is not known."""

    stopped: float
    cache_use: float | None
    waiting: float
    prompt: float
    accept_length: float | None
    batch: float
    context: float
    token_s: float | None
    span_s: float


def causes_of(during: Sequence[Interval], before: Sequence[Interval], ratio: float) -> list[dict[str, Any]]:
    """What differs in the slow intervals from those before, the strongest first: never empty.

    `ratio` is measured by expected time. A cause has `category`, `certainty`, `statement`, `evidence` (with `base` and
    `other`) and `advice`, as those of `compare`.
    """
    now, usual = _means(during), _means(before)
    if now is None or usual is None:
        return [_cause("unknown", "possible", "Too little is known of the time before it.", [], None)]
    differing = [_acceptance(now, usual, ratio), _cache(now, usual), _prefill(now, usual), _queue(now, usual)]
    return [one for one in differing if one is not None] or [_same_work(now, usual)]


def _means(intervals: Sequence[Interval]) -> _Means | None:
    if not intervals:
        return None

    def mean(name: str) -> float | None:
        values = [value for value in (getattr(one, name) for one in intervals) if value is not None]
        return float(np.mean(values)) if values else None

    span_s = sum(one.span_s for one in intervals)
    return _Means(
        stopped=sum(one.preempted for one in intervals) / span_s,
        cache_use=mean("cache_use"),
        waiting=mean("waiting") or 0.0,
        prompt=mean("prompt") or 0.0,
        accept_length=mean("accept_length"),
        batch=mean("batch") or 0.0,
        context=mean("context") or 0.0,
        token_s=mean("token_s"),
        span_s=span_s,
    )


def _acceptance(now: _Means, usual: _Means, ratio: float) -> dict[str, Any] | None:
    if not now.accept_length or not usual.accept_length or now.accept_length > _FALLEN * usual.accept_length:
        return None
    explained = usual.accept_length / now.accept_length
    is_likely = explained - 1 >= _LEAST_EXPLAINED * (ratio - 1)
    statement = (
        f"Speculative decoding has fewer tokens accepted: {usual.accept_length:.2f} → {now.accept_length:.2f} tokens"
        f" of a request in an iteration, which makes each take {explained:.2f} times as long."
    )
    evidence = [_evidence("output tokens of a request in an iteration", usual.accept_length, now.accept_length)]
    advice = "Look at what is asked now: drafts fit some texts less well. Draft fewer tokens, or none."
    return _cause("speculation", "likely" if is_likely else "possible", statement, evidence, advice)


def _cache(now: _Means, usual: _Means) -> dict[str, Any] | None:
    is_stopping = now.stopped > _MORE_STOPPED * usual.stopped
    is_full = (now.cache_use or 0.0) >= CACHE_FULL > (usual.cache_use or 0.0)
    if not is_stopping and not is_full:
        return None
    evidence = [_evidence("requests stopped in a second", usual.stopped, now.stopped)]
    said = []
    if now.cache_use is not None and usual.cache_use is not None:
        evidence.append(_evidence("part of the KV cache in use", usual.cache_use, now.cache_use))
        said = [f"the KV cache is {percent(now.cache_use)} full (before: {percent(usual.cache_use)})"]
    if is_stopping:
        stopped = counted(round(now.stopped * now.span_s), "request")
        said.append(f"{stopped} stopped for others in {duration(now.span_s * 1e9)}, their tokens computed again")
    text = "; ".join(said)
    return _cause("kv_cache", "likely" if is_stopping else "possible", f"{text[0].upper()}{text[1:]}.", evidence,
                  f"Give it {CACHE_ADVICE.removeprefix('→ ')}.")  # fmt: skip


def _prefill(now: _Means, usual: _Means) -> dict[str, Any] | None:
    if now.prompt < _RISEN * usual.prompt or now.prompt - usual.prompt < _MORE_PROMPT:
        return None
    statement = (
        f"Iterations compute more of prompts: {count(round(usual.prompt))} → {count(round(now.prompt))} prompt tokens"
        " in each."
    )
    evidence = [_evidence("prompt tokens of an iteration", usual.prompt, now.prompt)]
    advice = (
        "bound what an iteration takes of prompts (--max-num-batched-tokens of vLLM, --chunked-prefill-size of SGLang)"
    )
    return _cause("prefill", "possible", statement, evidence, advice)


def _queue(now: _Means, usual: _Means) -> dict[str, Any] | None:
    if now.waiting < _RISEN * usual.waiting or now.waiting - usual.waiting < _MORE_WAITING:
        return None
    waiting = [counted(one, "request") for one in (usual.waiting, now.waiting)]
    statement = f"The queue grows: {waiting[1]} wait to run (before: {waiting[0]})."
    evidence = [_evidence("requests in the queue", usual.waiting, now.waiting)]
    return _cause("queue", "possible", statement, evidence, "More replicas, or fewer requests.")


def _same_work(now: _Means, usual: _Means) -> dict[str, Any]:
    work = {"requests of an iteration": "batch", "tokens of a request": "context", "prompt tokens of an iteration":
            "prompt"}  # fmt: skip
    pairs = {text: (getattr(usual, name), getattr(now, name)) for text, name in work.items()}
    said = ", ".join(f"{count(round(a))} → {count(round(b))} {text}" for text, (a, b) in pairs.items() if a or b)
    statement = f"The same work takes longer, and the metrics do not say why. What work explains ({said}) is left out."
    evidence = [_evidence(text, *pair) for text, pair in pairs.items()]
    if now.token_s and usual.token_s:
        evidence.append(_evidence("time of an output token", usual.token_s * 1e9, now.token_s * 1e9, "ns"))
    advice = "Look at the machine (clocks, temperatures, other processes), and profile the server."
    return _cause("same_work", "possible", statement, evidence, advice)


def _evidence(metric: str, base: float, other: float, unit: str | None = None) -> dict[str, Any]:
    return {"metric": metric, "unit": unit, "base": base, "other": other}


def _cause(
    category: str, certainty: str, statement: str, evidence: list[dict[str, Any]], advice: str | None
) -> dict[str, Any]:
    return {
        "category": category, "certainty": certainty, "statement": statement, "evidence": evidence, "advice": advice,
    }  # fmt: skip
