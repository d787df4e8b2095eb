from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.comparison.diagnosis.change import (
    ABSENT,
    Change,
    change_of,
    changed,
    evidence,
    fold,
    gpu_name,
    moved,
    span,
)

RANDOM = np.random.default_rng(0)


def noisy(level, n=25, spread=0.01):
    return level * (1 + spread * np.random.default_rng(n).standard_normal(n))


def test_a_clear_difference_is_real():
    change = changed([noisy(100.0)], [noisy(120.0, 24)], relative=0.03)
    assert change.is_real
    assert change.delta == pytest.approx(20, abs=2)
    assert change.ratio == pytest.approx(1.2, abs=0.02)
    assert change.rose(by=10, times=1.1)
    assert not change.rose(times=1.5)
    assert not change.fell()


def test_a_difference_within_the_drift_of_runs_is_not():
    assert not changed([noisy(100.0)], [noisy(102.0, 24)], relative=0.03).is_real


def test_a_difference_within_the_scatter_is_not():
    assert not changed([noisy(100.0, spread=0.5)], [noisy(120.0, 24, spread=0.5)], relative=0.03).is_real


def test_what_fell_fell():
    change = changed([noisy(100.0)], [noisy(50.0, 24)], relative=0.03)
    assert change.fell(to=0.6)
    assert not change.fell(to=0.4)
    assert not change.rose()


def test_a_side_that_does_not_have_it_is_unknown():
    change = changed([noisy(5.0)], [np.empty(0)], relative=0.03, unit="ns")
    assert (change.is_known, change.is_real, change.other, change.unit) == (False, False, None, "ns")
    assert change.ratio is None
    assert not ABSENT.is_known


def test_four_cycles_a_side_are_enough_if_a_gap_parts_them():
    base, other = np.array([100.0, 140.0, 120.0, 100.0]), np.array([20.0, 21.0, 20.0, 21.0])
    assert changed([base], [other], relative=0.05).is_real


def test_three_need_a_twofold_gap():
    base = np.array([100.0, 104.0, 102.0])
    assert not changed([base], [np.array([130.0, 171.0, 145.0])], relative=0.05).is_real
    assert changed([base], [np.array([210.0, 300.0, 250.0])], relative=0.05).is_real


def test_one_cycle_a_side_says_nothing():
    assert not changed([np.array([1.0])], [np.array([9.0])], relative=0.05).is_real


def test_what_comes_every_few_cycles_is_seen():
    rare = noisy(100.0, 26)[:25].copy()
    rare[4::5] += 150
    assert changed([noisy(100.0)], [rare], relative=0.03).is_real


def test_one_hiccup_is_not():
    once = noisy(100.0, 26)[:25].copy()
    once[7] += 300
    assert not changed([noisy(100.0)], [once], relative=0.03).is_real


def test_repeats_that_differ_raise_the_bar():
    runs = [noisy(100.0, 25), noisy(115.0, 24), noisy(92.0, 23)]
    assert not changed(runs, [noisy(118.0, 22)], relative=0.03).is_real


def test_what_appears_from_nothing_is_real():
    change = changed([np.zeros(25)], [noisy(5.0)], relative=0.05, absolute=1.0)
    assert change.is_real
    assert change.ratio is None


@pytest.mark.slow
@given(st.lists(st.floats(1, 1e9), min_size=2, max_size=20))
def test_equal_sides_never_differ(values):
    assert not changed([np.array(values)], [np.array(values)], relative=0.03).is_real


@pytest.mark.parametrize(("drift", "most"), [(0.0, 0.01), (0.01, 0.06)])
def test_under_the_null_few_quantities_are_called_real(drift, most):
    """Runs that drift by 1 % differ by more than the stated 3 % in one pair of thirty."""
    random = np.random.default_rng(7)

    def run():
        return 100 * (1 + drift * random.standard_normal()) * (1 + 0.02 * random.standard_normal(12))

    hits = sum(changed([run()], [run()], relative=0.03).is_real for _ in range(400))
    assert hits <= most * 400


def test_an_unknown_side_counts_as_none_in_the_difference():
    assert Change(None, 3.0).delta == 3.0
    assert Change(2.0, None).delta == -2.0


@pytest.mark.parametrize(
    ("base", "other", "text"),
    [(100, 103, "+3 %"), (100, 18, "−82 %"), (1, 2, "2×"), (1, 3.44, "3.4×"), (2e6, 7.5e9, "3,750×"), (0, 3, ""),
     (None, 3, ""), (3, None, "")],
)  # fmt: skip
def test_relative_changes(base, other, text):
    assert change_of(base, other) == text


def test_times_have_two_digits():
    assert (fold(0.934), fold(1.05), fold(12.4), fold(353.2)) == ("0.93×", "1.1×", "12×", "353×")


@pytest.mark.parametrize(
    ("base", "other", "unit", "text"),
    [
        (1187.0, 210.0, "MHz", "from 1,187 to 210 MHz"),
        (45e6, 105e6, "ns", "from 45 ms to 105 ms"),
        (2e6, 7.4e9, "bytes/s", "from 2 MB/s to 7.4 GB/s"),
        (1024, 2048, "kB", "from 1 MiB to 2 MiB"),
        (None, 2048, "kB", "from – to 2 MiB"),
        (1.0, 2.5, None, "from 1 to 2.5"),
        (5.2e9, 7.8e9, "count", "from 5.2 G to 7.8 G"),
    ],
)
def test_both_values_in_units_that_people_know(base, other, unit, text):
    assert span(base, other, unit) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change(1187.0, 210.0, True, "MHz"), "fell from 1,187 to 210 MHz (−82 %)"),
        (Change(1e6, 3.4e6, True, "ns"), "rose from 1 ms to 3.4 ms (3.4×)"),
        (Change(5.0, 5.0, False, "MHz"), "stayed from 5 to 5 MHz"),
        (Change(0.0, 2e6, True, "ns"), "rose from 0 to 2 ms"),
        (Change(None, 2e6, True, "ns"), "is new (2 ms)"),
    ],
)
def test_changes_are_sentences(change, text):
    assert moved(change) == text


def test_evidence_carries_the_values_of_its_change():
    row = evidence("clock", Change(2.0, 1.0, True, "MHz"), role="necessary", device="gpu0", metric="gpu_sm_frequency")
    assert (row.base, row.other, row.unit, row.role, row.device) == (2.0, 1.0, "MHz", "necessary", "gpu0")
    assert evidence("no number").base is None


def test_gpus_are_named_by_number_if_they_have_one():
    assert gpu_name("gpu3") == "GPU 3"
    assert gpu_name("gpu") == "The GPU"
    assert gpu_name("host", "host") == "host"
