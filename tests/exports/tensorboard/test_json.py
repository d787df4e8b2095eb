from __future__ import annotations

import json

import numpy as np
import pytest

from stepscope.exports.tensorboard import _json
from stepscope.exports.tensorboard._json import rounded, shown


def test_halves_go_to_the_even_neighbour():
    found = rounded(np.array([0.5, 1.5, 2.4, -0.5]))
    assert found == [0, 2, 2, 0]
    assert all(isinstance(v, int) for v in found)


@pytest.mark.parametrize(
    ("value", "text"), [(12.346, 12.35), (0.0, 0.0), (0.0123, 0.01), (0.00123, 0.001), (-0.00056, -0.0006), (5, 5)]
)
def test_small_values_keep_one_digit(value, text):
    assert shown(value) == text


def test_values_become_compact_json():
    assert _json.encoded({"a": [1, 2.5, None, "é"]}) == '{"a":[1,2.5,null,"é"]}'.encode()


def test_long_lists_are_joined_from_pieces(monkeypatch):
    monkeypatch.setattr(_json, "_PIECE", 3)
    for n in (0, 1, 3, 4, 7):
        text = _json.encoded({"list": _json.encoded_list({"n": i} for i in range(n))})
        assert json.loads(text) == {"list": [{"n": i} for i in range(n)]}
