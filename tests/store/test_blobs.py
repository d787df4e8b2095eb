from __future__ import annotations

import os
import shutil
import time

import pytest

import stepscope
from stepscope import store
from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.store import blobs
from stepscope.store.blobs import code_fingerprint, key_of, settled


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


SECOND = 1_000_000_000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(os.urandom(400_000))
    return path


def test_a_file_that_nobody_touches_keeps_its_key(file):
    assert key_of(str(file), []) == key_of(str(file), [])


def test_whatever_else_the_reading_depends_on_is_part_of_the_key(file):
    keys = {key_of(str(file), extra) for extra in ([], [None], ["member"], ["member", 5])}
    assert len(keys) == 4


def test_the_same_content_elsewhere_has_another_key(file, tmp_path):
    # What a reader makes of a file may depend on its name: the rank.
    other = tmp_path / "rank3.json"
    os.link(file, other)
    assert key_of(str(file), []) != key_of(str(other), [])


def test_a_change_that_keeps_size_and_time_of_change_has_another_key(file):
    before, status = key_of(str(file), []), file.stat()
    content = bytearray(file.read_bytes())
    content[200_003] ^= 1  # not among the samples
    time.sleep(0.02)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert key_of(str(file), []) != before


@pytest.mark.parametrize("at", [0, 399_999, 65_535])
def test_samples_tell_where_times_do_not(file, at, monkeypatch):
    state = files.state_of(str(file))
    monkeypatch.setattr(files, "state_of", lambda _: state)
    before = key_of(str(file), [])
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert key_of(str(file), []) != before


@pytest.mark.parametrize("size", [0, 1, 70_000, 131_073])
def test_files_of_any_size_have_a_key(tmp_path, size):
    path = tmp_path / "x.json"
    path.write_bytes(b"x" * size)
    assert key_of(str(path), [])


def test_code_that_changed_makes_other_keys(file, monkeypatch):
    before = key_of(str(file), [])
    assert code_fingerprint() == code_fingerprint()
    monkeypatch.setattr(blobs, "code_fingerprint", lambda: "newer")
    assert key_of(str(file), []) != before


def test_an_object_without_a_tag_has_no_key():
    files.write("memory://key-test/plain.json", b"{}")
    assert key_of("memory://key-test/plain.json", []) is None
    assert not settled("memory://key-test/plain.json", 0)


def test_the_key_of_an_object_is_that_of_its_tag(monkeypatch):
    states = [("s3", 1, "tag"), ("s3", 1, "tag"), ("s3", 1, "other")]
    monkeypatch.setattr(files, "state_of", lambda _: states.pop(0))
    first, second, third = (key_of("s3://bucket/x.json", []) for _ in range(3))
    assert first == second != third
    monkeypatch.setattr(files, "state_of", lambda _: (1, "tag"))
    assert settled("s3://bucket/x.json", 0)


def test_a_file_is_settled_when_a_change_would_show(file):
    changed = 5 * SECOND + 123
    os.utime(file, ns=(changed, changed))
    moved = file.stat().st_ctime_ns  # no program can set it
    assert settled(str(file), moved + SECOND)
    assert not settled(str(file), moved + 1000)


def test_file_systems_that_know_whole_seconds_need_longer(file, monkeypatch):
    times = (1, 2, 400_000, 100 * SECOND, 100 * SECOND)
    monkeypatch.setattr(files, "state_of", lambda _: times)
    assert not settled(str(file), 101 * SECOND)
    assert settled(str(file), 103 * SECOND)
