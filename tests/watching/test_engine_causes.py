"""What differs in an engine's metrics while its tokens are slow is named, with figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.watching.engine_causes import causes_of
from stepscope.watching.engine_metrics import Interval

USUAL = Interval(
    span_s=1.0, tokens=200, token_s=0.02, batch=4, context=500, prompt=20, running=4, waiting=0, cache_use=0.5,
    preempted=0, accept_length=2.5, ttft_s=0.1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "category", "certainty", "said"),
    [
        ({"accept_length": 2.0, "token_s": 0.025}, "speculation", "likely", "2.50 → 2.00"),
        ({"accept_length": 2.4}, "speculation", "possible", "1.04 times"),
        ({"cache_use": 0.99, "preempted": 2}, "kv_cache", "likely", "20 requests stopped"),
        ({"cache_use": 0.99}, "kv_cache", "possible", "99 % full (before: 50 %)"),
        ({"prompt": 200}, "prefill", "possible", "20 → 200 prompt tokens"),
        ({"waiting": 7}, "queue", "possible", "7 requests wait to run (before: 0 requests)"),
        ({"token_s": 0.025}, "same_work", "possible", "4 → 4 requests of an iteration"),
    ],
)
def test_a_cause_is_what_changed(change, category, certainty, said):
    [cause] = causes_of([replace(USUAL, **change)] * 10, [USUAL] * 100, 1.25)
    assert (cause["category"], cause["certainty"]) == (category, certainty)
    assert said in cause["statement"]
    assert cause["evidence"][0].keys() == {"metric", "unit", "base", "other"}


def test_several_causes_are_named_strongest_first():
    sick = replace(USUAL, waiting=9, prompt=300, preempted=1)
    assert [cause["category"] for cause in causes_of([sick], [USUAL], 1.5)] == ["kv_cache", "prefill", "queue"]


def test_without_a_time_before_nothing_is_known():
    assert causes_of([USUAL], [], 1.5)[0]["category"] == "unknown"
