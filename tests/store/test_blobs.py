from __future__ import annotations

import shutil
import time

import pytest

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store._key import settled


@pytest.fixture
def path(tmp_path, examples, monkeypatch):
    """A trace that is worth keeping, written long enough ago."""
    monkeypatch.setenv("STEPSCOPE_CACHE", "1")
    monkeypatch.setenv("STEPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    target = str(tmp_path / "rank0.pt.trace.json.gz")
    shutil.copy(examples / "demo-cpu-2ranks" / "rank0.pt.trace.json.gz", target)
    while not settled(target, time.time_ns()):
        pass
    return target


def note(path, *words):
    return store.value_key("test", path, words)


def test_a_note_is_found_again_by_what_it_says_and_follows_from(path):
    meta = stepscope.load(path).meta
    store.cache_value(note(path, 1), b"of one", meta, what="test")
    assert store.cached_value(note(path, 1)) == b"of one"
    assert store.cached_value(note(path, 2)) is None
    assert store.cached_value(store.value_key("other", path, (1,))) is None


def test_what_follows_from_more_than_a_file_has_no_note(path):
    assert store.value_key("test", path, None) is None
    assert store.value_key("test", f"{path}!member", ()) is None
    assert store.value_key("test", files.split(path)[0], ()) is None


def test_a_file_that_is_read_at_once_has_no_note(path, monkeypatch):
    monkeypatch.setattr(store.blobs, "LEAST_PACKED", 10**9)
    assert note(path) is None


def test_a_note_of_a_file_that_changed_meanwhile_is_not_kept(path, examples):
    key, meta = note(path), stepscope.load(path).meta
    assert store.unchanged(key)
    shutil.copy(examples / "demo-cpu-2ranks" / "rank1.pt.trace.json.gz", path)
    assert not store.unchanged(key)
    store.cache_value(key, b"of the file before", meta, what="test")
    assert store.cached_value(key) is None
    assert store.cached_value(note(path)) is None


def test_a_file_that_is_gone_has_no_ticket(path):
    with pytest.raises(StepscopeError):
        note(f"{path}.gone")
