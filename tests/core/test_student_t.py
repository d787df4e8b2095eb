"""Chances and values of Student's t distribution are those of SciPy, however small the chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri, stdtr, stdtrit

from stepscope.core.student_t import upper_quantile, upper_tail

FREEDOM = st.floats(0.5, 1e12)


@given(FREEDOM, st.floats(0.0, 1e6))
def test_the_chance_to_exceed_a_value_is_scipys(freedom, t):
    assert float(upper_tail(freedom, t)) == pytest.approx(float(stdtr(freedom, -t)), rel=1e-11, abs=1e-290)


@given(FREEDOM, st.floats(1e-15, 0.49))
def test_the_value_that_is_exceeded_with_a_chance_is_scipys(freedom, chance):
    value = float(upper_quantile(freedom, chance))
    assert value == pytest.approx(-float(stdtrit(freedom, chance)), rel=1e-10)
    assert float(upper_tail(freedom, value)) == pytest.approx(chance, rel=1e-11)


def test_one_degree_of_freedom_is_the_distribution_of_cauchy():
    t = np.array([0.0, 1.0, 1e3, 1e12])
    assert upper_tail(1.0, t) == pytest.approx(np.arctan2(1.0, t) / np.pi, rel=1e-13)


@pytest.mark.parametrize("freedom", [1e15, 1e300, np.inf])
def test_endless_degrees_of_freedom_are_the_normal_distribution(freedom):
    assert float(upper_quantile(freedom, 0.025)) == pytest.approx(-float(ndtri(0.025)), rel=1e-12)


def test_pairs_are_those_of_arrays_whose_shapes_fit():
    freedom, t = np.array([[1.0], [30.0]]), np.array([0.5, 2.0, 7.0])
    assert upper_tail(freedom, t) == pytest.approx(stdtr(freedom, -t), rel=1e-13)
    assert upper_quantile(np.array([[9.0, 2.0], [2.0, 9.0]]), 0.1).shape == (2, 2)
    assert upper_tail(np.zeros(0), np.zeros(0)).shape == upper_quantile(np.zeros(0), 0.1).shape == (0,)


def test_an_infinite_value_is_never_exceeded_and_an_unknown_one_gives_an_unknown_chance():
    chances = upper_tail([3.0, 3.0, np.nan, 3.0], [np.inf, np.nan, 1.0, 0.0])
    assert chances.tolist() == pytest.approx([0.0, np.nan, np.nan, 0.5], nan_ok=True)
    assert np.isnan(upper_quantile([np.nan, 4.0], 0.025)).tolist() == [True, False]
