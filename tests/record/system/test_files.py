from __future__ import annotations

import os
import resource
from pathlib import Path

from stepscope.record.system import files
from stepscope.record.system.files import Kept, read_once


def test_a_kept_file_is_opened_once_and_read_as_it_is_now(tmp_path):
    path = tmp_path / "total"
    path.write_text("1")
    kept = Kept()
    assert kept.read(str(path)) == b"1"
    path.write_text("22")
    assert (kept.read(str(path)), len(kept)) == (b"22", 1)
    kept.close()
    assert len(kept) == 0


def test_a_file_that_is_not_there_is_asked_for_again(tmp_path):
    kept = Kept()
    path = tmp_path / "later"
    assert kept.read(str(path)) is None
    path.write_text("now")
    assert kept.read(str(path)) == b"now"


def test_a_file_that_cannot_be_read_any_more_is_closed(tmp_path):
    kept = Kept()
    (tmp_path / "f").write_text("x")
    kept.read(str(tmp_path / "f"))
    os.close(next(iter(kept._open.values())))
    kept._open[str(tmp_path / "f")] = os.open(tmp_path, os.O_RDONLY)  # a folder: pread fails
    assert kept.read(str(tmp_path / "f")) is None
    assert len(kept) == 0


def test_beyond_the_limit_files_are_read_without_being_kept(tmp_path):
    kept = Kept(most=1)
    for name in "ab":
        (tmp_path / name).write_text(name)
        assert kept.read(str(tmp_path / name)) == name.encode()
    assert len(kept) == 1


def test_files_are_read_together_and_those_that_are_gone_left_out(tmp_path, monkeypatch):
    kept = Kept()
    a, b, none = (str(tmp_path / name) for name in ("a", "b", "none"))
    for path in (a, b):
        Path(path).write_text(Path(path).name)
    for _ in range(2):
        texts = kept.read_all([a, none, b])
        assert texts == {a: b"a", b: b"b"}
        assert (texts.read(a), texts.read(none)) == (b"a", None)
    pread = os.pread

    def gone(handle, size, at):  # as a thread's file is, once it has ended
        if handle == kept_of_a:
            raise ProcessLookupError
        return pread(handle, size, at)

    kept_of_a = kept._open[a]
    os.unlink(a)  # noqa: PTH108  the other half of os.open
    monkeypatch.setattr(files.os, "pread", gone)
    assert kept.read_all([a, b]) == {b: b"b"}
    assert list(kept._open) == [b]


def test_files_of_a_folder_are_dropped_together(tmp_path):
    kept = Kept()
    for name in ("1", "12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_text(name)
        kept.read(f"{tmp_path}/{name}/stat")
    kept.drop_below(f"{tmp_path}/1/")
    assert list(kept._open) == [f"{tmp_path}/12/stat"]
    kept.close()


def test_the_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits, found in (
        ((1024, 4096), 4096),
        ((1024, resource.RLIM_INFINITY), 1 << 16),
        ((4096, 4096), 4096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1 << 16),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert files._raised_limit() == found
    assert asked == [(4096, 4096), (1 << 16, resource.RLIM_INFINITY)]


def test_a_file_is_read_once_or_not_at_all(tmp_path):
    (tmp_path / "f").write_bytes(b"a\xff")
    assert read_once(str(tmp_path / "f")) == "a\ufffd"
    assert read_once(str(tmp_path / "none")) is None
    assert read_once(str(tmp_path)) is None
