from __future__ import annotations

import io
import sys

import pytest

from stepscope.cli import _progress
from stepscope.cli._progress import progress, ranks_done


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    def made():  # within the test, as pytest sets its own stderr after the fixtures
        fake = Terminal()
        monkeypatch.setattr(sys, "stderr", fake)
        monkeypatch.setattr(_progress, "_EVERY_S", 0.0)
        return fake

    return made


def test_nothing_is_told_where_nobody_looks(terminal, monkeypatch):
    stream = terminal()
    with progress(["a"], wanted=False) as tell:
        assert tell is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress(["a"], wanted=True) as tell:
        assert tell is None
    assert stream.getvalue() == ""


def test_the_share_of_bytes_read_is_drawn_and_wiped(terminal, tmp_path):
    stream = terminal()
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        (tmp_path / path).write_bytes(b"x" * 100)
    with progress(paths, wanted=True) as tell:
        tell(paths[0], 50)
        tell(paths[0], 90)
        tell(paths[1], 50)
        tell("elsewhere", 500)
    drawn = [frame.split("\x1b")[0] for frame in stream.getvalue().split("\r")[1:]]
    assert [line.split("] ")[1].strip() for line in drawn[:-1]] == [
        "25%  file 1 of 2", "45%  file 1 of 2", "75%  file 2 of 2", "100%  file 3 of 2"
    ]  # fmt: skip
    assert drawn[-1] == ""


def test_files_of_unknown_size_do_not_fail(terminal):
    stream = terminal()
    with progress(["archive.zip!member"], wanted=True) as tell:
        tell("archive.zip!member", 5)
    assert "100%" in stream.getvalue()


def test_files_that_others_have_done_are_counted(terminal):
    stream = terminal()
    with ranks_done(wanted=True) as tell:
        for n_done in (1, 2, 4):
            tell(n_done, 4)
        tell(1, 1)
    drawn = [frame.split("\x1b")[0] for frame in stream.getvalue().split("\r")[1:]]
    assert [line.split("] ")[1].strip() for line in drawn[:-1]] == [
        "25%  file 1 of 4", "50%  file 2 of 4", "100%  file 4 of 4"
    ]  # fmt: skip
    assert drawn[-1] == ""
    with ranks_done(wanted=False) as nobody:
        assert nobody is None
