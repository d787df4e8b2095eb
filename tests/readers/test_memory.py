from __future__ import annotations

import ctypes
import sys

from stepscope.readers._memory import give_back


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


def test_a_library_without_the_call_and_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    give_back()
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "win32")
    give_back()
