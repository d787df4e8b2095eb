from __future__ import annotations

import pytest

from stepscope.core import hooks


def test_the_last_finder_finds_the_verbs(monkeypatch):
    monkeypatch.setattr(hooks, "_finders", [])
    with pytest.raises(IndexError):
        hooks.verb("show")
    hooks.use_verbs({"show": print}.__getitem__)
    hooks.use_verbs({"show": len}.__getitem__)
    assert hooks.verb("show") is len
