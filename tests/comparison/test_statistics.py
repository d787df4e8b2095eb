from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.comparison.statistics import (
    PRIOR_RUNS,
    SPREAD_SHARE,
    at_most,
    by_false_discovery,
    combined,
    differences,
    exceeding,
    inflation,
    moments_of,
    permutation_p,
)


def values(*numbers):
    return np.array(numbers, float)


def test_independent_cycles_are_not_inflated_below_four_a_run():
    assert inflation(values(10), values(9), values(3), values(1)).tolist() == [1.0]


def test_correlated_cycles_count_as_fewer():
    r = 0.5 + (1 + 3 * 0.5) / 1000 + math.sqrt(0.75 / 1000)
    assert inflation(values(10), values(5), values(1000), values(1))[0] == pytest.approx((1 + r) / (1 - r))


def test_alternating_cycles_are_taken_as_independent_at_worst():
    assert inflation(values(10), values(-9), values(100), values(1))[0] == 1.0


def test_constant_cycles_have_no_correlation_but_an_unsure_one():
    assert np.isfinite(inflation(values(0), values(0), values(25), values(1))).all()


def test_moments_of_two_runs_weigh_runs_alike():
    result = moments_of([values(1, 3), values(5, 5, 5, 5)])
    assert (result.mean[0], result.runs[0], result.cycles[0]) == (3.5, 2, 6)
    assert result.squares[0] == 2.0
    assert result.between[0] == pytest.approx(2 * 1.5**2)


def test_moments_skip_runs_without_cycles():
    assert moments_of([values(), values(2, 4)]).runs[0] == 1


def test_combined_moments_are_those_of_each_quantity():
    runs = [values(1, 2, 4, 3), values(10, 30, 20, 20)]
    single = [moments_of([run]) for run in runs]
    both = combined(
        np.array([0, 1]), 2, values(4, 4), values(2.5, 20), *(
            np.array([getattr(one, name)[0] for one in single]) for name in ("squares", "products")
        )
    )  # fmt: skip
    assert both.variance.tolist() == [one.variance[0] for one in single]


def test_the_difference_of_two_single_runs_is_judged_by_the_prior_drift():
    base, other = moments_of([values(9, 11, 9, 11)]), moments_of([values(19, 21, 19, 21)])
    result = differences(base, other, values(0.5))
    spread = math.sqrt(4 / 3)
    reach = 2.7764451 * math.sqrt(2)
    assert result.delta[0] == 10
    assert result.drift[0] >= reach * max(0.5, SPREAD_SHARE * spread) * 0.999
    assert result.low[0] < 10 < result.high[0]
    assert result.p_value[0] < 0.01


def test_repeats_that_agree_narrow_the_drift():
    runs = [values(10, 10.1, 9.9, 10)] * 4
    single = differences(moments_of(runs[:1]), moments_of(runs[:1]), values(1.0))
    repeated = differences(moments_of(runs), moments_of(runs), values(1.0))
    assert repeated.drift[0] < single.drift[0] / 2


def test_repeats_that_disagree_widen_the_drift():
    base = moments_of([values(9, 9, 9, 9), values(11, 11, 11, 11)])
    result = differences(base, moments_of([values(10, 10, 10, 10)]), values(0.01))
    of_runs = math.sqrt((PRIOR_RUNS * 0.01**2 + 2) / (PRIOR_RUNS + 1))
    assert result.drift[0] == pytest.approx(2.5705818 * of_runs * math.sqrt(1.5), rel=1e-6)


def test_one_cycle_on_a_side_has_no_p_value():
    result = differences(moments_of([values(1)]), moments_of([values(2, 3)]), values(0.1))
    assert math.isnan(result.p_value[0])


def test_equal_constants_are_no_difference_and_unequal_ones_are_sure():
    same = differences(moments_of([values(5, 5, 5)]), moments_of([values(5, 5)]), values(0.1))
    apart = differences(moments_of([values(5, 5, 5)]), moments_of([values(6, 6)]), values(0.1))
    assert (same.p_value[0], apart.p_value[0]) == (1.0, 0.0)


@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=12))
def test_false_discovery_is_that_of_the_definition(p_values):
    m = len(p_values)
    factor = m * sum(1 / i for i in range(1, m + 1))
    ordered = sorted(p_values)
    expected = {
        p: min(1.0, *(ordered[j] * factor / (j + 1) for j in range(m) if ordered[j] >= p)) if m > 1 else min(p, 1.0)
        for p in p_values
    }
    result = by_false_discovery(np.array(p_values))
    assert result.tolist() == pytest.approx([expected[p] for p in p_values])


def test_false_discovery_leaves_out_what_is_unknown():
    result = by_false_discovery(np.array([0.01, math.nan]))
    assert result[0] == 0.01
    assert math.isnan(result[1])
    assert np.isnan(by_false_discovery(np.array([math.nan]))).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=3), st.lists(st.integers(0, 20), min_size=2, max_size=3))
def test_the_permutation_test_is_exact_for_few_cycles(base, other):
    both = base + other
    observed = abs(np.mean(base) - np.mean(other))
    ways = list(itertools.combinations(range(len(both)), len(base)))
    as_far = 0
    for chosen in ways:
        left = [both[i] for i in chosen]
        right = [both[i] for i in range(len(both)) if i not in chosen]
        as_far += abs(np.mean(left) - np.mean(right)) >= observed - 1e-9
    result = permutation_p(np.array(base, float), np.array(other, float))
    assert result == pytest.approx(as_far / len(ways))


def test_many_cycles_are_dealt_at_random_and_never_give_zero():
    rng = np.random.default_rng(3)
    result = permutation_p(rng.normal(0, 1, 60), rng.normal(5, 1, 60), most=500)
    assert 0 < result <= 2 / 501


def test_cycles_that_hang_together_are_dealt_together():
    slow = np.repeat([1.0, 2.0, 1.5, 3.0], 6)
    shuffled = np.random.default_rng(0).permutation(slow)
    assert permutation_p(slow, slow + 0.9) > permutation_p(shuffled, shuffled + 0.9)


def test_cycles_that_stand_out_are_counted_against_luck():
    base = np.full(24, 10.0)
    other = np.array([10.0, 10.0, 10.0, 14.0] * 6)
    share, chance = exceeding(base, other, 1.0)
    assert share == 0.25
    # Fisher: all six of 48 cycles among the 24 of one side.
    assert chance == pytest.approx(math.comb(24, 6) / math.comb(48, 6))


def test_too_few_cycles_never_stand_out():
    assert exceeding(values(1, 1, 1), values(9, 9, 9, 9), 1.0) == (0.0, 1.0)


@pytest.mark.parametrize(("k", "n", "p"), [(0, 5, 0.2), (3, 12, 0.2), (7, 7, 0.9)])
def test_so_few_hits_are_as_likely_as_the_sum_of_their_chances(k, n, p):
    expected = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert at_most(k, n, p) == pytest.approx(expected)


def test_the_chance_of_few_hits_among_many_thousands_is_known_as_well():
    assert at_most(1_800, 10_000, 0.2) == pytest.approx(2.5e-7, rel=0.2)
