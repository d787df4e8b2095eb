"""The expected time of a cycle follows its work, survives outliers and a file, and learns a stream's level."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from stepscope.watching.expected_time import ExpectedTime, observe


def _cycles(n: int, seed: int, outliers: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch, context = rng.integers(1, 65, n).astype(float), rng.uniform(100, 1000, n)
    time = 1e7 * (1 + 0.02 * batch) * np.exp(rng.normal(0, 0.01, n))
    return np.where(rng.uniform(size=n) < outliers, 10 * time, time), batch, context


def test_follows_the_work_though_a_tenth_of_the_training_is_slow() -> None:
    _, model = observe(ExpectedTime(), *_cycles(4000, 1, outliers=0.1))
    later, _ = observe(model.new_stream(), *_cycles(2000, 2))
    assert np.nanmax(np.abs(later.error)) < 0.08


def test_interval_holds() -> None:
    _, model = observe(ExpectedTime(), *_cycles(4000, 3))
    time, batch, context = _cycles(4000, 4)
    now, _ = observe(model, time, batch, context, coverage=0.9)
    assert abs(np.mean((time >= now.low) & (time <= now.high)) - 0.9) < 0.03


def test_survives_a_file() -> None:
    _, model = observe(ExpectedTime(), *_cycles(300, 5))
    assert ExpectedTime.from_json(model.to_json()) == model


def test_another_card_moves_the_level_within_a_window_and_not_the_curve() -> None:
    _, model = observe(ExpectedTime(), *_cycles(2000, 6))
    time, batch, context = _cycles(200, 7)
    now, _ = observe(model, 2 * time, batch, context)
    assert abs(np.median(now.error[:20]) - np.log(2)) < 0.02
    assert abs(np.median(now.error[100:])) < 0.02


def _pieces(n: int) -> list[slice]:
    cuts = [0, *sorted(np.random.default_rng(8).choice(np.arange(1, n), 100, replace=False).tolist()), n]
    return [slice(a, b) for a, b in pairwise(cuts)]


def test_pieces_change_nothing() -> None:
    time, batch, context = _cycles(1000, 9)
    whole, model = observe(ExpectedTime(), time, batch, context)
    parts, after = [], ExpectedTime()
    for piece in _pieces(1000):
        part, after = observe(after, time[piece], batch[piece], context[piece])
        parts.append(part.error)
    np.testing.assert_allclose(np.concatenate(parts), whole.error)
    np.testing.assert_allclose(after.recent, model.recent)


def test_nothing_is_expected_of_work_that_is_unlike_all_before_until_it_was_learned() -> None:
    small, large = np.full(300, 4.0), np.full(300, 64.0)
    times = np.exp(np.random.default_rng(10).normal(17, 0.01, 600)) * np.r_[np.ones(300), np.full(300, 3.0)]
    now, _ = observe(ExpectedTime(), times, np.r_[small, large], np.full(600, 500.0))
    is_known = ~np.isnan(now.error)
    assert not is_known[:60].any()
    assert is_known[100:300].all()
    assert not is_known[300:305].any()
    assert is_known[365:].all()
    assert np.nanmax(np.abs(now.error)) < 0.06


def _of_batch(batch: float, slower: float) -> np.ndarray:
    """Errors of cycles of a new batch, which are not learned from yet, after cycles of a batch of 16."""
    rng = np.random.default_rng(15)
    size = np.r_[np.full(300, 16.0), np.full(10, batch)]
    time = 2e7 * (1 + size / 16) * np.exp(rng.normal(0, 0.01, 310)) * np.r_[np.ones(300), np.full(10, slower)]
    now, _ = observe(ExpectedTime(), time, size, np.full(310, 500.0))
    return now.error[300:]


@pytest.mark.parametrize("batch", [15.0, 17.0, 14.0])
def test_a_new_batch_near_to_a_known_one_takes_between_its_time_and_proportionally_more(batch: float) -> None:
    assert np.abs(_of_batch(batch, 1.0)).max() < 0.03
    slow = _of_batch(batch, 2.0)
    assert slow.min() > np.log(2) - np.abs(np.log(batch / 16)) - 0.03
    assert slow.max() < np.log(2) + 0.03


def test_a_new_batch_far_from_known_ones_has_no_expected_time() -> None:
    assert np.isnan(_of_batch(32.0, 1.0)).all()
    assert np.isnan(_of_batch(8.0, 1.0)).all()


def test_a_context_that_grows_is_known_ahead_where_cycles_scatter_little() -> None:
    context, shares = 300.0 + np.arange(200), []
    for scatter in (0.0005, 0.05):
        time = 1e8 * (1 + context / 1e4) * np.exp(np.random.default_rng(16).normal(0, scatter, 200))
        now, _ = observe(ExpectedTime(), time, np.full(200, 16.0), context)
        assert np.nanmax(np.abs(now.error)) < 6 * scatter
        shares.append(float(np.mean(~np.isnan(now.error[80:]))))
    assert shares[0] == 1
    assert shares[1] < 0.9


def test_prompt_tokens_are_work() -> None:
    rng = np.random.default_rng(11)
    prompt = rng.choice([0.0, 100.0, 1000.0], 2000)
    time = (2e7 + 1e4 * prompt) * np.exp(rng.normal(0, 0.01, 2000))
    now, _ = observe(ExpectedTime(), time, np.full(2000, 8.0), np.full(2000, 500.0), prompt)
    assert np.nanmax(np.abs(now.error[200:])) < 0.06


def test_a_new_level_bends_no_curve() -> None:
    time, batch, context = _cycles(3000, 12)
    _, model = observe(ExpectedTime(), time, batch, context)
    few = np.full(500, 4.0)
    _, model = observe(model, 3e7 * np.exp(np.random.default_rng(13).normal(0, 0.01, 500)), few, context[:500])
    time, batch, context = _cycles(1000, 14)
    now, _ = observe(model.new_stream(), time, batch, context)
    assert np.nanmax(np.abs(now.error)) < 0.06


def test_a_state_from_before_scatter_was_kept_is_read() -> None:
    _, model = observe(ExpectedTime(), *_cycles(300, 5))
    state = json.loads(model.to_json())
    del state["scale"]
    assert ExpectedTime.from_json(json.dumps(state)).information == model.information


def test_an_old_state_of_another_size_is_refused() -> None:
    text = json.dumps({"information": [[1.0]], "moments": [1.0], "recent": [], "errors": [], "pending": []})
    with pytest.raises(ValueError, match="another version"):
        ExpectedTime.from_json(text)
