from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from stepscope.analyses.ranks.normal_distribution import above, quantile, student_quantile


def test_quantiles_are_those_of_the_standard_normal():
    p = np.concatenate((np.geomspace(1e-12, 0.5, 200), 1 - np.geomspace(1e-9, 0.5, 200)))
    assert quantile(p) == pytest.approx([NormalDist().inv_cdf(x) for x in p], rel=1e-6, abs=1e-8)


def test_unknown_probabilities_have_unknown_quantiles():
    assert np.isnan(quantile(np.array([np.nan, 0.5]))).tolist() == [True, False]


def test_tails_are_exact_far_out():
    assert above(0.0) == 0.5
    assert above(6.0) == pytest.approx(9.865876e-10, rel=1e-6)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.975, 1, 12.706), (0.975, 2, 4.3027), (0.995, 3, 5.8409), (0.9995, 4, 8.6103), (0.99, 10, 2.7638),
     (0.9999, 30, 4.2340), (0.975, 1000, 1.9623)],
)  # fmt: skip
def test_quantiles_of_students_t_are_those_of_tables(probability, freedom, value):
    assert student_quantile(probability, freedom) == pytest.approx(value, rel=2e-4)
