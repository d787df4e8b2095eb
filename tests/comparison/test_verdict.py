from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observations import observation, pair

from stepscope.comparison.model import Effect
from stepscope.comparison.verdict import (
    Stalls,
    compare_runs,
    judge,
    stalls,
    step_effect,
    step_times,
    typical_effect,
    undisturbed_effect,
)
from stepscope.core.errors import StepscopeError


def run(durations, **facts):
    rows = [
        (c, "host", name, "operator", 1, ns // 2, ns // 2)
        for c, ns in enumerate(durations, 1)
        for name in ("aten::mm", "aten::add")
    ]
    parts = [(c, "operators", ns) for c, ns in enumerate(durations, 1)]
    return observation(durations, functions=rows, parts=parts, **facts)


BASE = [100_000_000 + 100_000 * (i % 5) for i in range(20)]


def test_equal_runs_are_no_difference():
    comparison = compare_runs([[run(BASE)]], [[run(BASE)]])
    assert (comparison.verdict, comparison.causes) == ("no_difference", ())
    assert comparison.step_time.delta == 0


def test_parts_sum_to_the_difference_of_the_step():
    comparison = compare_runs([[run(BASE)]], [[run([2 * ns for ns in BASE])]])
    assert (comparison.verdict, comparison.reason) == ("different", "slower")
    assert comparison.parts["delta_ns"].sum() == pytest.approx(comparison.step_time.delta)


def test_one_cycle_is_inconclusive_and_says_so():
    comparison = compare_runs([[run(BASE[:1])]], [[run(BASE[:1])]])
    assert (comparison.verdict, comparison.causes) == ("inconclusive", ())
    assert comparison.reason == "only 1 complete cycle on a side"
    step = comparison.step_time
    assert (step.low, step.high, step.p_value, step.detectable) == (None, None, None, None)


def test_a_recording_and_its_copy_do_not_differ_however_much_its_cycles_scatter():
    scattered = [1_000_000, 5_000_000, 1_200_000, 9_000_000, 800_000]
    same = compare_runs([[run(scattered)]], [[run(scattered)]])
    assert (same.verdict, same.reason) == ("no_difference", "every cycle took the same time")
    assert compare_runs([[run(scattered)]], [[run(scattered[::-1])]]).verdict == "inconclusive"


@pytest.mark.slow
def test_notes_of_the_recordings_are_said_once():
    noted = run(BASE, remarks=("no counters",))
    comparison = compare_runs([[noted]], [[noted]])
    assert comparison.notes.count("no counters") == 1
    odd = run(BASE, remarks=("odd", "no counters"))
    assert compare_runs([[noted]], [[odd]]).notes[-2:] == ("no counters", "in the other run, odd")
    assert "in the base, odd" in compare_runs([[odd]], [[noted]]).notes


def test_runs_without_a_common_rank_have_nothing_to_compare():
    ranks = [[run(BASE, rank=0), run(BASE, rank=1)]]
    other = [[observation(BASE, rank=2), observation(BASE, rank=3)]]
    with pytest.raises(StepscopeError, match="nothing to compare: rank 2, rank 3 of made"):
        compare_runs(ranks, other)


def test_cycles_of_different_kinds_are_refused():
    with pytest.raises(StepscopeError, match="cannot be compared: cycles are calls of"):
        compare_runs([[run(BASE, anchor="step")]], [[run(BASE, anchor="layer")]])


def cycles(rng, n, *, noise, correlation=0.0, level=1e8):
    """Cycle times with a relative noise whose neighbours are correlated, in ns."""
    wander = np.empty(n)
    wander[0] = rng.normal()
    for i in range(1, n):
        wander[i] = correlation * wander[i - 1] + np.sqrt(1 - correlation**2) * rng.normal()
    return level * np.exp(noise * wander)


def verdict(base, other):
    effect, typical = step_effect([base], [other]), typical_effect([base], [other])
    assert effect is not None
    return judge(effect, stalls([base], [other]), has_cause=False, typical=typical)[0]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("n", "noise", "correlation"), [(30, 0.01, 0.0), (30, 0.05, 0.5), (25, 0.1, 0.0), (60, 0.03, 0.8), (12, 0.02, 0.3)]
)
def test_equal_runs_are_called_different_in_one_of_twenty_at_most(n, noise, correlation):
    rng = np.random.default_rng(7)
    pairs = 500
    comparison = [
        verdict(*(cycles(rng, n, noise=noise, correlation=correlation) for _ in range(2))) for _ in range(pairs)
    ]
    assert comparison.count("different") <= 0.05 * pairs


@pytest.mark.slow
def test_three_percent_in_one_percent_of_noise_is_found():
    rng = np.random.default_rng(8)
    verdicts = [verdict(cycles(rng, 30, noise=0.01), cycles(rng, 30, noise=0.01, level=1.03e8)) for _ in range(300)]
    assert verdicts.count("different") >= 0.95 * 300


def test_a_change_within_what_healthy_runs_differ_is_none():
    base = np.array([100.0, 100.1, 99.9, 100.0, 100.05, 99.95])
    assert verdict(base, base * 1.015) == "no_difference"
    assert verdict(base, base * 1.04) == "different"


def test_faster_is_different_too():
    rng = np.random.default_rng(1)
    base, other = cycles(rng, 20, noise=0.01), cycles(rng, 20, noise=0.01, level=0.8e8)
    assert judge(step_effect([base], [other]), None, has_cause=False) == ("different", "faster")


def test_one_stray_cycle_does_not_hide_a_change_of_all_others():
    rng = np.random.default_rng(2)
    base, other = cycles(rng, 30, noise=0.01), cycles(rng, 30, noise=0.01, level=1.2e8)
    other[7] *= 8
    assert verdict(base, other) == "different"


@pytest.mark.slow
def test_what_is_proven_is_the_mean_or_else_the_typical_step():
    rng = np.random.default_rng(2)
    base, other = (rng.normal(level, 1e6, 30) for level in (1e8, 1.2e8))
    stray = other.copy()
    stray[7] *= 8
    runs = [run([round(ns) for ns in values]) for values in (base, other, stray)]
    plain, strayed, same = (compare_runs([[runs[0]]], [[each]]) for each in (runs[1], runs[2], runs[0]))
    assert plain.proof is plain.step_time
    assert strayed.proof is strayed.typical_step
    assert strayed.step_verdict == "different"
    assert same.proof is None


def test_something_that_comes_every_few_cycles_is_found():
    rng = np.random.default_rng(3)
    base, other = cycles(rng, 40, noise=0.005), cycles(rng, 40, noise=0.005)
    other[::5] *= 1.15
    assert verdict(base, other) == "different"


def test_few_cycles_are_believed_only_if_twofold():
    assert verdict(np.array([100.0, 101, 102]), np.array([120.0, 121, 122])) == "inconclusive"
    assert verdict(np.array([100.0, 101, 102]), np.array([250.0, 251, 252])) == "different"
    assert verdict(np.array([100.0, 101, 102]), np.array([100.0, 101, 102])) == "no_difference"


def test_one_cycle_tells_nothing():
    assert verdict(np.array([100.0]), np.array([101.0])) == "inconclusive"


def test_no_cycles_have_no_effect_but_a_cause_may_be_seen():
    assert step_effect([], [np.array([1.0])]) is None
    assert judge(None, None, has_cause=False)[0] == "inconclusive"
    assert judge(None, None, has_cause=True)[0] == "different"


def effect(**changes):
    facts = dict.fromkeys(("low", "high", "p_value", "detectable"), 0.0)
    known = {
        "base": 100.0,
        "other": 103.0,
        "delta": 3.0,
        "drift": 5.0,
        "n_base": 9,
        "n_other": 9,
        "is_different": False,
    }
    return Effect(**{**facts, **known, **changes})


def test_a_cause_is_a_difference_though_the_step_hides_it():
    assert judge(effect(), None, has_cause=True) == ("different", "same step time, other conditions")


def test_scatter_beyond_drift_without_significance_is_inconclusive():
    assert judge(effect(delta=16.0), None, has_cause=False)[0] == "inconclusive"


def test_a_change_that_matters_and_is_not_proven_is_inconclusive():
    base = effect(low=-22.0, high=51.0, delta=14.0, drift=30.0)
    assert judge(base, None, has_cause=False)[0] == "inconclusive"
    assert judge(effect(low=-45.0, high=51.0), None, has_cause=False)[0] == "inconclusive"
    assert judge(effect(low=-9.0, high=15.0), None, has_cause=False)[0] == "no_difference"


def test_most_cycles_that_are_longer_are_no_stalls():
    assert not Stalls(0.8, 0.001).is_different
    assert Stalls(0.3, 0.001).is_different


@given(
    st.lists(st.floats(1.0, 1e3), min_size=1, max_size=12),
    st.lists(st.floats(1.0, 1e3), min_size=1, max_size=12),
)
def test_a_step_time_is_different_only_if_its_interval_excludes_zero(base, other):
    mean, typical = (find([np.array(base)], [np.array(other)]) for find in (step_effect, typical_effect))
    assert mean is not None
    assert (mean.low is None) == (min(len(base), len(other)) < 2)
    verdict, _ = judge(mean, None, has_cause=False, typical=typical)
    proven = [e for e in (mean, typical) if e is not None and e.is_different]
    assert (verdict == "different") == bool(proven)
    assert all(e.low > 0 or e.high < 0 for e in proven)
    if verdict == "no_difference":
        assert mean.low <= 0 <= mean.high or abs(mean.delta) < 0.1 * mean.base
        assert max(-mean.low, mean.high) <= mean.base / 3


def test_stalls_alone_are_a_difference():
    assert judge(effect(), Stalls(0.3, 0.001), has_cause=False) == ("different", "some cycles stand out")


def test_ratio_of_an_empty_base_is_unknown():
    assert effect(base=0.0).ratio is None
    assert effect().ratio == 1.03


def test_processes_that_turn_together_have_one_step_time():
    ranks = [pair(observation([10, 20, 30]), observation([20, 20])), pair(observation([30, 40]), observation([40, 60]))]
    assert [run.tolist() for run in step_times(ranks, side="base")] == [[20.0, 30.0]]
    assert [run.tolist() for run in step_times(ranks, side="other")] == [[30.0, 40.0]]


def test_cycles_recorded_in_part_do_not_count():
    one = pair(observation([5, 20, 30], complete=[False, True, True]), observation([1]))
    assert [run.tolist() for run in step_times([one], side="base")] == [[20.0, 30.0]]


def test_a_phase_in_which_the_machine_is_slow_hides_no_change_of_all_other_stretches():
    rng = np.random.default_rng(3)
    base, other = (cycles(rng, 40, noise=0.01, level=level) for level in (1e8, 1.2e8))
    base[10:25] *= 1.5
    assert not step_effect([base], [other]).is_different
    assert undisturbed_effect([base], [other]).is_different
    assert not undisturbed_effect([base], [other / 1.2]).is_different
