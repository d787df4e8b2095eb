from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.comparison.history.change_points import levels_of

FLOOR = 0.005


def healthy(random: np.random.Generator, n: int, kind: str, sd: float = 0.01) -> np.ndarray:
    """Step times of runs without any change."""
    noise = {
        "normal": lambda: random.normal(0, sd, n),
        "heavy tails": lambda: random.standard_t(3, n) * sd / 3**0.5,
        "stalls": lambda: random.normal(0, sd, n) + (random.random(n) < 0.05) * random.exponential(0.2, n),
    }
    return 80e6 * np.exp(noise[kind]())


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "stalls"])
@pytest.mark.parametrize("n_runs", [12, 60, 200])
def test_at_most_one_healthy_series_in_twenty_has_a_change(kind: str, n_runs: int) -> None:
    random = np.random.default_rng(7)
    changed = [len(levels_of(healthy(random, n_runs, kind), FLOOR).starts) > 1 for _ in range(200)]
    assert np.mean(changed) <= 0.05


@pytest.mark.parametrize("n_before", [5, 20, 60])
def test_five_percent_in_one_percent_of_noise_is_a_change_after_three_runs(n_before: int) -> None:
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(100):
        steps = healthy(random, n_before + 3, "normal")
        steps[n_before:] *= 1.05
        starts = levels_of(steps, FLOOR).starts
        hits += len(starts) == 2 and abs(starts[1] - n_before) <= 1
    assert hits >= 88


def test_a_large_change_shows_with_its_second_run() -> None:
    steps = 80e6 * np.array([1.0, 1.002, 0.998, 1.001, 0.999, 1.0, 1.002, 1.4, 1.402])
    assert levels_of(steps, FLOOR).starts == (0, 7)


def test_each_level_of_a_series_is_named() -> None:
    random = np.random.default_rng(1)
    steps = healthy(random, 90, "normal", 0.005)
    steps[30:] *= 1.1
    steps[60:] *= 0.8
    levels = levels_of(steps, FLOOR)
    assert levels.starts == (0, 30, 60)
    assert all(p < 0.001 for p in levels.p_values)


def test_a_run_that_stands_out_is_no_change() -> None:
    steps = np.full(20, 80e6)
    steps[8] *= 1.5
    levels = levels_of(steps, FLOOR)
    assert (levels.starts, levels.single, levels.last_is_open) == ((0,), (8,), False)


def test_of_the_last_run_the_next_will_tell() -> None:
    steps = np.full(20, 80e6)
    steps[-1] *= 1.5
    levels = levels_of(steps, FLOOR)
    assert (levels.starts, levels.single, levels.last_is_open) == ((0,), (), True)


def test_less_than_one_percent_is_no_change_however_certain() -> None:
    steps = np.repeat([80e6, 80.5e6], 500)
    assert levels_of(steps, 1e-6).starts == (0,)


@given(st.lists(st.floats(1.0, 1e15), min_size=1, max_size=40))
def test_any_series_has_levels_in_order_and_no_run_twice(steps: list[float]) -> None:
    levels = levels_of(np.array(steps), FLOOR)
    assert levels.starts[0] == 0
    assert list(levels.starts) == sorted(set(levels.starts))
    assert len(levels.p_values) == len(levels.starts) - 1
    assert all(0 <= p <= 0.05 for p in levels.p_values)
    assert set(levels.single) <= set(range(len(steps) - 1))


@given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=20), st.floats(0.001, 1000))
def test_the_unit_changes_nothing(steps: list[float], unit: float) -> None:
    one, two = levels_of(np.array(steps), FLOOR), levels_of(np.array(steps) * unit, FLOOR)
    assert (one.starts, one.single) == (two.starts, two.single)
