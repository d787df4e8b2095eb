"""The median of the last values, and what most of them reach, where few come at a time."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.watching import medians
from stepscope.watching.medians import last_medians, last_reached


def test_medians_of_the_last_three_of_which_two_must_be_known():
    got = last_medians((9.0,), np.array([1.0, 2.0, np.nan, np.nan, 7.0]), 3, 2)
    assert got.tolist() == pytest.approx([5.0, 2.0, 1.5, np.nan, np.nan], nan_ok=True)


def test_without_values_there_are_none():
    assert last_medians((1.0,), np.empty(0), 3, 1).tolist() == []


def test_many_values_are_as_a_few_at_a_time(monkeypatch):
    values = np.random.default_rng(0).normal(size=100)
    whole = last_medians((), values, 20, 20)
    monkeypatch.setattr(medians, "_AT_ONCE", 7)
    assert last_medians((), values, 20, 20).tolist() == pytest.approx(whole.tolist(), nan_ok=True)
    assert np.isnan(whole[:19]).all()
    assert whole[-1] == np.median(values[-20:])


def test_what_two_of_the_last_three_values_reach():
    assert last_reached((9.0,), np.array([1.0, 2.0, 7.0]), 3, 2).tolist() == pytest.approx([np.nan, 2, 2], nan_ok=True)
    assert last_reached((1.0,), np.empty(0), 3, 1).tolist() == []
