from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.ranks.outliers import is_outlier, stand_out


def noise(n_series: int, n_blocks: int, seed: int = 0, memory: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_series, n_blocks))
    for block in range(1, n_blocks):
        values[:, block] = memory * values[:, block - 1] + np.sqrt(1 - memory**2) * values[:, block]
    return values


def one_role(values: np.ndarray) -> list:
    return stand_out(values, np.zeros(len(values), np.int64))


def test_a_series_that_is_always_higher_is_steady():
    values = noise(16, 40)
    values[5] += 2.0
    (result,) = one_role(values)
    assert (result.series, result.pattern, result.period) == (5, "steady", None)
    assert result.blocks.tolist() == list(range(40))
    assert result.p_value < 0.001
    assert result.apart > 1


def test_one_that_is_higher_for_a_while_is_transient_with_its_window():
    values = noise(16, 100)
    values[3, 40:60] += 4.0
    (result,) = one_role(values)
    assert (result.series, result.pattern) == (3, "transient")
    assert abs(result.blocks[0] - 40) <= 2
    assert abs(result.blocks[-1] - 59) <= 2


def test_one_that_is_higher_from_then_on_is_since():
    values = noise(16, 100)
    values[3, 70:] += 4.0
    (result,) = one_role(values)
    assert (result.pattern, result.blocks[-1]) == ("since", 99)
    assert abs(result.blocks[0] - 70) <= 2


def test_one_that_is_higher_every_so_often_is_periodic():
    values = noise(16, 105)
    values[2, 4::7] += 5.0
    (result,) = one_role(values)
    assert (result.series, result.pattern, result.period) == (2, "periodic", 7)
    assert result.blocks.tolist() == list(range(4, 105, 7))


def test_one_that_is_seldom_higher_but_by_much_is_irregular():
    values = noise(8, 60, seed=3)
    hit = np.random.default_rng(5).choice(60, 14, replace=False)
    values[1] -= 0.3
    values[1, hit] += 40.0
    result = [f for f in one_role(values) if f.series == 1]
    assert [f.pattern for f in result] == ["irregular"]


@pytest.mark.parametrize("memory", [0.0, 0.6])
@pytest.mark.parametrize("shape", [(4, 25), (32, 40), (200, 16)])
def test_healthy_series_are_seldom_named(shape, memory):
    tries = [one_role(noise(*shape, seed=seed, memory=memory)) for seed in range(60)]
    assert sum(any(not f.apart < 1 for f in result) for result in tries) <= 6


@pytest.mark.parametrize("draw", ["standard_exponential", "standard_cauchy"])
def test_healthy_series_of_any_distribution_are_seldom_named(draw):
    rng = np.random.default_rng(1)
    named = sum(bool(one_role(getattr(rng, draw)((16, 30)))) for _ in range(60))
    assert named <= 6


def test_series_are_compared_within_their_role():
    values = noise(16, 40)
    values[8:] += 100.0
    role = np.repeat([0, 1], 8)
    assert stand_out(values, role) == []
    assert len(one_role(values)) > 1


def test_unknown_blocks_are_left_out():
    values = noise(16, 40)
    values[5] += 2.5
    values[5, ::4] = np.nan
    values[9] = np.nan
    (result,) = one_role(values)
    assert result.series == 5
    assert not set(result.blocks) & set(range(0, 40, 4))


def test_healthy_ranks_that_differ_for_good_are_no_outliers():
    values = noise(32, 40) + np.random.default_rng(2).normal(0, 3.0, (32, 1))
    assert all(f.apart < 1 for f in one_role(values))


def test_few_series_do_not_tell_how_far_apart_healthy_ones_are():
    values = noise(4, 40)
    values[0] += 3
    assert np.isnan(one_role(values)[0].apart)


def test_constant_series_say_nothing():
    assert one_role(np.zeros((4, 3))) == []


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_among_few_the_highest_is_seldom_an_outlier_by_chance(n):
    rng = np.random.default_rng(n)
    hits = 0
    for _ in range(3000):
        values = rng.normal(size=n)
        top = int(values.argmax())
        hits += is_outlier(float(values[top]), np.delete(values, top))
    assert hits / 3000 < 0.03


def test_among_few_one_that_is_far_off_is_an_outlier():
    assert is_outlier(100.0, np.array([0.0, 1.0, 2.0]))
    assert not is_outlier(5.0, np.array([0.0, 1.0, 2.0]))
    assert is_outlier(5.0, np.array([1.0, 1.0, 1.0]))
    assert not is_outlier(100.0, np.array([0.0]))
