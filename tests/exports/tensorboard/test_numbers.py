from __future__ import annotations

import numpy as np
import pytest

from stepscope.exports.tensorboard._numbers import rounded, shown


def test_halves_go_to_the_even_neighbour():
    found = rounded(np.array([0.5, 1.5, 2.4, -0.5]))
    assert found == [0, 2, 2, 0]
    assert all(isinstance(v, int) for v in found)


@pytest.mark.parametrize(
    ("value", "text"), [(12.346, 12.35), (0.0, 0.0), (0.0123, 0.01), (0.00123, 0.001), (-0.00056, -0.0006), (5, 5)]
)
def test_small_values_keep_one_digit(value, text):
    assert shown(value) == text
