from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.store import _place
from stepscope.store._place import place


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STEPSCOPE_CACHE", "STEPSCOPE_CACHE_DIR", "STEPSCOPE_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("word", ["0", "off", "No", "FALSE"])
def test_a_word_turns_it_off(monkeypatch, word):
    monkeypatch.setenv("STEPSCOPE_CACHE", word)
    assert place() is None


def test_folder_and_size_are_those_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "3MB")
    assert place() == _place.Place(tmp_path / "kept", 3_000_000)
    monkeypatch.setenv("STEPSCOPE_CACHE_SIZE", "much")
    with pytest.raises(StepscopeError, match="STEPSCOPE_CACHE_SIZE: 'much' is not a size"):
        place()


@pytest.mark.parametrize(("free", "limit"), [(10**12, 5 * 10**9), (10**10, 10**9)])
def test_by_default_it_takes_5_gb_or_a_tenth_of_what_is_free(monkeypatch, free, limit):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    found = place()
    assert found is not None
    assert found.limit_bytes == limit


def test_a_disk_that_cannot_be_asked_has_no_room(monkeypatch):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    found = place()
    assert found is not None
    assert found.limit_bytes == 0


@pytest.mark.parametrize(
    ("platform", "told", "expected"),
    [
        ("linux", {}, ".cache/stepscope"),
        ("linux", {"XDG_CACHE_HOME": "/var/tmp/mine"}, "/var/tmp/mine/stepscope"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/stepscope"),
        ("darwin", {}, "Library/Caches/stepscope"),
        ("win32", {}, "AppData/Local/stepscope/Cache"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/stepscope/Cache"),
    ],
)
def test_it_lies_where_the_system_wants_it(monkeypatch, platform, told, expected):
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr("sys.platform", platform)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = place()
    assert found is not None
    assert found.folder == Path.home() / expected
