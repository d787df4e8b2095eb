from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import pytest

from stepscope.record.startup import _stepscope_tracer as tracer


@pytest.fixture
def calls(monkeypatch):
    """What prctl is called with, and what is to be done in forked children."""
    told: list = []
    forks: list = []
    library = SimpleNamespace(prctl=lambda *words: told.append([getattr(word, "value", word) for word in words]))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(os, "register_at_fork", lambda **when: forks.append(when["after_in_child"]))
    return told, forks


def test_where_only_parents_may_look_the_recorder_is_named_and_forked_children_name_it_too(calls, tmp_path):
    told, forks = calls
    (tmp_path / "scope").write_text("1\n")
    tracer.allow(4242, str(tmp_path / "scope"))
    assert told == [[0x59616D61, 4242, 0, 0, 0]]
    forks[0]()
    assert len(told) == 2


@pytest.mark.parametrize("scope", ["0\n", "2\n", "3\n", None])
def test_elsewhere_nothing_is_done(calls, tmp_path, scope):
    if scope is not None:
        (tmp_path / "scope").write_text(scope)
    tracer.allow(4242, str(tmp_path / "scope"))
    assert calls == ([], [])
