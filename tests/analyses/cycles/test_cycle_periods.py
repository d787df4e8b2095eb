from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.cycles.cycle_periods import sequence_period, split_sequence, time_period


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.integers(6, 12))
def test_the_shortest_period_of_a_repeated_sequence_is_found(turn, times):
    shortest = next(p for p in range(1, len(turn) + 1) if len(turn) % p == 0 and turn == turn[:p] * (len(turn) // p))
    period, alike = sequence_period(np.array(turn * times))
    assert (period, alike) == (shortest, 1.0)


def test_a_sequence_that_is_disturbed_now_and_then_still_has_its_period():
    codes = np.array(list(range(20)) * 30)
    codes[[5, 133, 402]] = 19
    period, alike = sequence_period(codes)
    assert period == 20
    assert 0.98 < alike < 1


@pytest.mark.parametrize("codes", [[0, 1, 2], list(range(40))])
def test_what_does_not_repeat_has_no_period(codes):
    period, alike = sequence_period(np.array(codes))
    assert period == 0 or alike < 0.1


def test_turns_begin_after_the_longest_pause():
    starts = np.array([0, 2, 14, 16, 18, 30, 32, 34, 46, 48, 50])
    assert split_sequence(starts, starts + 1, 3).tolist() == [14, 30, 46]


def test_a_rhythm_in_time_is_found():
    rng = np.random.default_rng(1)
    beats = [k * 1000 + np.sort(rng.integers(0, 400, 40)) for k in range(40)]
    period, alike = time_period(np.concatenate(beats), 0, 40_000)
    assert period == pytest.approx(1000, rel=0.03)
    assert alike > 0.5


@pytest.mark.parametrize(
    ("times", "high"), [(np.arange(5), 5), (np.arange(100), 0), (np.full(100, 7), 7)], ids=["few", "no time", "at once"]
)
def test_without_enough_events_or_time_there_is_no_rhythm(times, high):
    assert time_period(times, 0 if high != 7 else 7, high) == (0, 0.0)


def test_even_activity_has_no_rhythm():
    assert time_period(np.arange(0, 25_600, 10), 0, 25_600)[1] < 0.5
    rng = np.random.default_rng(2)
    assert time_period(np.sort(rng.integers(0, 10**6, 3000)), 0, 10**6)[1] < 0.5


def test_events_outside_the_time_looked_at_have_no_rhythm():
    assert time_period(np.arange(100), 1000, 2000) == (0, 0.0)


def test_a_sequence_without_a_repetition_has_no_period():
    assert {sequence_period(np.arange(n))[1] for n in range(9, 30)} == {0.0}
