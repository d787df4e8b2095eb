from __future__ import annotations

import json

from stepscope.exports.tensorboard import _encode


def test_values_become_compact_json():
    assert _encode.encoded({"a": [1, 2.5, None, "é"]}) == '{"a":[1,2.5,null,"é"]}'.encode()


def test_long_lists_are_joined_from_pieces(monkeypatch):
    monkeypatch.setattr(_encode, "_PIECE", 3)
    for n in (0, 1, 3, 4, 7):
        text = _encode.encoded({"list": _encode.encoded_list({"n": i} for i in range(n))})
        assert json.loads(text) == {"list": [{"n": i} for i in range(n)]}
