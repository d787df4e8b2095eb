"""Differences of an engine's counters are the mean time of a token, and its work."""

from __future__ import annotations

import pytest
from expositions import SGLANG, served, vllm

from stepscope.watching.engine_metrics import MOST_ENGINES, interval_between, read_engines


def _between(before, after, at=1.0, name="engine 0"):
    return interval_between(read_engines(before, 0.0)[name], read_engines(after, at)[name])


def test_of_vllm_the_time_of_a_token_and_its_work_are_known():
    before = vllm(running=4, use=0.125, prompt=1000, cached=200, tokens=1000, iterations=400, waited=30, first=5)
    after = vllm(running=4, use=0.125, prompt=1900, cached=600, tokens=1200, iterations=450, waited=34, first=7,
                 first_s=0.6, waiting=3, preempted=2)  # fmt: skip
    interval = _between(before, after)
    assert interval.token_s == pytest.approx(4 / 200)
    assert (interval.batch, interval.context, interval.prompt) == (4.0, 500.0, 10.0)
    assert (interval.waiting, interval.preempted, interval.cache_use) == (3.0, 2.0, 0.125)
    assert interval.ttft_s == pytest.approx(0.3)
    assert interval.accept_length is None


def test_accepted_drafts_are_tokens():
    work = {"running": 4, "iterations": 100, "tokens": 400, "waited": 8}
    interval = _between(vllm(drafts=0, accepted=0), vllm(**work, drafts=400, accepted=600))
    assert interval.accept_length == 2.5
    assert interval.tokens == 1000
    assert interval.token_s == pytest.approx(8 / 1000)
    assert interval.batch == 4


def test_of_sglang_the_batch_is_that_of_waiting_requests_and_ranks_say_the_same():
    before = SGLANG.format(running=8, prompt=0, computed=0, tokens=0, waited=0)
    after = SGLANG.format(running=8, prompt=9999, computed=500, tokens=400, waited=8)
    interval = _between(before, after)
    assert interval.token_s == pytest.approx(0.02)
    assert (interval.batch, interval.context) == (8.0, 500.0)
    assert interval.prompt == pytest.approx(10.0)
    assert (interval.cache_use, interval.accept_length) == (0.25, 2.5)


def test_if_the_batch_changed_most_tokens_are_of_the_larger():
    # 50 iterations of 1 request, then 50 of 63.
    interval = _between(vllm(running=1), vllm(running=63, tokens=50 + 50 * 63, iterations=100, waited=60))
    assert interval.batch == pytest.approx((50 * 1 + 50 * 63**2) / (50 + 50 * 63))


def test_few_tokens_have_no_time():
    assert _between(vllm(), vllm(tokens=9, waited=1, iterations=9)).token_s is None
    assert _between(vllm(), vllm()).token_s is None


@pytest.mark.parametrize(
    ("before", "after", "at"),
    [
        ({"tokens": 100}, {"tokens": 50}, 1.0),  # started anew
        ({"start": 1.7e9}, {"start": 1.8e9}, 1.0),
        ({}, {"tokens": 100}, 60.0),  # too far apart
        ({}, {"tokens": 100}, 0.0),
    ],
)
def test_readings_that_do_not_follow_each_other_are_no_interval(before, after, at):
    assert _between(vllm(**before), vllm(**after), at) is None


def test_engines_and_models_are_streams_of_their_own():
    text = served(5.0)
    both = read_engines(text + text.replace('engine="0"', 'engine="1"'), 0.0)
    assert list(both) == ["engine 0", "engine 1"]
    assert list(read_engines(text + text.replace('"m"', '"other"'), 0.0)) == ["m, engine 0", "other, engine 0"]


def test_data_parallel_parts_add_up():
    text = SGLANG.format(running=8, prompt=0, computed=0, tokens=0, waited=0)
    parts = "".join(text.replace('tp_rank="', f'dp_rank="{i}",tp_rank="') for i in (0, 1))
    values = read_engines(parts, 0.0)["engine 0"].values
    assert (values["running"], values["cache_use"]) == (16.0, 0.25)


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", "vllm:num_requests_running 3\n", "vllm:{{{ 1\n\0"])
def test_without_times_of_tokens_there_is_no_engine(text):
    assert read_engines(text, 0.0) == {}


def test_values_that_are_not_finite_are_left_out_and_engines_are_bounded():
    assert read_engines(served(5.0).replace("seconds_sum", "seconds_sum_"), 0.0) == {}
    assert read_engines(vllm(waited=float("inf")), 0.0) == {}
    many = "".join(served(5.0).replace('engine="0"', f'engine="{i}"') for i in range(MOST_ENGINES + 3))
    assert len(read_engines(many, 0.0)) == MOST_ENGINES
