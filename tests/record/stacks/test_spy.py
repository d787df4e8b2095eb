from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from py_spies import EVENTS, fake

from stepscope.record.stacks import spy as _spy
from stepscope.record.stacks.spy import Spy


def until_ready(spy: Spy) -> None:
    deadline = time.monotonic() + 20
    while spy.ready_ns is None:
        assert spy.listen()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_it_writes_comes_here_and_leaves_no_file(tmp_path):
    program = fake(tmp_path)
    spy = Spy([program], tmp_path)
    until_ready(spy)
    assert [path.name for path in tmp_path.iterdir()] == ["py-spy"]
    before = time.time_ns()
    spy.interrupt()
    assert json.loads(spy.end()) == EVENTS
    assert b"Samples: 8" in spy.output
    assert spy.process.returncode == 0
    assert spy.cpu_seconds > 0
    # The last time, 9 ms, is that at which it opened the pipe.
    assert before - 9_000_000 <= spy.zero_ns(9000) <= time.time_ns() - 9_000_000 or spy.zero_ns(9000) == spy.ready_ns


def test_its_zero_lies_between_its_start_and_its_first_word(tmp_path):
    spy = Spy([fake(tmp_path)], tmp_path)
    until_ready(spy)
    spy.interrupt()
    spy.end()
    assert spy.zero_ns(0) == spy.ready_ns
    assert spy.zero_ns(10**9) == spy.started_ns


def test_one_that_dies_before_it_opens_the_pipe_gives_nothing(tmp_path):
    spy = Spy([fake(tmp_path, after="import os; os.abort()")], tmp_path)
    until_ready(spy)
    spy.interrupt()
    assert spy.end() == b""
    assert spy.process.returncode == -signal.SIGABRT


def test_one_that_has_not_begun_is_killed(tmp_path):
    spy = Spy([fake(tmp_path, before="time.sleep(60)")], tmp_path)
    spy.interrupt()
    assert spy.end() == b""
    assert spy.process.returncode == -signal.SIGKILL


def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(_spy, "_END_S", 0.3)
    spy = Spy([fake(tmp_path, after="time.sleep(60)")], tmp_path)
    until_ready(spy)
    spy.interrupt()
    assert spy.end() == b""


def test_a_program_that_cannot_be_run_is_an_error_and_leaves_no_handle(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No such file"):
        Spy([str(tmp_path / "nothing")], tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_a_file_system_has_no_pipes_it_lies_elsewhere_for_a_moment(tmp_path, monkeypatch):
    made = []
    mkfifo = os.mkfifo

    def only_elsewhere(path: Path, mode: int) -> None:
        made.append(Path(path).parent)
        if Path(path).parent == tmp_path:
            raise PermissionError
        mkfifo(path, mode)

    monkeypatch.setattr(os, "mkfifo", only_elsewhere)
    monkeypatch.setattr(_spy.tempfile, "gettempdir", lambda: str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    os.close(_spy._pipe(tmp_path))
    assert made == [tmp_path, tmp_path / "t"]
    assert not list((tmp_path / "t").iterdir())
    (tmp_path / "t").rmdir()
    with pytest.raises(FileNotFoundError):
        _spy._pipe(tmp_path)


def test_it_ends_when_we_are_killed(tmp_path):
    program = fake(tmp_path)
    child = os.fork()
    if child == 0:
        spy = Spy([program], tmp_path)
        until_ready(spy)
        (tmp_path / "pid").write_text(str(spy.process.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
