from __future__ import annotations

import ctypes
import gc
import sys

import pytest

from stepscope.readers.common.memory import give_back, no_collection


class Library:
    def __init__(self) -> None:
        self.calls: list[int] = []

    def malloc_trim(self, pad: int) -> None:
        self.calls.append(pad)


def test_freed_memory_goes_back_where_the_library_can_do_it(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    give_back()
    assert library.calls == [0]
    give_back(10**9)
    assert library.calls == [0, 0]
    give_back(5_000_000)  # it would be fetched again for the next small file
    assert library.calls == [0, 0]


def test_a_library_without_the_call_and_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    give_back()
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "win32")
    give_back()


def fail():
    assert not gc.isenabled()
    raise ValueError("x")


def test_the_collector_rests_and_comes_back():
    gc.enable()  # whatever ran before in this process
    with pytest.raises(ValueError, match="x"), no_collection():
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
