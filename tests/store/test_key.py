from __future__ import annotations

import mmap
import os
import time

import pytest

from stepscope.core import files
from stepscope.store import _key
from stepscope.store._key import code_fingerprint, key_of, settled

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
    content[200_003] ^= 1
    time.sleep(0.02)
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert key_of(str(file), []) != before


def write_through_a_mapping(file, at):
    """Change a byte in place, as a program does that maps the file, and set back the time of change."""
    status = file.stat()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[at] ^= 1
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def without_ctime(monkeypatch):
    """A file system on which a change through a mapping leaves all times as they are, as tmpfs is."""
    real = files.state_of
    monkeypatch.setattr(files, "state_of", lambda path: real(path)[:-1])


@pytest.mark.parametrize("at", [0, 65_536, 200_003, 399_999])
@pytest.mark.usefixtures("without_ctime")
def test_a_change_through_a_mapping_that_leaves_all_times_shows_in_the_content(file, at):
    before = key_of(str(file), [])
    write_through_a_mapping(file, at)
    assert key_of(str(file), []) != before


@pytest.mark.usefixtures("without_ctime")
def test_of_large_files_such_a_change_shows_in_the_samples(tmp_path):
    large = tmp_path / "large.json"
    large.write_bytes(bytes(5_000_000))
    step = (5_000_000 - 2 * (1 << 16)) // 31
    for at in (0, 65_535, 65_536 + step, 65_536 + 30 * step + 4095, 5_000_000 - 65_536, 4_999_999):
        before = key_of(str(large), [])
        write_through_a_mapping(large, at)
        assert key_of(str(large), []) != before
    before = key_of(str(large), [])
    write_through_a_mapping(large, 65_536)  # docs/store.md says that such a change does not show
    assert key_of(str(large), []) == before


@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 22, (1 << 22) + 1])
def test_files_of_any_size_have_a_key(tmp_path, size):
    path = tmp_path / "x.json"
    path.write_bytes(b"x" * size)
    assert key_of(str(path), [])


def test_code_that_changed_makes_other_keys(file, monkeypatch):
    before = key_of(str(file), [])
    assert code_fingerprint() == code_fingerprint()
    monkeypatch.setattr(_key, "code_fingerprint", lambda: "newer")
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
