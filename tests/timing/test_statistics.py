from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.timing._statistics import median_interval, speedup, summary


def exact(n, level=Fraction(95, 100)):
    """Rank k and level of the interval by whole numbers, without logarithms."""
    best = None
    for k in range(1, n // 2 + 1):
        missed = Fraction(2 * sum(math.comb(n, i) for i in range(k)), 2**n)
        if missed <= 1 - level:
            best = k, 1 - missed
    return best or (1, 1 - Fraction(2, 2**n))


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8, 9, 20, 25, 70, 101, 400])
def test_the_interval_is_that_of_the_exact_binomial(n):
    found = median_interval(np.arange(1.0, n + 1))
    k, level = exact(n)
    assert (found.low, found.high) == (k, n + 1 - k)
    assert found.level == pytest.approx(float(level), abs=1e-12)


def test_few_repeats_say_what_level_they_reach():
    assert median_interval(np.array([1.0])) is None
    five = median_interval(np.array([5.0, 1.0, 4.0, 2.0, 3.0]))
    assert (five.low, five.high, five.level) == (1.0, 5.0, 0.9375)


def test_a_million_repeats_are_no_matter():
    found = median_interval(np.arange(1_000_000.0))
    assert (found.high - found.low) / 1_000_000 == pytest.approx(1.96e-3, rel=0.01)
    assert 0.95 <= found.level < 0.951


def test_the_interval_holds_the_median_as_often_as_it_says():
    random = np.random.default_rng(5)
    found = [median_interval(random.lognormal(size=21)) for _ in range(2000)]
    hit = np.mean([i.low <= 1.0 <= i.high for i in found])  # the median of this distribution is 1
    assert hit == pytest.approx(found[0].level, abs=0.015)


def test_a_summary_counts_outliers_and_leaves_them_in():
    times = np.array([10.0] * 5 + [11.0] * 4 + [12.0] * 10 + [1000.0])
    found = summary(times)
    assert (found.n, found.median, found.min, found.max, found.n_outliers) == (20, 12.0, 10.0, 1000.0, 1)
    assert found.mean == times.mean()
    assert found.p95 == pytest.approx(12 + 0.05 * 988)


def test_a_speedup_is_the_ratio_of_medians_within_the_ratios_of_their_bounds():
    own, reference = np.arange(10.0, 30.0), np.arange(40.0, 60.0)
    ratio, interval = speedup(own, reference)
    assert ratio == 49.5 / 19.5
    each = median_interval(own, 0.975), median_interval(reference, 0.975)
    assert (interval.low, interval.high) == (each[1].low / each[0].high, each[1].high / each[0].low)
    assert interval.level == pytest.approx(each[0].level + each[1].level - 1)
    assert interval.level >= 0.95


def test_seven_repeats_bound_a_speedup_at_95_percent_and_six_do_not():
    times = np.arange(1.0, 8.0)
    assert speedup(times, times)[1].level >= 0.95
    assert speedup(times[:6], times[:6])[1].level < 0.95
    assert speedup(times[:2], times[:2])[1] is None  # a level of 0 says nothing
    assert speedup(times[:1], times)[1] is None


def test_the_speedup_s_interval_holds_the_true_one_at_least_as_often_as_it_says():
    random = np.random.default_rng(6)
    hits = 0
    for _ in range(1000):
        _, found = speedup(random.lognormal(size=15), 2 * random.lognormal(size=15))
        hits += found.low <= 2.0 <= found.high
    assert hits / 1000 >= 0.95


def test_times_of_nothing_have_no_ratio():
    nothing, something = np.zeros(9), np.ones(9)
    assert math.isnan(speedup(nothing, nothing)[0])
    assert speedup(nothing, something)[0] == math.inf


@given(st.lists(st.floats(1, 1e12), min_size=2, max_size=60))
def test_the_median_lies_in_its_interval(values):
    found = summary(np.array(values))
    assert found.min <= found.interval.low <= found.median <= found.interval.high <= found.max
    assert found.min <= found.p95 <= found.max
