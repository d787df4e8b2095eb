from __future__ import annotations

import sys
import types
from importlib import metadata

import pytest

from stepscope.core import registry
from stepscope.core.errors import UnknownName
from stepscope.renderers import Renderer, by_suffix, find


@pytest.mark.parametrize("name", ["terminal", "markdown", "json", "csv", "csv-raw", "parquet"])
def test_each_is_found_by_name_and_by_each_of_its_suffixes(name):
    found = find(name)
    assert found.name == name
    assert found.report or found.table
    assert all(by_suffix(f"some.file{suffix.upper()}") is found for suffix in found.suffixes)


def test_short_names_are_those_of_the_command_line():
    assert (find("table"), find("md")) == (find("terminal"), find("markdown"))


def test_unknown_ones_name_the_known():
    with pytest.raises(UnknownName) as caught:
        find("jsn")
    assert caught.value.hint.startswith("known: json, ")
    with pytest.raises(UnknownName, match=r"output format for a file named 'x\.exe'"):
        by_suffix("folder/x.exe")


def test_other_packages_offer_theirs(monkeypatch):
    theirs = types.ModuleType("theirs")
    theirs.RENDERER = Renderer("yaml", "YAML", (".yml",), report=lambda *_: "")
    theirs.WRONG = "no renderer"
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    group = "stepscope.renderers"
    offered = {"yaml": metadata.EntryPoint("yaml", "theirs:RENDERER", group)}
    monkeypatch.setattr(registry, "entry_points_of", lambda _: offered)
    assert find("yaml") is theirs.RENDERER
    assert by_suffix("out.yml") is theirs.RENDERER
    wrong = {"bad": metadata.EntryPoint("bad", "theirs:WRONG", group)}
    monkeypatch.setattr(registry, "entry_points_of", lambda _: wrong)
    with pytest.raises(TypeError, match="bad: the entry point gives str"):
        find("bad")
