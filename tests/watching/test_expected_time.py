"""The expected time of a cycle follows its work, survives outliers and a file, and learns a stream's level."""

from __future__ import annotations

import numpy as np

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
