from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exports.latencyprism._significance import exact_tails, mann_whitney, student_tails, welch


def group(mean, sd, n):
    return np.array([mean]), np.array([sd]), np.array([n])


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (1.0, 1.0, 0.5),  # 1 − 2 atan(t)/π
        (2.0, 2.0, 1 - 2 / 6**0.5),  # 1 − t / √(2 + t²)
        (2.0, 3.0, 0.13932597),
        (-0.5, 10.5, 0.6273873),
        (12.7, 1.0, 0.05002433),
        (1.959964, 1e9, 0.05),
        (0.0, 5.0, 1.0),
        (np.inf, 5.0, 0.0),
    ],
)
def test_tails_of_students_t(t, freedom, p):
    assert student_tails(np.array([t]), np.array([freedom]))[0] == pytest.approx(p, abs=5e-8)


def test_a_tail_of_nothing_is_nothing():
    assert np.isnan(student_tails(np.array([np.nan]), np.ones(1)))[0]
    assert student_tails(np.empty(0), np.empty(0)).size == 0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.1, 1e6))
def test_a_larger_t_has_no_larger_tail(t, more, freedom):
    near, far = student_tails(np.array([t, t + more]), np.array([freedom, freedom]))
    assert 0 <= far <= near + 1e-9 <= 1 + 1e-9


def test_welch_compares_means_of_unequal_spread():
    assert welch(group(1.0, 0.5, 4), group(2.0, 0.25, 6))[0] == pytest.approx(0.020626046957456696)


def test_welch_without_spread_and_without_members():
    assert np.isnan(welch(group(1.0, 0.0, 4), group(1.0, 0.0, 6)))[0]
    assert welch(group(1.0, 0.0, 4), group(2.0, 0.0, 6))[0] == 0
    assert welch(group(1.0, 0.0, 1), group(2.0, 1.0, 6))[0] == 1
    assert welch(group(0.0, 0.0, 0), group(2.0, 1.0, 6))[0] == 1
    assert 0 < welch(group(1.0, 0.0, 4), group(2.0, 1.0, 6))[0] < 1


@pytest.mark.parametrize(("n_1", "n_2"), [(1, 1), (2, 3), (3, 3), (2, 7), (4, 5)])
def test_exact_tails_are_those_of_all_orders(n_1, n_2):
    places = range(n_1 + n_2)
    found = [sum(chosen) - n_1 * (n_1 - 1) // 2 for chosen in combinations(places, n_1)]
    expected = [np.mean(np.array(found) >= k) for k in range(n_1 * n_2 + 1)]
    assert exact_tails(n_1, n_2) == pytest.approx(np.array(expected))


def test_exact_tails_hold_numbers_that_no_double_does():
    tails = exact_tails(8, 400)
    assert tails[0] == 1
    assert tails[-1] == pytest.approx(1.86e-17, rel=1e-2)  # 1 / (408 over 8)
    assert np.all(np.diff(tails) <= 0)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([1, 2, 3], [4, 5, 6, 7], 0.05714285714285714),  # exact
        ([1, 2, 2], [2, 5, 6, 7], 0.09872864789482493),  # ties: normal
        (range(10), np.arange(10) + 3.5, 0.031209012771740218),  # more than 8: normal
        ([1, 1], [1, 1, 1], 1.0),
        ([1], [2, 3], 1.0),
    ],
)
def test_the_u_test(first, second, p):
    both = np.concatenate([first, second]).astype(float)
    wins = np.sum(np.array(first)[:, None] > np.array(second)[None, :])
    u = wins + np.sum(np.array(first)[:, None] == np.array(second)[None, :]) / 2
    counts = np.unique(both, return_counts=True)[1].astype(float)
    for one, sizes in ((u, (len(first), len(second))), (len(first) * len(second) - u, (len(second), len(first)))):
        found = mann_whitney(
            np.array([float(one)]), *(np.array([n]) for n in sizes), np.array([np.sum(counts**3 - counts)])
        )
        assert found[0] == pytest.approx(p)
