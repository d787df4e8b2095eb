from __future__ import annotations

import ctypes
import sys

from stepscope.cli._allocator import keep_freed_memory


class Library:
    def __init__(self) -> None:
        self.set: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> None:
        self.set[parameter] = value


def test_glibc_is_told_to_keep_what_is_freed(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()
    assert library.set == {-3: 32 << 20, -1: 512 << 20, -2: 16 << 20}


def test_other_libraries_and_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    keep_freed_memory()
    monkeypatch.setattr(ctypes, "CDLL", None)
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory()
