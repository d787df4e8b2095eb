from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from stepscope.core import registry
from stepscope.core.errors import UnknownName
from stepscope.core.registry import Registry, entry_points_of

COLOURS = Registry("colour", str, "COLOUR", "tests.colours", {"red": "colours_red", "blue": "colours_blue"})


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    for name, value in (("colours_red", "#f00"), ("colours_blue", "#00f"), ("colours_theirs", "#0f0")):
        module = ModuleType(name)
        module.COLOUR = value
        module.NUMBER = 3
        monkeypatch.setitem(sys.modules, name, module)


def offer(monkeypatch, *pairs):
    points = {name: EntryPoint(name, value, COLOURS.group) for name, value in pairs}
    monkeypatch.setattr(registry, "entry_points_of", lambda group: points if group == COLOURS.group else {})


def test_ours_are_imported_by_name():
    assert COLOURS.names() == ["red", "blue"]
    assert COLOURS.find("blue") == "#00f"
    assert "red" in COLOURS
    assert "green" not in COLOURS


def test_a_module_may_hold_several():
    several = Registry("number", int, "COLOUR", "tests.numbers", {"three": "colours_red:NUMBER"})
    assert several.find("three") == 3


def test_those_of_other_packages_come_after_ours_by_name(monkeypatch):
    offer(monkeypatch, ("violet", "colours_theirs:COLOUR"), ("green", "colours_theirs:COLOUR"))
    assert COLOURS.names() == ["red", "blue", "green", "violet"]
    assert COLOURS.find("green") == "#0f0"
    assert "green" in COLOURS
    assert COLOURS.from_other_packages() == ["#0f0", "#0f0"]


def test_other_packages_do_not_replace_ours(monkeypatch):
    offer(monkeypatch, ("red", "colours_theirs:COLOUR"))
    assert COLOURS.names() == ["red", "blue"]
    assert COLOURS.find("red") == "#f00"
    assert COLOURS.from_other_packages() == []


@pytest.mark.parametrize("group", ["tests.colours", "tests.shapes"])
def test_entry_points_are_those_of_installed_packages(group, monkeypatch, tmp_path):
    for folder, package, text in (
        ("first", "paints", "[tests.colours]\ngreen = theirs:GREEN\n[others]\nloud = theirs:LOUD\n"),
        ("second", "paints", "[tests.colours]\ngreen = shadowed:GREEN\n"),
        ("second", "names", "[others]\ntests.colours = theirs:NAMES\n"),
    ):
        about = tmp_path / folder / f"{package}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(text)
    (tmp_path / "second" / "silent-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    found = entry_points_of.__wrapped__(group)
    expected = {"green": EntryPoint("green", "theirs:GREEN", group)} if group == "tests.colours" else {}
    assert found == expected


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="no colour named 'rad'") as caught:
        COLOURS.find("rad")
    assert caught.value.hint == "known: red, blue"


def test_something_else_under_a_name_is_refused(monkeypatch):
    offer(monkeypatch, ("number", "colours_theirs:NUMBER"))
    with pytest.raises(TypeError, match="number: the entry point gives int, not str"):
        COLOURS.find("number")
